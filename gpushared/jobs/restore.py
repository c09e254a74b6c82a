"""Read the state of a coordinator's rules from its store; detect a store that has lost records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from gpushared.domain.jobs.coordinator import restore
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import Job
from gpushared.domain.jobs.member import Member
from gpushared.domain.model.lease import JobId
from gpushared.domain.scheduling.project_accounts import ProjectAccounts
from gpushared.jobs.job_records import (
    JOB,
    MEMBER,
    PROJECT,
    RECOVERING,
    TURN,
    USAGE,
    Changes,
    cut,
    member_bytes,
    read_accounts,
    read_job,
    read_member,
)
from gpushared.jobs.job_search import Archive
from gpushared.ports.job_store import JobStore, Record

log = logging.getLogger(__name__)

PAGE = 500
"""Read and decode this many records at a time, off the event loop."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """Hold all unfinished jobs and the newest finished ones. ``recovering``: a recovery was under way."""

    revision: int
    jobs: tuple[Job, ...]
    members: tuple[Member, ...]
    accounts: ProjectAccounts
    recovering: bool


async def load(store: JobStore, ended_kept: int) -> StoredState:
    """Read the store. Raises the store's errors, and StoreUnavailable for an unreadable record."""
    live = await load_jobs(store)
    over = await newest_over(store, ended_kept)
    over += await awaited(store, live, {job.id for job in over})
    members, accounts = await load_members(store), await load_accounts(store)
    mark = await store.load(RECOVERING)
    return StoredState(
        revision=mark.revision,
        jobs=(*live, *over),
        members=members,
        accounts=read_accounts(accounts),
        recovering=RECOVERING in mark.records,
    )


async def load_members(store: JobStore) -> tuple[Member, ...]:
    records = (await store.load(MEMBER)).records
    return tuple(read_member(key, record.value) for key, record in records.items())


async def load_accounts(store: JobStore) -> dict[str, Record]:
    """Return the records of usage, turns and projects."""
    records: dict[str, Record] = {}
    for prefix in (USAGE, TURN, PROJECT):
        records |= (await store.load(prefix)).records
    return records


async def restored(
    store: JobStore,
    rules: PoolRules,
    *,
    epoch: int,
    now: float,
    ahead_seconds: float = 0.0,
    enrolled: Iterable[Member] = (),
    is_behind: bool | None = None,
    followed: StoredState | None = None,
) -> PoolState:
    """Read the state of a coordinator that leads with ``epoch``, and store what this changes.

    ``now`` and ``ahead_seconds`` are by the coordinator's clock. ``enrolled`` are the members with a certificate
    of the pool's authority. ``is_behind`` is the result of ``JobStore.is_behind``. ``followed`` is the whole
    store, if the caller has followed it, and nothing of it is missing. Raises the store's errors.
    """
    stored = followed or await load(store, rules.ended_kept)
    enrolled = tuple(enrolled)
    not_in_store = _not_in_store(stored, enrolled)
    has_lost = _has_lost_records(stored, not_in_store, is_behind=is_behind)
    # With very many jobs this takes long: the leader's lease would end if the event loop waited.
    state = await asyncio.to_thread(
        restore,
        rules,
        epoch=epoch,
        jobs=stored.jobs,
        members=(*stored.members, *not_in_store),
        accounts=stored.accounts,
        revision=stored.revision,
        now=now,
        ahead_seconds=ahead_seconds,
        from_copy=stored.recovering or has_lost,
        complete=followed is not None,
    )
    forgotten = _forgotten_for_good(stored, enrolled)
    state.waived |= {member.name for member in forgotten}
    changes = _changes(stored, state, (*not_in_store, *_excuse(forgotten, state)))
    state.revision = await _write(store, epoch, changes) or state.revision
    return state


def _not_in_store(stored: StoredState, enrolled: Iterable[Member]) -> list[Member]:
    """Return the members that have a certificate and are not in the store."""
    stored_names = {member.name for member in stored.members}
    return [member for member in enrolled if member.name not in stored_names]


def _forgotten_for_good(stored: StoredState, enrolled: Iterable[Member]) -> list[Member]:
    """Return forgotten members without a certificate: they have not come back and can report nothing.

    A recovery would wait for them for ever.
    """
    signed = {member.name for member in enrolled}
    forgotten = (member for member in stored.members if member.forgotten_at is not None)
    return [member for member in forgotten if member.name not in signed]


def _excuse(forgotten: Iterable[Member], state: PoolState) -> list[Member]:
    """Mark members that a recovery does not await, and return them: after a return they may know more."""
    if state.recovering_since is None:
        return []
    excused = [
        replace(state.members[member.name], excused=True) for member in forgotten if not member.excused
    ]
    for member in excused:
        state.members = state.members.put(member.name, member)
    return excused


def _changes(stored: StoredState, state: PoolState, members: Iterable[Member]) -> list[Changes]:
    """Return the changes to the store: these members, and the recovery mark if it changed."""
    changes: list[Changes] = [{MEMBER + member.name: member_bytes(member)} for member in members]
    if (state.recovering_since is not None) != stored.recovering:
        changes.append({RECOVERING: b"" if state.recovering_since is not None else None})
    return changes


def _has_lost_records(stored: StoredState, not_in_store: Sequence[Member], *, is_behind: bool | None) -> bool:
    """Return True if the store has less than it once had, and log that.

    If the store is as far as it ever was, the coordinator had just signed these members' certificates when it ended.
    """
    if not (bool(not_in_store) if is_behind is None else is_behind):
        return False
    log.warning(
        "the store is an old copy, or lost some: revision=%d lacking=%d nodes",
        stored.revision,
        len(not_in_store),
    )
    return True


async def _write(store: JobStore, epoch: int, changes: Sequence[Changes]) -> int:
    revision = 0
    for chunk in cut([changes]):
        if chunk.changes:
            revision = await store.commit(chunk.transaction(epoch))
    return revision


async def load_jobs(store: JobStore) -> list[Job]:
    """Return all jobs that are not over."""
    jobs: list[Job] = []
    after = ""
    while page := await store.page(JOB, PAGE, after=after):
        jobs += await asyncio.to_thread(_read, page)
        after = page[-1][0]
    return jobs


def _read(page: Sequence[tuple[str, Record]]) -> list[Job]:
    return [read_job(key, record.value) for key, record in page]


async def awaited(store: JobStore, live: Sequence[Job], finished: Collection[JobId]) -> list[Job]:
    """Return finished jobs that unfinished jobs wait for, even if they ended long ago."""
    there = {job.id for job in live}.union(finished)
    awaited_ids = {after.job for job in live for after in job.awaits} - there
    archive = Archive(store)
    awaited_jobs = [await archive.get(job) for job in sorted(awaited_ids)]
    return [job for job in awaited_jobs if job is not None]


async def newest_over(store: JobStore, limit: int) -> list[Job]:
    """Return the jobs that ended last, at most ``limit``."""
    archive = Archive(store)
    jobs: list[Job] = []
    token = ""
    while len(jobs) < limit:
        page = await archive.page(min(PAGE, limit - len(jobs)), token)
        jobs += page.jobs
        token = page.next_token
        if not token:
            break
    return jobs
