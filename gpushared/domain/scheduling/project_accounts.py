"""Record the projects' accounts: their use, their turns, and quotas that were set at run time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpushared.domain.scheduling.projects import Project
from gpushared.domain.scheduling.use_over_time import Usage

UsageRow = tuple[str, int, int]
"""A row is project, bucket, permille-milliseconds."""


@dataclass(frozen=True, slots=True)
class ProjectAccounts:
    """Hold the accounts as the journal has them."""

    usage: tuple[UsageRow, ...] = ()
    turns: Mapping[str, float] = field(default_factory=dict)
    projects: Mapping[str, Project] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AccountsChange:
    """Hold the changes: the new buckets, all turns, all projects set at run time; None = as before."""

    usage: tuple[UsageRow, ...] = ()
    turns: Mapping[str, float] | None = None
    projects: Mapping[str, Project] | None = None

    @property
    def is_empty(self) -> bool:
        return not self.usage and self.turns is None and self.projects is None


def changed_rows(before: Usage, after: Usage) -> tuple[UsageRow, ...]:
    """Return the buckets that have changed."""
    if before.books is after.books:
        return ()
    return tuple(
        (project, bucket, amount)
        for project, buckets in after.books.items()
        for bucket, amount in buckets.items()
        if before.books.get(project, {}).get(bucket) != amount
    )


def usage_of(rows: Iterable[UsageRow], half_life_seconds: float) -> Usage:
    """Return the usage that these rows record."""
    books: dict[str, dict[int, int]] = {}
    for project, bucket, amount in rows:
        books.setdefault(project, {})[bucket] = amount
    return Usage(half_life_seconds, books)
