"""Write errors as the two kinds of clients expect them: in Docker's form, or the Connect protocol's."""

from __future__ import annotations

import json

from gpushared.domain.model.errors import Code


def docker_error(message: str) -> bytes:
    """Return the body of an error of the Docker Engine API."""
    return json.dumps({"message": message}).encode()


def connect_error(code: Code, message: str) -> bytes:
    """Return the body of an error of a unary call (https://connectrpc.com/docs/protocol#error-end-stream)."""
    return json.dumps({"code": code, "message": message}).encode()
