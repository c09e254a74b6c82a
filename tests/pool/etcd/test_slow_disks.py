"""What a store in etcd does while disks of etcd are slow: real members, whose flushes take longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from gpushared.domain.model.errors import TimedOut
from gpushared.ports.job_store import StoreUnavailable
from gpushared.storage.etcd.access import EtcdAccess
from tests.bed.etcd import EtcdCluster, EtcdMember
from tests.node.daemon import wait_until
from tests.pool.etcd.test_failures import Cluster, a_follower, access_first
from tests.pool.etcd.test_store_tools import Pool
from tests.pool.etcd.writers import SECONDS, Writer, opened, values

LEASE_SECONDS = 10
"""The time of a lease as a coordinator has it."""
STALL_SECONDS = 3 * LEASE_SECONDS
"""Of one flush: longer than any lease."""


def leader(cluster: EtcdCluster) -> EtcdMember:
    return cluster.leader()


async def write_until(writer: Writer, done: asyncio.Event) -> dict[str, str]:
    """Write all the time, and return what was told to be written; an unknown outcome is settled."""
    told: dict[str, str] = {}
    while not done.is_set():
        key = f"k/{len(told)}"
        await writer.put_surely(key, key)
        told[key] = key
        await asyncio.sleep(0.02)
    return told


async def written_during(writer: Writer, work: Awaitable[object]) -> dict[str, str]:
    done = asyncio.Event()
    writing = asyncio.create_task(write_until(writer, done))
    await work
    done.set()
    return await writing


@pytest.mark.parametrize(
    ("which", "flush_seconds"), [(leader, STALL_SECONDS), (a_follower, STALL_SECONDS), (a_follower, 0.4)]
)
async def test_one_slow_disk_of_three_is_left_for_another_member(
    etcd_cluster: Cluster, which: Callable[[EtcdCluster], EtcdMember], flush_seconds: float
) -> None:
    """The coordinator leads on for longer than its lease, and what it was told to be written is written."""
    cluster = etcd_cluster(3, disks_may_be_slow=True)
    slow = which(cluster)
    async with opened(access_first(cluster, slow), ttl_seconds=LEASE_SECONDS) as store:
        writer = Writer(store, await store.lead())
        await writer.put("before", "1")
        slow.slow_down(flush_seconds)
        written = await written_during(writer, asyncio.sleep(LEASE_SECONDS + 2))
        served_last = store.client._members[store.client._first].endpoint
        slow.slow_down(0)
        assert served_last != slow.endpoint
        await writer.put_surely("after", "2")
        assert await values(store) == {"before": "1", **written, "after": "2"}


async def test_while_all_disks_are_slow_the_lease_is_kept_and_no_write_is_told_that_is_not(
    etcd_cluster: Cluster,
) -> None:
    cluster = etcd_cluster(3, disks_may_be_slow=True)
    async with opened(EtcdAccess(cluster.endpoints), ttl_seconds=LEASE_SECONDS) as store:
        writer = Writer(store, await store.lead())
        for member in cluster.members:
            member.slow_down(0.3)
        written = await written_during(writer, asyncio.sleep(LEASE_SECONDS + 2))
        for member in cluster.members:
            member.kill()  # what was told is on disks
            member.slow_down(0)
        for member in cluster.members:
            member.start()
        async with asyncio.timeout(SECONDS):
            while True:
                with suppress(StoreUnavailable, TimedOut):
                    assert (await values(store, "k/")).items() >= written.items()
                    return


async def test_writes_that_wait_while_etcd_is_defragmented_are_told_what_became_of_them(
    etcd_cluster: Cluster,
) -> None:
    """Etcd serves nobody meanwhile, which a slow disk makes long."""
    cluster = etcd_cluster(1, disks_may_be_slow=True)
    async with opened(EtcdAccess(cluster.endpoints), ttl_seconds=LEASE_SECONDS) as store:
        writer = Writer(store, await store.lead())
        cluster.members[0].slow_down(0.5)
        written = await written_during(
            writer, asyncio.to_thread(cluster.ctl, "--command-timeout=30s", "defrag")
        )
        cluster.members[0].slow_down(0)
        await writer.put_surely("after", "1")
        assert await values(store) == {**written, "after": "1"}


def test_the_pools_status_says_that_its_store_is_slow_until_it_is_not(etcd_cluster: Cluster) -> None:
    cluster = etcd_cluster(1, disks_may_be_slow=True)
    pool = Pool(cluster)

    def troubles() -> str:
        return " ".join(pool.status()["troubles"])

    try:
        pool.process.start()
        cluster.members[0].slow_down(1.2)
        pool.submit("slow")
        # On a busy machine the first write can be in doubt before it is slow.
        slow = "the store takes more than 1 s for a write"
        wait_until(lambda: slow in troubles(), "the slow store is told", SECONDS)
        cluster.members[0].slow_down(0)
        wait_until(lambda: not troubles(), "all is well again", SECONDS)
    finally:
        pool.process.dispose()
