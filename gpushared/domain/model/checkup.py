"""Run checks that depend on each other, so that one cause gives one line.

A check is a pure function from facts to a finding. A check is left out if a check that it depends on failed,
was skipped, or already named the whole cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

F = TypeVar("F")


class Status(StrEnum):
    """Name how a check ended.

    ``SKIPPED``: the check does not apply here, or a check that it depends on did not pass.
    """

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """Hold a check's finding in one sentence, and its remedy in one sentence or command.

    ``final``: later checks would only repeat this finding. ``because``: the check that named this cause
    already.
    """

    status: Status
    detail: str
    fix: str = ""
    final: bool = False
    because: str = ""

    @property
    def ends_here(self) -> bool:
        """Return True if the checks that depend on this one are left out."""
        return self.final or self.status in {Status.FAILED, Status.SKIPPED}


@dataclass(frozen=True)  # without slots, which Python 3.11 cannot join with generics
class Check(Generic[F]):
    """Name a check (kebab-case). The checks that it comes ``after`` stand before it in every list."""

    name: str
    look: Callable[[F], CheckFinding]
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """Hold a check's finding; ``blocked_by`` names the dependency that kept the check from being made."""

    name: str
    finding: CheckFinding
    blocked_by: str = ""


def ok(detail: str) -> CheckFinding:
    return CheckFinding(Status.OK, detail)


def warning(detail: str, fix: str = "", *, final: bool = False) -> CheckFinding:
    return CheckFinding(Status.WARNING, detail, fix, final)


def failed(detail: str, fix: str = "") -> CheckFinding:
    return CheckFinding(Status.FAILED, detail, fix)


def skipped(detail: str, *, because: str = "") -> CheckFinding:
    return CheckFinding(Status.SKIPPED, detail, because=because)


def examine(checks: Sequence[Check[F]], facts: F) -> tuple[CheckOutcome, ...]:
    """Make every check whose dependencies let it, and return the results in the order of the checks."""
    results: dict[str, CheckOutcome] = {}
    for check in checks:
        cause = _cause(check, results)
        if cause:
            results[check.name] = CheckOutcome(check.name, skipped(f"not made because of {cause}"), cause)
        else:
            finding = check.look(facts)
            results[check.name] = CheckOutcome(check.name, finding, finding.because)
    return tuple(results.values())


def _cause(check: Check[F], results: dict[str, CheckOutcome]) -> str:
    """Return the first cause in the chain of dependencies, or an empty text."""
    for name in check.after:
        earlier = results[name]
        if earlier.finding.ends_here:
            return earlier.blocked_by or name
    return ""
