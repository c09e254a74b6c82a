"""Write errors in Docker's form or the Connect protocol's, and refuse requests that break HTTP or a bound."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

import h11

from gpushared.domain.model.errors import Code
from gpushared.domain.model.request import Caller
from gpushared.storage.audit.line import Origin

NOT_HTTP = "this is not proper HTTP"
FORM = "application/x-www-form-urlencoded"
"""Engines read a body of this type as parameters."""


def docker_error(message: str) -> bytes:
    """Return the body of an error of the Docker Engine API."""
    return json.dumps({"message": message}).encode()


def connect_error(code: Code, message: str) -> bytes:
    """Return the body of an error of a unary call (https://connectrpc.com/docs/protocol#error-end-stream)."""
    return json.dumps({"code": code, "message": message}).encode()


class Broken(StrEnum):
    """Name the broken part of HTTP, or the broken bound, of a request: the code of its line in the audit."""

    NOT_HTTP = "not-http"
    VERSION = "http-version"
    FRAMING = "framing"
    HEAD_TOO_LONG = "head-too-long"
    HEAD_TOO_SLOW = "head-too-slow"
    BODY_TOO_LONG = "body-too-long"
    BODY_TOO_SLOW = "body-too-slow"


STATUS = {
    Broken.NOT_HTTP: 400,
    Broken.VERSION: 505,
    Broken.FRAMING: 400,
    Broken.HEAD_TOO_LONG: 431,
    Broken.HEAD_TOO_SLOW: 408,
    Broken.BODY_TOO_LONG: 413,
    Broken.BODY_TOO_SLOW: 408,
}
_BY_PARSER = {431: Broken.HEAD_TOO_LONG, 501: Broken.FRAMING}
"""h11 names the fault by a suggested status; 501 is an unknown transfer encoding."""


def broken_by_parser(status: int) -> Broken:
    """Return the fault that h11 found, by its suggested status."""
    return _BY_PARSER.get(status, Broken.NOT_HTTP)


@dataclass(frozen=True, slots=True)
class RequestRefusal:
    """Hold a request that was refused before any handler; fields that were not understood are empty.

    ``code`` is one of ``Broken``, or an error's code if a user has too much open at once.
    """

    method: bytes
    target: bytes
    status: int
    message: str
    code: str


def forget(_: RequestRefusal, __: Caller, ___: Origin) -> None:
    """Do nothing, for servers that keep no audit."""


class RefusedRequestError(Exception):
    """Report a request that breaks HTTP or a bound: answer and hang up."""

    recorded = False
    """This is True if a handler has written the audit's line."""

    def __init__(self, code: Broken, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = STATUS[code]
        self.message = message


def check_framing(request: h11.Request) -> None:
    """Refuse a request that gives its body's end in two ways (request smuggling)."""
    if request.http_version not in {b"1.1", b"1.0"}:
        raise RefusedRequestError(Broken.VERSION, "HTTP/1.1 is spoken here")
    lengths = [value for name, value in request.headers if name == b"content-length"]
    coded = [value for name, value in request.headers if name == b"transfer-encoding"]
    if coded and lengths:
        raise RefusedRequestError(Broken.FRAMING, "the request has both a length and a transfer encoding")
    if coded and request.http_version < b"1.1":
        raise RefusedRequestError(Broken.FRAMING, "HTTP/1.0 knows no transfer encoding")


def kind_of(content_type: bytes | None) -> str:
    """Return the client's type of the body in lower case, without parameters; empty for none."""
    return (content_type or b"").partition(b";")[0].strip().lower().decode("ascii", "backslashreplace")
