"""Write audit lines for calls of the daemon's own API that change things of other users."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message

from gpushared.domain.model.errors import GpushareError, LimitReached, PermissionRefused
from gpushared.domain.model.request import Caller
from gpushared.storage.audit.line import UNKNOWN, Origin, Sink, digest_of, ignore, line_now

CALL = "CALL"
PREFIX = "gpushare.v1."
ALWAYS = frozenset(
    {
        "Gpus/Drain",
        "Gpus/Undrain",
        "Jobs/Cancel",
        "Jobs/Hold",
        "Jobs/SetPriority",
        "Join/Renew",
        "Join/Sign",
        "Node/Join",
        "Node/Leave",
        "PoolAdmin/CreateApiToken",
        "PoolAdmin/CreateJoinToken",
        "PoolAdmin/DrainNode",
        "PoolAdmin/ForgetCoordinator",
        "PoolAdmin/ForgetNode",
        "PoolAdmin/RevokeToken",
        "PoolAdmin/RotateCa",
        "Projects/Set",
        "Web/Link",
    }
)
ON_LEASES = frozenset(
    f"Leases/{name}"
    for name in ("Extend", "Hold", "Pause", "Preempt", "Release", "Resize", "Resume", "SetPriority", "Stop")
)
"""These calls leave a line if the lease is another user's."""
_MAKING = frozenset({"PoolAdmin/CreateApiToken", "PoolAdmin/CreateJoinToken"})
"""The answers of these calls hold the id of the object that was made."""
_NAMED_BY = ("lease_id", "job_id", "gpu", "node", "name", "person", "id")
"""These fields of requests name their object; no field holds a token's secret."""

_RequestT = TypeVar("_RequestT")
_AnswerT = TypeVar("_AnswerT")


@dataclass(frozen=True, slots=True)
class Asker:
    """Name the caller in a line. ``note`` tells the way of the call, if the other fields do not."""

    uid: int
    user: str
    origin: Origin = UNKNOWN
    note: str = ""


class CallAudit:
    """Audit each unary call, by every way."""

    def __init__(self, sink: Sink = ignore) -> None:
        self._sink = sink
        self._names: dict[Callable[..., Awaitable[Any]], str] = {}

    def learn(self, calls: Mapping[str, Callable[..., Awaitable[Any]]]) -> None:
        """Learn the full names of calls."""
        self._names |= {call: name.removeprefix(PREFIX) for name, call in calls.items()}

    async def make(
        self,
        call: Callable[[_RequestT, Caller], Awaitable[_AnswerT]],
        message: _RequestT,
        caller: Caller,
        by: Origin,
    ) -> _AnswerT:
        """Make the call; write the line before the answer goes out."""
        name, asker = self.name_of(call), Asker(caller.uid, caller.name, by)
        with self.auditing_refusal(name, message, asker):
            answer = await call(message, caller)
        self.answered(name, message, asker, answer)
        return answer

    def name_of(self, call: Callable[..., Awaitable[Any]]) -> str:
        """Return the call's name without the API's; empty for an unknown call."""
        return self._names.get(call, "")

    @contextmanager
    def auditing_refusal(self, name: str, message: object, asker: Asker) -> Iterator[None]:
        """Write a line if the call in the block is refused. ``name`` leaves out the API's name."""
        try:
            yield
        except GpushareError as error:
            self.refused(name, message, asker, error)
            raise

    def answered(self, name: str, message: object, asker: Asker, answer: object = None) -> None:
        """Write the line of an answered call, if it belongs in the audit.

        ``name`` leaves out the API's name.
        """
        if name in ALWAYS or (name in ON_LEASES and _owner(answer) != asker.uid):
            self._write(name, message, asker, text=f"made {_id(answer)}" if name in _MAKING else "")

    def refused(self, name: str, message: object, asker: Asker, error: GpushareError) -> None:
        """Write the line of a call that is answered with an error, if it belongs in the audit."""
        if name in ALWAYS or isinstance(error, PermissionRefused | LimitReached):
            self._write(name, message, asker, error)

    def _write(
        self, name: str, message: object, asker: Asker, error: GpushareError | None = None, text: str = ""
    ) -> None:
        body = message.SerializeToString(deterministic=True) if isinstance(message, Message) else b""
        line = line_now(
            asker.uid,
            asker.user,
            CALL,
            name,
            origin=asker.origin,
            name=_object_name(message),
            digest=digest_of(body),
            text="; ".join(part for part in (text if error is None else error.message, asker.note) if part),
            error=error,
        )
        self._sink(line)


def _object_name(message: object) -> str:
    values = (getattr(message, field, "") for field in _NAMED_BY)
    return next((value for value in values if isinstance(value, str) and value), "")


def _owner(answer: object) -> int | None:
    lease = getattr(answer, "lease", answer)
    owner = getattr(lease, "owner_uid", None)
    return owner if isinstance(owner, int) else None


def _id(answer: object) -> str:
    return str(getattr(answer, "id", ""))
