"""Requests that no handler is asked, because they break HTTP or a bound."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import h11

from gpushared.audit.line import Origin
from gpushared.domain.request import Caller

NOT_HTTP = "this is not proper HTTP"
FORM = "application/x-www-form-urlencoded"
"""The type of a body that engines read as parameters."""


class Broken(StrEnum):
    """What of HTTP, or of its bounds, a request breaks: the code of its line in the audit."""

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
"""What h11 says by the status that it hints at; 501 is a transfer encoding that nobody knows."""


def broken_by_parser(status: int) -> Broken:
    """What h11 did not take, by its hint."""
    return _BY_PARSER.get(status, Broken.NOT_HTTP)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that no handler was asked, because it breaks HTTP or a bound; empty where not understood.

    ``code``: one of ``Broken``, or of the errors' where a user has too much open at once.
    """

    method: bytes
    target: bytes
    status: int
    message: str
    code: str


def forget(_: Refusal, __: Caller, ___: Origin) -> None:
    """For those who keep no audit."""


class RefusedRequestError(Exception):
    """The request breaks HTTP or a bound: answer and hang up."""

    recorded = False
    """Whether a handler has told the audit."""

    def __init__(self, code: Broken, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = STATUS[code]
        self.message = message


def check_framing(request: h11.Request) -> None:
    """Two ways to tell the end of a body are one too many, whoever is right (request smuggling)."""
    if request.http_version not in {b"1.1", b"1.0"}:
        raise RefusedRequestError(Broken.VERSION, "HTTP/1.1 is spoken here")
    lengths = [value for name, value in request.headers if name == b"content-length"]
    coded = [value for name, value in request.headers if name == b"transfer-encoding"]
    if coded and lengths:
        raise RefusedRequestError(Broken.FRAMING, "the request has both a length and a transfer encoding")
    if coded and request.http_version < b"1.1":
        raise RefusedRequestError(Broken.FRAMING, "HTTP/1.0 knows no transfer encoding")


def kind_of(content_type: bytes | None) -> str:
    """A body's type as the client says, in lower case and without parameters; empty where nothing is said."""
    return (content_type or b"").partition(b";")[0].strip().lower().decode("ascii", "backslashreplace")
