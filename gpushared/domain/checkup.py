"""Checks that depend on each other: one cause gives one line.

A check is a pure function from facts to a finding. One whose dependency failed, was skipped or said
all there is to say is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

F = TypeVar("F")


class Status(StrEnum):
    """How a check went. ``SKIPPED``: it does not apply here, or what it depends on is not well."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, in one sentence, and what to do about it, in one sentence or command.

    ``final``: checks that come after it would say the same again. ``because``: the check that said it.
    """

    status: Status
    detail: str
    fix: str = ""
    final: bool = False
    because: str = ""

    @property
    def ends_here(self) -> bool:
        """Whether the checks that come after it are not made."""
        return self.final or self.status in {Status.FAILED, Status.SKIPPED}


@dataclass(frozen=True)  # without slots, which Python 3.11 cannot join with generics
class Check(Generic[F]):
    """A check by its name (kebab-case); those it comes ``after`` stand before it in every list."""

    name: str
    look: Callable[[F], Finding]
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """A check's finding; ``blocked_by`` names the dependency for which it was not made."""

    name: str
    finding: Finding
    blocked_by: str = ""


def ok(detail: str) -> Finding:
    return Finding(Status.OK, detail)


def warning(detail: str, fix: str = "", *, final: bool = False) -> Finding:
    return Finding(Status.WARNING, detail, fix, final)


def failed(detail: str, fix: str = "") -> Finding:
    return Finding(Status.FAILED, detail, fix)


def skipped(detail: str, *, because: str = "") -> Finding:
    return Finding(Status.SKIPPED, detail, because=because)


def examine(checks: Sequence[Check[F]], facts: F) -> tuple[Result, ...]:
    """The result of every check, in their order."""
    results: dict[str, Result] = {}
    for check in checks:
        cause = _cause(check, results)
        if cause:
            results[check.name] = Result(check.name, skipped(f"not made because of {cause}"), cause)
        else:
            finding = check.look(facts)
            results[check.name] = Result(check.name, finding, finding.because)
    return tuple(results.values())


def _cause(check: Check[F], results: dict[str, Result]) -> str:
    """The first cause in the chain of dependencies, or an empty text."""
    for name in check.after:
        earlier = results[name]
        if earlier.finding.ends_here:
            return earlier.blocked_by or name
    return ""


def is_well(results: Iterable[Result]) -> bool:
    """Warnings are no failure."""
    return all(result.finding.status is not Status.FAILED for result in results)
