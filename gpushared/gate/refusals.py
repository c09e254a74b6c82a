"""Requests that no handler is asked, because they break HTTP or a bound."""

from __future__ import annotations

from dataclasses import dataclass

import h11

from gpushared.audit.line import Origin
from gpushared.domain.request import Caller

NOT_HTTP = "this is not proper HTTP"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that no handler was asked, because it breaks HTTP or a bound; empty where not understood."""

    method: bytes
    target: bytes
    status: int
    message: str


def forget(_: Refusal, __: Caller, ___: Origin) -> None:
    """For those who keep no audit."""


class RefusedRequestError(Exception):
    """The request breaks HTTP or a bound: answer and hang up."""

    recorded = False
    """Whether a handler has told the audit."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def check_framing(request: h11.Request) -> None:
    """Two ways to tell the end of a body are one too many, whoever is right (request smuggling)."""
    if request.http_version not in {b"1.1", b"1.0"}:
        raise RefusedRequestError(505, "HTTP/1.1 is spoken here")
    lengths = [value for name, value in request.headers if name == b"content-length"]
    coded = [value for name, value in request.headers if name == b"transfer-encoding"]
    if coded and lengths:
        raise RefusedRequestError(400, "the request has both a length and a transfer encoding")
    if coded and request.http_version < b"1.1":
        raise RefusedRequestError(400, "HTTP/1.0 knows no transfer encoding")


def kind_of(content_type: bytes | None) -> str:
    """A body's type as the client says, in lower case and without parameters; empty where nothing is said."""
    return (content_type or b"").partition(b";")[0].strip().lower().decode("ascii", "backslashreplace")
