"""Describe one line of the audit, and the process at the other end of a connection."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpushared.domain.model.errors import GpushareError, http_status

MAX_NAME = 128
MAX_TEXT = 400
_LENGTHS = {
    "user": MAX_NAME,
    "method": MAX_NAME,
    "endpoint": 256,
    "container": MAX_NAME,
    "name": MAX_NAME,
    "text": MAX_TEXT,
}
DIGESTED_BYTES = 4 * 1024 * 1024
"""Digest bodies up to this many bytes; a longer body is a stream, which nobody checks, without a digest."""
FACTS = ("method", "endpoint", "container", "name", "digest", "status", "code", "text", "more")
"""These fields of a line follow its origin; journald, the file and the API have them under these names."""
CUT = "..."
OK = 200
NOBODY_HERE = -1
"""This uid stands for a caller without one on this machine: a person of a pool, a node, an address."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Identify the process that opened a connection; fields are 0 and empty if it is unknown."""

    pid: int = 0
    executable: str = ""
    """This is the target of ``/proc/PID/exe`` when the connection was opened."""
    started_ticks: int = field(default=0, compare=False)
    """The process started at this time, in clock ticks since the boot; 0 if the process is not certain."""


UNKNOWN = Origin()


@dataclass(frozen=True, slots=True)
class AuditLine:
    """Record a request that changes something, or that was refused.

    A line makes its texts printable and cuts them, whatever their source. No field holds a body, a header or
    a query.
    """

    at: float
    """This is the time in epoch seconds."""
    uid: int
    """This is the caller's uid; -1 for a caller without one on this machine."""
    user: str
    """This is a user's name here; in a pool ``ada@ws1``, ``node ws1``, or the address of an unknown caller.
    """
    origin: Origin
    method: str
    endpoint: str
    """This is the checked path without version and query, or the name of a call of the daemon's own API."""
    container: str = ""
    """This is the container's full id."""
    name: str = ""
    """The request named this object: a container, image, network, volume, lease, GPU, job, node, person or
    token."""
    digest: str = ""
    """This is SHA-256 of the body as sent on, or as read if the request was refused; empty without a body."""
    status: int = 0
    """This is the status of the answer; 0 if there was none."""
    code: str = ""
    """This is the error's code if the daemon itself refused; empty if the engine answered, or for a success.
    """
    text: str = ""
    """This is the error's sentence, or another remark."""
    more: int = 0
    """The line stands for this many further similar lines."""

    def __post_init__(self) -> None:
        for name, length in _LENGTHS.items():
            object.__setattr__(self, name, bounded(getattr(self, name), length))

    @property
    def refused(self) -> bool:
        """Return True if the daemon refused the request."""
        return bool(self.code)


def line_now(
    uid: int,
    user: str,
    method: str,
    endpoint: str,
    *,
    origin: Origin = UNKNOWN,
    container: str = "",
    name: str = "",
    digest: str = "",
    status: int = OK,
    code: str = "",
    text: str = "",
    error: GpushareError | None = None,
) -> AuditLine:
    """Return a line of this moment. An error gives status and code, and its sentence if ``text`` is empty."""
    if error is not None:
        status, code, text = http_status(error), error.code, text or error.message
    return AuditLine(
        time.time(), uid, user, origin, method, endpoint, container, name, digest, status, code, text
    )


Sink = Callable[[AuditLine], None]
"""A sink accepts a line at once; it never raises and never waits."""


def ignore(_: AuditLine) -> None:
    """Drop the line; callers that keep no audit use this sink."""


def bounded(text: str, length: int) -> str:
    """Return the text as a line may hold it."""
    if len(text) <= length and text.isprintable():
        return text
    clean = "".join(c if c.isprintable() else "?" for c in text[: length + 1])
    return clean if len(clean) <= length else clean[: length - len(CUT)] + CUT


@dataclass(slots=True)
class CallRecord:
    """Hold the facts that handlers give about one request, until the answer begins."""

    digest: str | None = None
    """This is the digest of the body sent to the engine (``digest_of``); None if the body is passed on."""
    container: str = ""
    """This is the full id of the request's container."""
    name: str = ""
    note: str = ""
    """This sentence has a further fact for the line's reader, and no part of a body, header or query."""


def digest_of(body: bytes) -> str:
    """Return SHA-256 in hexadecimal; empty for no body."""
    return hashlib.sha256(body).hexdigest() if body else ""
