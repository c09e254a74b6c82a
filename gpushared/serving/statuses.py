"""Errors on their way back: from the gRPC status that ``doors.abort`` made of them into the tree."""

from __future__ import annotations

import grpc

from gpushared.domain import errors
from gpushared.domain.errors import GpushareError
from gpushared.serving.doors import HINT_METADATA

_BY_STATUS: dict[grpc.StatusCode, type[GpushareError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.RequestError,
    grpc.StatusCode.FAILED_PRECONDITION: errors.StateConflict,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionRefused,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.LimitReached,
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.TimedOut,
}
NOT_REACHED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


def error_of(error: grpc.aio.AioRpcError, who: str) -> GpushareError:
    """What the other side said; or, where it could not be reached, that ``who`` does not answer."""
    kind = _BY_STATUS.get(error.code(), GpushareError)
    details = error.details() or error.code().name
    hint = _hint(error)
    if error.code() in NOT_REACHED and not hint:
        return kind(f"{who} does not answer: {details}", hint="is it running, and are the clocks right?")
    return kind(details, hint=hint)


def _hint(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == HINT_METADATA and isinstance(value, bytes):
            return value.decode(errors="replace")
    return ""
