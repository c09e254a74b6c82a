"""A writer on etcd that does with an unknown outcome what a coordinator's loop does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gpushared.domain.model.errors import TimedOut
from gpushared.ports.job_store import JobStore, StoreUnavailable, Transaction
from gpushared.storage.etcd.access import EtcdAccess
from gpushared.storage.etcd.client import CALL_SECONDS
from gpushared.storage.etcd.store import EtcdStore

PREFIX = "/gpushare/lab/"
SECONDS = 40
TTL_SECONDS = 5
"""The time of a lease in tests; etcd's least is one and a half of its elections."""


@asynccontextmanager
async def opened(
    access: EtcdAccess,
    prefix: str = PREFIX,
    *,
    ttl_seconds: int = TTL_SECONDS,
    wait_seconds: float = 0.0,
    call_seconds: float = CALL_SECONDS,
) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(
        access, prefix, ttl_seconds=ttl_seconds, wait_seconds=wait_seconds, call_seconds=call_seconds
    )
    try:
        yield store
    finally:
        await store.close()


class Writer:
    """Leads, and counts on only what it was told."""

    def __init__(self, store: JobStore, epoch: int) -> None:
        self.store = store
        self.epoch = epoch

    async def put(self, key: str, value: str) -> int:
        return await self.store.commit(Transaction(self.epoch, {key: value.encode()}))

    async def put_surely(self, key: str, value: str) -> None:
        """Tries until it is written; an unknown outcome is settled by a new epoch."""
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    await self.put(key, value)
                except StoreUnavailable:
                    await asyncio.sleep(0.05)
                except TimedOut:
                    if await self._settled(key, value):
                        return
                else:
                    return

    async def _settled(self, key: str, value: str) -> bool:
        while True:
            with suppress(StoreUnavailable, TimedOut):
                self.epoch = await self.store.lead(above=self.epoch)
                return await values(self.store, key) == {key: value}
            await asyncio.sleep(0.05)


async def values(store: JobStore, prefix: str = "") -> dict[str, str]:
    return {key: record.value.decode() for key, record in (await store.load(prefix)).records.items()}
