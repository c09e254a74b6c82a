"""Declare the port for the node's durable memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.node_messages import Contact
from gpushared.domain.model.gpu import Drained, GpuId
from gpushared.domain.model.lease import Lease, LeaseId, StoryEntry
from gpushared.domain.model.span import Span
from gpushared.domain.scheduling.project_accounts import AccountsChange, ProjectAccounts


@dataclass(frozen=True, slots=True)
class JournalSnapshot:
    """Hold the memory of a restarted daemon: open leases, the next lease's number, the drained GPUs."""

    leases: tuple[Lease, ...]
    next_sequence: int
    drained: Mapping[GpuId, Drained] = field(default_factory=dict)
    accounts: ProjectAccounts = field(default_factory=ProjectAccounts)
    attempts: tuple[Attempt, ...] = ()
    """The field has all records that are not forgotten."""
    contacts: Mapping[str, Contact] = field(default_factory=dict)
    """The field has the contacts with each coordinator."""


@dataclass(frozen=True, slots=True)
class JournalWrite:
    """Hold one transaction: leases as they now are, and the new entries of their stories."""

    leases: tuple[Lease, ...]
    entries: tuple[tuple[LeaseId, StoryEntry], ...]
    next_sequence: int
    drained: Mapping[GpuId, Drained] | None = None
    """The field has all GPUs that are drained from now on; None means no change."""
    accounts: AccountsChange | None = None
    """The field has the changes of the projects' accounts; None means no change."""
    attempts: tuple[Attempt, ...] = ()
    """The field has records of attempts as they now are."""
    contacts: Mapping[str, Contact] = field(default_factory=dict)
    """The field has the new contacts with coordinators."""
    forgotten_before: float | None = None
    """Final records of attempts before this time are deleted; None deletes none."""
    spans: tuple[Span, ...] = ()
    """The field has the spans that are over; the journal keeps them until ``forget_spans``."""


@dataclass(frozen=True, slots=True)
class PastLeases:
    """Select finished leases; a field that is left out is no condition.

    ``outcomes`` are the kinds of their records. ``before`` is the end and the sequence of a lease; the
    selection has the leases that come after it, newest first.
    """

    since: float = 0.0
    owner: str = ""
    outcomes: frozenset[str] = frozenset()
    before: tuple[float, int] | None = None


class Journal(Protocol):
    """Keep the durable memory. Raises ``JournalUnavailable`` (then nothing of the write happened)."""

    async def load(self) -> JournalSnapshot: ...

    async def commit(self, writes: Sequence[JournalWrite]) -> None:
        """Write all of these durably, or none."""
        ...

    async def story(self, lease: LeaseId) -> tuple[StoryEntry, ...]: ...

    async def lease(self, lease: LeaseId) -> Lease | None:
        """Return a lease, also a finished one."""
        ...

    async def ended(self, limit: int) -> tuple[Lease, ...]:
        """Return finished leases, newest first."""
        ...

    async def past(self, query: PastLeases, limit: int) -> tuple[tuple[Lease, ...], int]:
        """Return finished leases, newest first, and how many more there are beyond the limit."""
        ...

    async def identity(self, newest_span: int = 0) -> int:
        """Return a number that distinguishes this journal from others that the node had or will have.

        A journal that never had the span of number ``newest_span`` is an older copy of the journal that had
        it, and gets a new number.
        """
        ...

    async def spans(self, limit: int) -> tuple[tuple[int, Span], ...]:
        """Return the oldest spans that are not forgotten, each with its number; numbers are never used twice."""
        ...

    async def forget_spans(self, newest: int) -> None:
        """Forget the spans up to this number, because the history has them."""
        ...

    async def close(self) -> None: ...
