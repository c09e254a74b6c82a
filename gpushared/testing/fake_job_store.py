"""Fake a pool's store that forgets everything with the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import NoReturn

from gpushared.ports.job_store import (
    Conflict,
    Contents,
    Deposed,
    Leader,
    Record,
    StoreChange,
    StoreMember,
    StoreUnavailable,
    Transaction,
)
from gpushared.storage.job_store import MAX_CHANGES, ChangeLog, changes_of
from gpushared.testing.fake_clock import Failing


class StoreWorld:
    """Hold the records that several stores share, as several coordinators share one database."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.revision = 0
        self.epoch = 0
        self.leader: MemoryStore | None = None
        self.deposed = asyncio.Event()
        self.transactions: list[Transaction] = []
        self.logs: list[ChangeLog] = []
        self.announced: dict[str, bytes] = {}

    def after(self, transactions: int) -> StoreWorld:
        """Return a new world as it would be if everybody had been killed right after so many transactions."""
        twin = StoreWorld()
        for transaction in self.transactions[:transactions]:
            twin.apply(transaction)
        twin.epoch = self.epoch
        return twin

    def apply(self, transaction: Transaction) -> tuple[StoreChange, ...]:
        """Apply a transaction, whoever leads and whatever it compares, and return its changes."""
        deleted = [key for key in transaction.deletes if key in self.records]
        self.transactions.append(transaction)
        if not transaction.puts and not deleted:
            return ()
        self.revision += 1
        for key, value in transaction.puts.items():
            self.records[key] = Record(value, self.revision)
        for key in deleted:
            del self.records[key]
        changes = changes_of(transaction.puts, deleted, self.revision)
        for log in self.logs:
            log.add(changes)
        return changes


class MemoryStore(Failing):
    """Keep records in a world in memory: a fake ``Store``.

    ``depose()`` lets another store lead, as a lost lock or lease does.
    """

    def __init__(self, world: StoreWorld | None = None, *, max_changes: int = MAX_CHANGES) -> None:
        super().__init__()
        self.world = world or StoreWorld()
        self._log = ChangeLog(self.world.revision, limit=max_changes)
        self.world.logs.append(self._log)
        self._closed = False

    def depose(self) -> None:
        self.world.epoch += 1
        self.world.leader = None
        self.world.deposed.set()

    async def lead(self, above: int = 0) -> int:
        self._may_fail()
        if self.world.leader not in (None, self):
            raise Deposed("another coordinator leads in this world", hint="close its store first")
        self.world.leader = self
        self.world.epoch = max(self.world.epoch, above) + 1
        return self.world.epoch

    async def lost(self) -> NoReturn:
        await self.world.deposed.wait()
        raise Deposed("this coordinator does not lead any more")

    async def is_behind(self) -> bool | None:
        return None

    async def epoch(self) -> int:
        self._may_fail()
        return self.world.epoch

    async def load(self, prefix: str = "") -> Contents:
        self._may_fail()
        records = {key: record for key, record in self.world.records.items() if key.startswith(prefix)}
        return Contents(self.world.revision, records)

    async def page(
        self, prefix: str, limit: int, *, after: str = "", reverse: bool = False
    ) -> tuple[tuple[str, Record], ...]:
        self._may_fail()
        keys = sorted((key for key in self.world.records if key.startswith(prefix)), reverse=reverse)
        following = [key for key in keys if not after or (key < after if reverse else key > after)]
        return tuple((key, self.world.records[key]) for key in following[:limit])

    async def count(self, prefix: str = "") -> int:
        self._may_fail()
        return sum(key.startswith(prefix) for key in self.world.records)

    async def commit(self, transaction: Transaction) -> int:
        self._may_fail()
        transaction.check()
        if self.world.leader is not self or transaction.epoch != self.world.epoch:
            raise Deposed("this coordinator does not lead any more")
        for key, revision in (transaction.compares or {}).items():
            record = self.world.records.get(key)
            if (record.revision if record else 0) != revision:
                raise Conflict(f"{key} was changed by somebody else", hint="load again")
        self.world.apply(transaction)
        return self.world.revision

    def watch(self, prefix: str, after: int) -> AsyncIterator[StoreChange]:
        return self._log.follow(prefix, after)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._log.close()
        self.world.logs.remove(self._log)
        if self.world.leader is self:
            self.world.leader = None

    def _may_fail(self) -> None:
        super()._may_fail()
        if self._closed:
            raise StoreUnavailable("the store is closed", hint="the daemon is stopping")


class SharedMemoryStore(MemoryStore):
    """Keep records in a world in memory that other coordinators follow: a fake ``SharedStore``."""

    def __init__(
        self, world: StoreWorld | None = None, *, name: str = "here", max_changes: int = MAX_CHANGES
    ) -> None:
        """Take ``name``, by which other coordinators know this one.

        Take ``max_changes``: who follows and is further behind must load again.
        """
        super().__init__(world, max_changes=max_changes)
        self.name = name
        self._announced = name
        self.heard_at = 0.0
        self.unconfirmed_seconds = 0.0
        """A test sets this: for so long nobody has confirmed that this one leads."""

    async def watch(self, prefix: str, after: int) -> AsyncIterator[StoreChange]:
        self._may_fail()
        async for change in self._log.follow(prefix, after):
            self.heard_at = asyncio.get_running_loop().time()
            yield change

    async def is_behind(self) -> bool | None:
        return False

    def doubt_seconds(self) -> float:
        return self.unconfirmed_seconds if self.world.leader is self else 0.0

    async def leader(self) -> Leader:
        self._may_fail()
        leads = self.world.leader
        return Leader(leads.name if isinstance(leads, SharedMemoryStore) else "", self.world.epoch)

    async def announce(self, name: str, facts: bytes) -> None:
        self._may_fail()
        self.world.announced[name] = facts
        self._announced = name

    async def announced(self) -> Mapping[str, bytes]:
        self._may_fail()
        return dict(self.world.announced)

    async def health(self) -> tuple[StoreMember, ...]:
        self._may_fail()
        return (StoreMember("memory", leads=True, version="3.4.0"),)

    async def close(self) -> None:
        await super().close()
        self.world.announced.pop(self._announced, None)
