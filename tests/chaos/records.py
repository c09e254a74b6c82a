"""What the harness itself did and heard in a run: the judge's second source beside the diaries."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from tests.chaos.plan import FaultKind

OVER: Final = frozenset({"succeeded", "failed", "cancelled"})


def now() -> float:
    """Seconds since the machine's boot, as in the diaries."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Span:
    """A fault as it really was, until its target served again."""

    kind: FaultKind
    target: str
    began: float
    ended: float
    role: str = ""
    """What the target was when it was hit, where that changes: ``leader``, ``standby``."""

    def show(self) -> str:
        role = f" ({self.role})" if self.role else ""
        return f"{self.kind} {self.target}{role} {self.began:.2f}..{self.ended:.2f}"


@dataclass(slots=True)
class Accepted:
    """A job whose id was told to us. ``cancelled_at``: when the answer to its cancellation came."""

    key: str
    index: str
    job: str
    pool: bool
    stop_after_seconds: int = 0
    cancelled_at: float | None = None
    is_cancel_asked: bool = False
    """Its cancellation was asked for, whatever was answered: it may be carried out later."""
    state: str | None = None
    """What the product says at the end; None where it does not know the job."""
    exit_code: int | None = None
    reason: str = ""

    @property
    def work(self) -> tuple[str, str]:
        return self.key, self.index

    @property
    def may_be_cancelled(self) -> bool:
        return self.is_cancel_asked or self.cancelled_at is not None


@dataclass(slots=True)
class Call:
    """A client's command. ``code`` is None where it never ended by itself.

    ``command``: ``submit``, ``wait``, ``logs``, ``run``, ``run --pool``, ``cancel``, ``pause`` and so on.
    """

    name: str
    command: str
    key: str
    node: str
    jobs: tuple[str, ...]
    began: float
    ended: float = 0.0
    code: int | None = None
    out: str = ""
    err: str = ""
    beats: int = 0
    """How many lines its program writes, where that is known."""

    def show(self) -> str:
        errors = " | ".join(line for line, _ in groupby(self.err.strip().splitlines()))
        return (
            f"{self.name} on {self.node}: `{self.command}` {self.began:.2f}..{self.ended:.2f} exit "
            f"{self.code}; stderr: {errors[-500:]}"
        )


@dataclass(frozen=True, slots=True)
class Violation:
    """One promise that was not kept. ``rule`` names the promise; ``evidence`` has a line for each finding."""

    rule: str
    what: str
    evidence: tuple[str, ...] = ()


@dataclass(slots=True)
class Record:
    """All that a run left. ``gpus``: the node and the memory of each GPU by its UUID."""

    gpus: dict[str, tuple[str, int]]
    accepted: list[Accepted] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    found: list[Violation] = field(default_factory=list)
    """What the harness saw itself: processes that ended, tracebacks, what was left in the end."""
    stopped: dict[str, float] = field(default_factory=dict)
    """When we ended the containers of a key, by the key."""
    removed: set[str] = field(default_factory=set)
    """Keys whose containers have ``--rm``."""
