"""Check the names of containers and networks, which all users of a machine share."""

from __future__ import annotations

import re
from dataclasses import replace

from gpushared.domain.model.errors import NotFound, RequestError
from gpushared.domain.model.request import Caller
from gpushared.gate.containers.ownership import CONFLICT, OK, find_container, find_owned
from gpushared.net.error_answers import docker_error
from gpushared.net.http_client import EngineAnswer, EngineSocket, message_of

LIKE_AN_ID = re.compile(r"/?[0-9a-f]{12,64}")
LISTINGS = {"containers": b"/containers/json?all=1", "networks": b"/networks"}
"""The listings of the ids for which a name of a container or network could be taken."""
HOLDER = re.compile(r'container "?([0-9a-f]{64})')


async def check_name(name: str, engine: EngineSocket, caller: Caller) -> None:
    """Raise ``RequestError`` for a name that is another's id, or the beginning of one as listings show it.

    The engine looks for a name before the beginning of an id: whoever has such a name gets what others,
    root among them, mean for somebody else. Ids are random, so that nobody can have a name before the id.
    """
    if not LIKE_AN_ID.fullmatch(name):
        return
    for kind, listing in LISTINGS.items():
        answer = await engine.call("GET", listing)
        for found in answer.json() if answer.status == OK else ():
            is_meant = str(found["Id"]).startswith(name.lstrip("/"))
            if is_meant and not await _is_own(engine, kind, str(found["Id"]), caller):
                raise RequestError(
                    f"the name {name} could be taken for an id", hint="choose one with other letters"
                )


async def _is_own(engine: EngineSocket, kind: str, identity: str, caller: Caller) -> bool:
    try:
        if kind == "containers":
            await find_container(engine, identity, caller)
        else:
            await find_owned(engine, kind, identity, caller)
    except NotFound:
        return False
    return True


async def hide_holder(answer: EngineAnswer, name: str, engine: EngineSocket, caller: Caller) -> EngineAnswer:
    """Return the answer to a create or rename without the id of another user's container with the name."""
    holder = HOLDER.search(message_of(answer)) if answer.status == CONFLICT else None
    if holder is None:
        return answer
    try:
        await find_container(engine, holder[1], caller)
    except NotFound:
        said = f"Conflict. The container name {name} is taken by somebody else's container (choose another)"
        return replace(answer, body=docker_error(said))
    return answer
