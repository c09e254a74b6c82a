"""Fake a journal that forgets everything with the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Self

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.node_messages import Contact
from gpushared.domain.model.errors import JournalUnavailable
from gpushared.domain.model.gpu import Drained, GpuId
from gpushared.domain.model.lease import (
    STORY_KEPT_IN_MEMORY,
    AttemptKey,
    Ended,
    Lease,
    LeaseId,
    StoryEntry,
)
from gpushared.domain.model.span import Span
from gpushared.domain.scheduling.project_accounts import AccountsChange, ProjectAccounts
from gpushared.domain.scheduling.projects import Project
from gpushared.ports import JournalSnapshot, JournalWrite, PastLeases
from gpushared.storage.records import kind_of
from gpushared.testing.fake_clock import Failing

_IDENTITIES = count(1)


class MemoryJournal(Failing):
    """Keep leases as durably as the process lives: a fake ``Journal``.

    ``commits`` records every commit that happened. ``snapshot_after(n)`` is the journal that a daemon would
    find if it had been killed right after the n-th of them, so a test can crash it at every write.
    """

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[tuple[JournalWrite, ...]] = []
        self.closed = False
        self._leases: dict[LeaseId, Lease] = {}
        self._stories: dict[LeaseId, list[StoryEntry]] = {}
        self._next_sequence = 1
        self._drained: Mapping[GpuId, Drained] = {}
        self._usage: dict[tuple[str, int], int] = {}
        self._turns: dict[str, float] = {}
        self._projects: Mapping[str, Project] = {}
        self._attempts: dict[tuple[str, AttemptKey], Attempt] = {}
        self._contacts: dict[str, Contact] = {}
        self._spans: dict[int, Span] = {}
        self._span_count = 0
        self._identity = next(_IDENTITIES)

    def snapshot_after(self, commits: int) -> Self:
        """Return a new journal that holds the first ``commits`` commits; 0 is an empty one."""
        twin = type(self)()
        twin._identity = self._identity  # noqa: SLF001 - its own class
        for writes in self.commits[:commits]:
            twin._apply(writes)  # noqa: SLF001 - its own class
        return twin

    async def load(self) -> JournalSnapshot:
        self._may_fail()
        open_leases = [lease for lease in self._leases.values() if not isinstance(lease.state, Ended)]
        by_sequence = sorted(open_leases, key=lambda lease: lease.sequence)
        stories = tuple(map(self._with_story, by_sequence))
        attempts = tuple(attempt for _, attempt in sorted(self._attempts.items(), key=lambda pair: pair[0]))
        return JournalSnapshot(
            stories, self._next_sequence, self._drained, self._accounts(), attempts, dict(self._contacts)
        )

    async def commit(self, writes: Sequence[JournalWrite]) -> None:
        self._may_fail()
        self._check(writes)
        self._apply(tuple(writes))

    async def story(self, lease: LeaseId) -> tuple[StoryEntry, ...]:
        self._may_fail()
        return tuple(self._stories.get(lease, ()))

    async def lease(self, lease: LeaseId) -> Lease | None:
        self._may_fail()
        stored = self._leases.get(lease)
        return self._with_story(stored) if stored else None

    async def ended(self, limit: int) -> tuple[Lease, ...]:
        self._may_fail()
        over = [
            (lease.state.at, lease.sequence, lease)
            for lease in self._leases.values()
            if isinstance(lease.state, Ended)
        ]
        return tuple(
            lease for _, _, lease in sorted(over, key=lambda row: row[:2], reverse=True)[: max(0, limit)]
        )

    async def past(self, query: PastLeases, limit: int) -> tuple[tuple[Lease, ...], int]:
        over = [lease for lease in await self.ended(len(self._leases)) if _matches(lease, query)]
        return tuple(over[: max(0, limit)]), max(0, len(over) - max(0, limit))

    async def identity(self, newest_span: int = 0) -> int:
        self._may_fail()
        if newest_span > self._span_count:
            self._identity, self._span_count = next(_IDENTITIES), newest_span
        return self._identity

    async def spans(self, limit: int) -> tuple[tuple[int, Span], ...]:
        self._may_fail()
        return tuple(self._spans.items())[:limit]

    async def forget_spans(self, newest: int) -> None:
        self._may_fail()
        self._spans = {number: span for number, span in self._spans.items() if number > newest}

    async def close(self) -> None:
        self.closed = True

    def _with_story(self, lease: Lease) -> Lease:
        return replace(lease, story=tuple(self._stories.get(lease.id, ())[-STORY_KEPT_IN_MEMORY:]))

    def _check(self, writes: Sequence[JournalWrite]) -> None:
        """Refuse all that the database's keys refuse: a number given twice, a line of an unknown lease."""
        owners = {lease.sequence: lease.id for lease in self._leases.values()}
        for lease in (lease for write in writes for lease in write.leases):
            if owners.setdefault(lease.sequence, lease.id) != lease.id:
                raise JournalUnavailable(f"sequence {lease.sequence} belongs to {owners[lease.sequence]}")
        known_leases = self._leases.keys() | owners.values()
        if stray := {lease for write in writes for lease, _ in write.entries} - known_leases:
            raise JournalUnavailable(f"a story entry for {min(stray)}, which the journal does not know")

    def _apply(self, writes: tuple[JournalWrite, ...]) -> None:
        self.commits.append(writes)
        for write in writes:
            for lease in write.leases:
                self._leases[lease.id] = replace(lease, story=())
            for lease_id, entry in write.entries:
                self._stories.setdefault(lease_id, []).append(entry)
            self._next_sequence = write.next_sequence
            if write.drained is not None:
                self._drained = dict(write.drained)
            if write.accounts is not None:
                self._apply_accounts(write.accounts)
            for span in write.spans:
                self._span_count += 1
                self._spans[self._span_count] = span
            self._apply_attempts(write)

    def _apply_attempts(self, write: JournalWrite) -> None:
        self._attempts |= {(attempt.coordinator, attempt.key): attempt for attempt in write.attempts}
        self._contacts |= write.contacts
        if (before := write.forgotten_before) is not None:
            self._attempts = {
                key: attempt
                for key, attempt in self._attempts.items()
                if not (attempt.state.is_final and attempt.at < before)
            }

    def _apply_accounts(self, change: AccountsChange) -> None:
        self._usage |= {(project, bucket): amount for project, bucket, amount in change.usage}
        self._turns |= change.turns or {}
        if change.projects is not None:
            self._projects = dict(change.projects)

    def _accounts(self) -> ProjectAccounts:
        rows = tuple((project, bucket, amount) for (project, bucket), amount in sorted(self._usage.items()))
        return ProjectAccounts(rows, dict(self._turns), self._projects)


def _matches(lease: Lease, query: PastLeases) -> bool:
    assert isinstance(lease.state, Ended), "only of those that are over"
    return (
        lease.state.at >= query.since
        and query.owner in {"", lease.owner_name}
        and (not query.outcomes or kind_of(type(lease.state.outcome)) in query.outcomes)
        and (query.before is None or (lease.state.at, lease.sequence) < query.before)
    )
