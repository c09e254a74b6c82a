"""Follow a store that another coordinator writes, so that this one can lead at once when that one ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn, TypeVar

from gpushared.domain.jobs.job import Ended, Job, NodeName
from gpushared.domain.jobs.member import Member
from gpushared.domain.model.backoff import backoff_seconds
from gpushared.domain.model.errors import GpushareError, TimedOut
from gpushared.domain.model.lease import JobId
from gpushared.jobs.job_records import (
    ENDED,
    JOB,
    MEMBER,
    PROJECT,
    RECOVERING,
    TURN,
    USAGE,
    read_accounts,
    read_job,
    read_member,
)
from gpushared.jobs.restore import StoredState, awaited, load_accounts, load_jobs, load_members, newest_over
from gpushared.ports.job_store import Conflict, Record, SharedStore, StoreChange

log = logging.getLogger(__name__)

FIRST_SECONDS, LONGEST_SECONDS = 0.5, 5.0
"""Try again after so long: a record that this version cannot read costs a load of the whole store each time."""
_ACCOUNTS = (USAGE, TURN, PROJECT)

_Key = TypeVar("_Key")
_Copy = TypeVar("_Copy")


class StoreFollower:
    """Keep a decoded copy of the store's jobs, members and accounts.

    ``on_other_change`` is called with the key of each other record that changed, and with an empty key if
    changes may have been missed.
    """

    def __init__(self, store: SharedStore, ended_kept: int, on_other_change: Callable[[str], None]) -> None:
        self._store = store
        self._ended_kept = ended_kept
        self._on_other_change = on_other_change
        self._jobs: dict[JobId, Job] = {}
        self._over: dict[JobId, Job] = {}
        self._members: dict[NodeName, Member] = {}
        self._accounts: dict[str, Record] = {}
        self._recovering = False
        self._changed = asyncio.Event()
        self.revision = 0
        self.problem: GpushareError | None = None
        """Why the store cannot be followed now; None while it is followed."""

    async def load(self) -> None:
        """Read all of the store. Raises the store's errors."""
        # Changes after this revision are seen again by the watch: each record is as its last change left it.
        mark = await self._store.load(RECOVERING)
        live = await load_jobs(self._store)
        over = await newest_over(self._store, self._ended_kept)
        members = await load_members(self._store)
        accounts = await load_accounts(self._store)
        self._jobs = {job.id: job for job in live}
        self._over = {job.id: job for job in over}
        self._members = {member.name: member for member in members}
        self._accounts = accounts
        self._recovering = RECOVERING in mark.records
        self._reach(mark.revision)

    async def follow(self) -> NoReturn:
        """Follow for ever, after ``load``; a store that does not answer is tried again."""
        failures = 0
        while True:
            try:
                if self.problem is not None:
                    await self.load()
                    self.problem = None
                    self._on_other_change("")
                async for change in self._store.watch("", self.revision):
                    self._apply(change)
                    failures = 0
            except Conflict as error:
                self.problem = error
            except GpushareError as error:
                log.warning("the store is not followed: %s", error)
                self.problem = error
                failures += 1
                await asyncio.sleep(backoff_seconds(failures, first=FIRST_SECONDS, longest=LONGEST_SECONDS))

    async def until_reached(self, revision: int, seconds: float) -> None:
        """Wait until all changes up to this revision were followed. Raises TimedOut."""
        try:
            async with asyncio.timeout(seconds):
                while self.revision < revision:
                    await self._changed.wait()
        except TimeoutError:
            raise TimedOut(f"the store was not followed up to revision {revision} in {seconds:g} s") from None

    async def stored(self) -> StoredState:
        """Return the store as it was followed so far. Raises the store's errors."""
        live = tuple(self._jobs.values())
        over = tuple(self._over.values())
        members, revision, recovering = tuple(self._members.values()), self.revision, self._recovering
        accounts = await asyncio.to_thread(read_accounts, dict(self._accounts))
        over += tuple(await awaited(self._store, live, {job.id for job in over}))
        return StoredState(revision, (*live, *over), members, accounts, recovering)

    def _apply(self, change: StoreChange) -> None:
        """Apply one change. Raises StoreUnavailable for a record of another version."""
        key, value = change.key, change.value
        if key.startswith(JOB):
            _put(self._jobs, JobId(key.removeprefix(JOB)), read_job(key, value) if value else None)
        elif key.startswith(ENDED):
            _put(self._over, JobId(key.removeprefix(ENDED)), read_job(key, value) if value else None)
            self._forget_oldest()
        elif key.startswith(MEMBER):
            name = NodeName(key.removeprefix(MEMBER))
            _put(self._members, name, read_member(key, value) if value else None)
        elif key.startswith(_ACCOUNTS):
            _put(self._accounts, key, None if value is None else Record(value, change.revision))
        elif key == RECOVERING:
            self._recovering = value is not None
        else:
            self._on_other_change(key)
        self._reach(change.revision)

    def _forget_oldest(self) -> None:
        """Forget ended jobs far beyond what is kept; awaited ones are read again when they are needed."""
        if len(self._over) > 2 * self._ended_kept + 100:
            order = sorted(
                self._over.values(), key=lambda job: job.state.at if isinstance(job.state, Ended) else 0.0
            )
            self._over = {job.id: job for job in order[len(order) - self._ended_kept :]}

    def _reach(self, revision: int) -> None:
        self.revision = max(self.revision, revision)
        self._changed.set()
        self._changed = asyncio.Event()


def _put(copies: dict[_Key, _Copy], key: _Key, value: _Copy | None) -> None:
    if value is None:
        copies.pop(key, None)
    else:
        copies[key] = value
