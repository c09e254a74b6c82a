"""Turn the gRPC status that ``doors.abort`` made of an error back into an error of the tree."""

from __future__ import annotations

import grpc

from gpushared.domain.model.errors import GpushareError, kind_of_code
from gpushared.serving.doors import HINT_METADATA

NOT_REACHED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


def error_of(error: grpc.aio.AioRpcError, who: str) -> GpushareError:
    """Return the other side's error, or, if it could not be reached, that ``who`` does not answer."""
    kind = kind_of_code(error.code().name.lower())
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
