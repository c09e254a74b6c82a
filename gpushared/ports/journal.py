"""The node's durable memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpushared.domain.gpu import Drained, GpuId
from gpushared.domain.jobs.attempt import Attempt
from gpushared.domain.jobs.contact import Contact
from gpushared.domain.lease import Lease, LeaseId, StoryEntry
from gpushared.domain.policy.standing import Standing, StandingChange


@dataclass(frozen=True, slots=True)
class JournalSnapshot:
    """What a restarted daemon knows: leases that are not over, the next one's number, the drained GPUs."""

    leases: tuple[Lease, ...]
    next_sequence: int
    drained: Mapping[GpuId, Drained] = field(default_factory=dict)
    standing: Standing = field(default_factory=Standing)
    attempts: tuple[Attempt, ...] = ()
    """All records that are not forgotten."""
    contacts: Mapping[str, Contact] = field(default_factory=dict)
    """What is known of each coordinator."""


@dataclass(frozen=True, slots=True)
class JournalWrite:
    """One transaction: leases as they now are, and what was added to their stories."""

    leases: tuple[Lease, ...]
    entries: tuple[tuple[LeaseId, StoryEntry], ...]
    next_sequence: int
    drained: Mapping[GpuId, Drained] | None = None
    """All GPUs that are drained from now on; None = as before."""
    standing: StandingChange | None = None
    """What is new of the projects; None = nothing."""
    attempts: tuple[Attempt, ...] = ()
    """Records of attempts as they now are."""
    contacts: Mapping[str, Contact] = field(default_factory=dict)
    """What is new of coordinators."""
    forgotten_before: float | None = None
    """Final records of attempts that are older are to go; None = none."""


@dataclass(frozen=True, slots=True)
class Past:
    """Which leases that are over are meant; what is left out is no condition.

    ``outcomes``: by the kinds of their records. ``before``: the end and the sequence of a lease; those are
    meant that come after it, newest first.
    """

    since: float = 0.0
    owner: str = ""
    outcomes: frozenset[str] = frozenset()
    before: tuple[float, int] | None = None


class Journal(Protocol):
    """The durable memory. Errors: ``JournalUnavailable`` (nothing of the write happened then)."""

    async def load(self) -> JournalSnapshot: ...

    async def commit(self, writes: Sequence[JournalWrite]) -> None:
        """All of them durably, or none."""
        ...

    async def story(self, lease: LeaseId) -> tuple[StoryEntry, ...]: ...

    async def lease(self, lease: LeaseId) -> Lease | None:
        """A lease, also one that is over."""
        ...

    async def ended(self, limit: int) -> tuple[Lease, ...]:
        """Leases that are over, newest first."""
        ...

    async def past(self, which: Past, limit: int) -> tuple[tuple[Lease, ...], int]:
        """Leases that are over, newest first, and how many more of them there are beyond the limit."""
        ...

    async def close(self) -> None: ...
