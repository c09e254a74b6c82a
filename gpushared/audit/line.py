"""One line of the audit, and who the other end of a connection is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

MAX_ENDPOINT = 256
MAX_NAME = 128
MAX_TEXT = 400
DIGESTED_BYTES = 4 * 1024 * 1024
"""Of a body; one that is longer is a stream, which nobody judges, and has no digest."""
CUT = "..."


@dataclass(frozen=True, slots=True)
class Origin:
    """The process that opened a connection; 0 and empty where it cannot be known any more."""

    pid: int = 0
    executable: str = ""
    """``/proc/PID/exe`` when the connection was opened."""
    started_ticks: int = field(default=0, compare=False)
    """When the process began, in clock ticks since the boot; 0 where it is not certain that it is the one."""


UNKNOWN = Origin()
NOBODY_HERE = -1
"""The uid of somebody who has none on this machine: a person of a pool, a node, an address."""


@dataclass(frozen=True, slots=True)
class AuditLine:
    """What somebody asked for that changes something, or that was refused.

    Texts are printable and bounded, whatever they are made from. No field holds a body, a header or a query.
    """

    at: float
    """Epoch seconds."""
    uid: int
    """-1 for whoever has none here."""
    user: str
    """A name here; of a pool ``ada@ws1``, ``node ws1``, or the address of whoever is not known."""
    origin: Origin
    method: str
    endpoint: str
    """The judged path without its version and query, or the name of a call of the daemon's own API."""
    container: str = ""
    """Its full id."""
    name: str = ""
    """What the request named: a container, image, network, volume, lease, GPU, job, node, person or token."""
    digest: str = ""
    """SHA-256 of the body as it went on, or as it was read where it was refused; empty without one."""
    status: int = 0
    """Of the answer; 0 where there was none."""
    code: str = ""
    """The error's, where the daemon itself refused; empty where the answer is the engine's, or a success."""
    text: str = ""
    """The error's sentence, or what else there is to say."""
    more: int = 0
    """How many that are like it this line stands for besides."""

    @property
    def refused(self) -> bool:
        """Whether the daemon said no."""
        return bool(self.code)


Sink = Callable[[AuditLine], None]
"""Takes a line over at once; never raises, never waits."""


def ignore(_: AuditLine) -> None:
    """The sink of those that keep no audit."""


def bounded(text: str, length: int) -> str:
    """The text as a line may hold it."""
    clean = "".join(c if c.isprintable() else "?" for c in text[: length + 1])
    return clean if len(clean) <= length else clean[: length - len(CUT)] + CUT
