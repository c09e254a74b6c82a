"""Calls of the daemon's own API that leave a line in the audit: those that change what others have."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message

from gpushared.audit.line import MAX_NAME, MAX_TEXT, AuditLine, Origin, Sink, bounded, ignore
from gpushared.domain.errors import GpushareError, LimitReached, PermissionRefused
from gpushared.domain.request import Caller
from gpushared.gate.answers import http_status
from gpushared.gate.audit import digest_of

OK = 200
CALL = "CALL"
PREFIX = "gpushare.v1."
ALWAYS = frozenset(
    {
        "Gpus/Drain",
        "Gpus/Undrain",
        "Jobs/Cancel",
        "Jobs/Hold",
        "Node/Join",
        "Node/Leave",
        "PoolAdmin/DrainNode",
        "PoolAdmin/ForgetNode",
        "Projects/Set",
    }
)
ON_LEASES = frozenset(
    f"Leases/{name}"
    for name in ("Extend", "Hold", "Pause", "Preempt", "Release", "Resize", "Resume", "SetPriority", "Stop")
)
"""Of somebody else's lease."""
_NAMED_BY = ("lease_id", "job_id", "gpu", "node", "name")
"""The fields of requests that say what is meant; tokens' secrets are in none of them."""

_Asked = TypeVar("_Asked")
_Answered = TypeVar("_Answered")


class CallAudit:
    """Around each unary call, by whatever way it came."""

    def __init__(self, sink: Sink = ignore) -> None:
        self._sink = sink
        self._names: dict[Callable[..., Awaitable[Any]], str] = {}

    def learn(self, calls: Mapping[str, Callable[..., Awaitable[Any]]]) -> None:
        """The full names of calls."""
        self._names |= {call: name.removeprefix(PREFIX) for name, call in calls.items()}

    async def make(
        self,
        call: Callable[[_Asked, Caller], Awaitable[_Answered]],
        message: _Asked,
        caller: Caller,
        by: Origin,
    ) -> _Answered:
        """Make the call; the line is told before its answer is."""
        name = self._names.get(call, "")
        try:
            answer = await call(message, caller)
        except GpushareError as error:
            if name in ALWAYS or isinstance(error, PermissionRefused | LimitReached):
                self._tell(name, message, caller, by, error)
            raise
        if name in ALWAYS or (name in ON_LEASES and _owner(answer) != caller.uid):
            self._tell(name, message, caller, by)
        return answer

    def _tell(
        self, name: str, message: object, caller: Caller, by: Origin, error: GpushareError | None = None
    ) -> None:
        body = message.SerializeToString(deterministic=True) if isinstance(message, Message) else b""
        line = AuditLine(
            at=time.time(),
            uid=caller.uid,
            user=bounded(caller.name, MAX_NAME),
            origin=by,
            method=CALL,
            endpoint=name,
            name=bounded(_named(message), MAX_NAME),
            digest=digest_of(body),
            status=OK if error is None else http_status(error),
            code="" if error is None else error.code,
            text="" if error is None else bounded(error.message, MAX_TEXT),
        )
        self._sink(line)


def _named(message: object) -> str:
    values = (getattr(message, field, "") for field in _NAMED_BY)
    return next((value for value in values if isinstance(value, str) and value), "")


def _owner(answer: object) -> int | None:
    lease = getattr(answer, "lease", answer)
    owner = getattr(lease, "owner_uid", None)
    return owner if isinstance(owner, int) else None
