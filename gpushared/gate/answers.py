"""Write errors as the two kinds of clients expect them: in Docker's form, or the Connect protocol's."""

from __future__ import annotations

import json

from gpushared.domain.model.errors import Code, GpushareError

STATUS = {
    Code.INVALID_ARGUMENT: 400,
    Code.FAILED_PRECONDITION: 409,
    Code.NOT_FOUND: 404,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
}


def http_status(error: GpushareError) -> int:
    """Return the HTTP status that Docker clients and Connect clients both understand best."""
    return STATUS[error.code]


def docker_error(message: str) -> bytes:
    """Return the body of an error of the Docker Engine API."""
    return json.dumps({"message": message}).encode()


def connect_error(code: Code, message: str) -> bytes:
    """Return the body of an error of a unary call (https://connectrpc.com/docs/protocol#error-end-stream)."""
    return json.dumps({"code": code, "message": message}).encode()
