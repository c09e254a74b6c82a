"""Names of containers and networks, of which all users of a machine have one space."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from gpushared.domain.errors import NotFound, RequestError
from gpushared.domain.request import Caller
from gpushared.gate.answers import docker_error
from gpushared.gate.containers import CONFLICT, find_container
from gpushared.gate.engine import Answer, EngineSocket

LIKE_AN_ID = re.compile(r"/?[0-9a-f]{12,64}")
HOLDER = re.compile(r'container "?([0-9a-f]{64})')


def check_name(name: str) -> None:
    """Raise ``RequestError`` for what could be another thing's id as listings show it.

    The engine looks for a name before the beginning of an id: whoever has such a name gets what others,
    root among them, mean for somebody else.
    """
    if LIKE_AN_ID.fullmatch(name):
        raise RequestError(f"the name {name} could be taken for an id", hint="choose one with other letters")


async def hide_holder(answer: Answer, name: str, engine: EngineSocket, caller: Caller) -> Answer:
    """The answer to a create or rename, without the id of another's container that has the name."""
    holder = HOLDER.search(_message(answer)) if answer.status == CONFLICT else None
    if holder is None:
        return answer
    try:
        await find_container(engine, holder[1], caller)
    except NotFound:
        said = f"Conflict. The container name {name} is taken by somebody else's container (choose another)"
        return replace(answer, body=docker_error(said))
    return answer


def _message(answer: Answer) -> str:
    try:
        return str(json.loads(answer.body)["message"])
    except (ValueError, KeyError, TypeError):
        return ""
