"""Serve unary calls as ``POST /gpushare.v1.Service/Call`` with JSON: the Connect protocol's unary form.

Field names are those of the proto files; 64-bit integers are strings, as protobuf's JSON mapping has it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from google.protobuf import json_format
from google.protobuf.message import Message

from gpushared.domain.model.errors import Code, GpushareError, NotLeader, RequestError, http_status
from gpushared.domain.model.request import Caller
from gpushared.net.call_audit import CallAudit
from gpushared.net.http_server import WebReply, WebRequest
from gpushared.net.message_json import json_text
from gpushared.storage.audit.line import Origin

log = logging.getLogger(__name__)

MAX_PARSER_CHARACTERS = 200
REVISION = b"Gpushare-Revision"
"""Two answers with this header's same value are of the same state."""

AGE = b"Gpushare-Age-Seconds"

Call = Callable[..., Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class Unary:
    """Hold one call: the type of its request, and the function that answers it."""

    request: type[Message]
    call: Call


class JsonApi:
    """Answer JSON calls by the same functions that answer gRPC."""

    def __init__(
        self,
        calls: Mapping[str, Unary],
        audit: CallAudit | None = None,
        revision: Callable[[], object] = str,
        age: Callable[[], str] = str,
    ) -> None:
        """Take ``revision``, which returns the present revision of the answers; an empty text gives no header.

        ``age`` returns how many seconds old the answers are; an empty text gives no header either.
        """
        self._audit = audit or CallAudit()
        self._revision = revision
        self._age = age
        self.calls: dict[str, Unary] = {}
        self.add(calls)

    def add(self, calls: Mapping[str, Unary]) -> None:
        """Add calls, which are served from now on."""
        self.calls |= calls
        self._audit.learn({name: unary.call for name, unary in calls.items()})

    async def answer(self, request: WebRequest) -> WebReply:
        """Answer one request; errors of the tree get Connect's form."""
        unary = self.calls.get(request.path.removeprefix("/"))
        if unary is None:
            return _error(404, Code.UNIMPLEMENTED, f"there is no call {request.path[:100]}", "")
        revision = str(self._revision())
        try:
            message = parsed(request.body, unary)
            answer = await self.make(unary, message, request.caller, request.origin)
        except GpushareError as error:
            return failure(error)
        headers = [(REVISION, revision.encode())] if revision else []
        headers += [(AGE, age.encode())] if (age := self._age()) else []
        return WebReply(200, json_text(answer).encode(), headers=headers)

    async def make(self, unary: Unary, message: Message, caller: Caller, origin: Origin) -> Message:
        """Make a call as this caller. Raises errors of the tree."""
        return await self._audit.make(unary.call, message, caller, origin)


def parsed(body: bytes, unary: Unary) -> Message:
    """Return a call's message from JSON. Raises RequestError."""
    try:
        return json_format.Parse(body or b"{}", unary.request())
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(
            f"the body is not a {unary.request.DESCRIPTOR.name}: {_one_line(str(error))}",
            hint="the fields are described in proto/gpushare/v1",
        ) from error


def _one_line(text: str) -> str:
    """Return the parser's message in one line, without most of its quotation of a long body."""
    return "".join(c if c.isprintable() else " " for c in text[:MAX_PARSER_CHARACTERS])


def failure(error: GpushareError) -> WebReply:
    """Return an error of the tree in Connect's form."""
    leader = error.leader if isinstance(error, NotLeader) else ""
    # Connect has another status for this code alone (https://connectrpc.com/docs/protocol#error-codes).
    status = 400 if error.code is Code.FAILED_PRECONDITION else http_status(error)
    return _error(status, error.code, error.message, error.hint, leader)


def _error(status: int, code: Code, message: str, hint: str, leader: str = "") -> WebReply:
    detail = {name: text for name, text in (("hint", hint), ("leader", leader)) if text}
    body = {"code": code.value, "message": message, "details": [detail] if detail else []}
    return WebReply(status, json.dumps(body).encode())
