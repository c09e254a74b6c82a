"""Steps and their cases, as data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.gpu.child import Done
from bench.gpu.machine import Machine, Need

if TYPE_CHECKING:
    from bench.gpu.lab import Lab

BASIC = (Need.GPU, Need.PROBE)
WITH_MPS = (*BASIC, Need.MPS)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a case saw."""

    values: Mapping[str, Any]
    rc: int | None = 0

    @classmethod
    def of(cls, done: Done, **more: Any) -> Seen:
        """A child's lines, and more."""
        return cls({**done.values(), **more}, done.rc)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to try. ``never``: why this run must not try it, though it belongs to the step."""

    name: str
    tries: str
    run: Callable[[Lab], Awaitable[Seen]] | None = None
    needs: tuple[Need, ...] = WITH_MPS
    seconds: float = 30.0
    never: str = ""

    def skipped_because(self, machine: Machine) -> str | None:
        """Why it cannot run on this machine, or None."""
        if self.never:
            return self.never
        return next((why for need in self.needs if (why := machine.lacks(need))), None)


@dataclass(frozen=True, slots=True)
class Step:
    """Cases that belong together; ``why_last``: why it comes after steps of higher numbers."""

    name: str
    title: str
    cases: tuple[Case, ...] = field(default=())
