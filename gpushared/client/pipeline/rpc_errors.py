"""Turn the errors of gRPC's calls into those of our tree."""

from __future__ import annotations

from typing import Protocol, cast

import grpc

from gpushared.client.http import ConnectionLost
from gpushared.domain.model.errors import GpushareError, NotLeader, PermissionRefused, kind_of_code

HINT_METADATA = "gpushare-hint-bin"
"""The daemons send an error's hint in this trailing metadata."""
NOT_LEADER_METADATA = "gpushare-not-leader-bin"
"""A coordinator that does not lead sends this with its refusal; the value is the leader's name, or empty."""
MAX_DETAILS = 300
_AWAY = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED})
_TLS_FAILED = ("CERTIFICATE_VERIFY_FAILED", "Ssl handshake failed", "Hostname Verification Check failed")


class _Status(Protocol):
    """Declare the methods that both of grpc's kinds of errors have, of which only one declares them."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...] | None: ...


def error_of(error: grpc.RpcError, target: str) -> GpushareError:
    """Return the daemon's error, or ConnectionLost if the daemon said nothing, which may pass."""
    status = cast("_Status", error)
    code, hint = status.code(), _hint(status)
    details = _one_line(status.details() or code.name)
    if any(sign in details for sign in _TLS_FAILED):
        return PermissionRefused(
            f"the program at {target} is not this pool's coordinator: {details}",
            hint="is the address right, and the file with the authority? `gpushare pool anchors` makes it",
        )
    if code in _AWAY and not hint:
        return ConnectionLost(
            f"the pool at {target} does not answer: {details}", hint="does it run there? is the port open?"
        )
    leader = _trailing(status, NOT_LEADER_METADATA)
    if leader is not None:
        return NotLeader(details, hint=hint, leader=leader)
    return kind_of_code(code.name.lower())(details, hint=hint)


def ended_early(target: str) -> ConnectionLost:
    """Return the error for a stream that ended before its job did."""
    return ConnectionLost(f"the pool at {target} ended its answer", hint="it may be stopping; try again")


def _hint(status: _Status) -> str:
    return _trailing(status, HINT_METADATA) or ""


def _trailing(status: _Status, name: str) -> str | None:
    for key, value in status.trailing_metadata() or ():
        if key == name and isinstance(value, bytes):
            return value.decode(errors="replace")
    return None


def _one_line(details: str) -> str:
    """Return the end of gRPC's text, where the cause is."""
    cause = details.rpartition("last error: ")[2]
    return "".join(c if c.isprintable() else " " for c in cause)[-MAX_DETAILS:]
