"""Coordinators on etcd that stand still for longer than their lease, or whose clock jumps: real processes."""

from __future__ import annotations

import asyncio
import shutil
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpushared.ports.job_store import Deposed, Transaction
from gpushared.storage.etcd.access import EtcdAccess
from gpushared.storage.etcd.leadership import BEATS, TTL_SECONDS
from tests.bed.etcd import EtcdCluster
from tests.pool.etcd.test_store_tools import SECONDS, Pool
from tests.pool.etcd.wire import Wire
from tests.pool.etcd.writers import opened
from tests.pool.failures.machine import clock_library
from tests.pool.json_calls import RefusedError

HOUR_SECONDS = 3600.0
LONG_LEASE_SECONDS = 60
LATE = "written-too-late"
NEAR_SECONDS = 120
"""The machine's clock and a time that was told are not further apart than this."""


@pytest.fixture
def pool(etcd_member: EtcdCluster) -> Iterator[Pool]:
    made = Pool(etcd_member)
    yield made
    made.process.dispose()


@pytest.fixture
def other(pool: Pool) -> Iterator[Pool]:
    """A second coordinator of the same pool, which is not started."""
    made = Pool(pool.cluster)
    made.prefix = pool.prefix
    made.is_in(made.url)
    yield made
    made.process.dispose()


def share_authority(first: Pool, second: Pool) -> None:
    folder = Path(second.process.directory, "s")
    folder.mkdir()
    shutil.copytree(first.process.directory / "s/ca", folder / "ca")


def submit_late(pool: Pool) -> str:
    """Return what the coordinator answers, or nothing if it ends."""
    with suppress(RefusedError, OSError):
        return pool.submit(LATE)
    return ""


def wait_for_epoch_above(pool: Pool, epoch: int) -> None:
    until = time.monotonic() + SECONDS
    while int(pool.status()["epoch"]) <= epoch:
        assert time.monotonic() < until, "it does not lead"
        time.sleep(0.1)


async def test_a_write_under_way_when_a_coordinator_stood_still_is_refused_once_another_has_led(
    pool: Pool, other: Pool
) -> None:
    """It reaches etcd after the other's writes; the coordinator that goes on ends with a sentence."""
    host, _, port = pool.cluster.endpoints[0].partition(":")
    async with Wire(host, int(port)).open() as wire:
        pool.is_in(f"etcd://{wire.endpoint}")
        await asyncio.to_thread(pool.process.start)
        before, epoch = await asyncio.to_thread(pool.submit, "before"), int(pool.status()["epoch"])
        await asyncio.to_thread(share_authority, pool, other)
        wire.awaited = LATE.encode()
        late = asyncio.create_task(asyncio.to_thread(submit_late, pool))
        async with asyncio.timeout(SECONDS):
            await wire.sent.wait()
        process = pool.process.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(other.process.start)
        await asyncio.to_thread(wait_for_epoch_above, other, epoch)
        meanwhile = await asyncio.to_thread(other.submit, "meanwhile")
        wire.requests.set()
        async with asyncio.timeout(SECONDS):
            await wire.arrived.wait()
        process.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(process.wait, SECONDS) != 0
        assert "this coordinator leads no more" in (pool.process.directory / "log").read_text()
        assert await late == ""
        after = await asyncio.to_thread(other.submit, "after")
        assert await asyncio.to_thread(other.jobs) == {before, meanwhile, after}


class ShiftedClock:
    """The time of day of one process, which a test sets."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.ahead_seconds = 0.0
        self.jump(0.0)
        self.environment = {"LD_PRELOAD": str(clock_library(folder)), "SHIFTED_CLOCK": str(self._file)}

    def jump(self, ahead_seconds: float) -> None:
        self.ahead_seconds = ahead_seconds
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("dd", ahead_seconds, 0.0))

    def check_times(self, pool: Pool) -> None:
        """Whoever reads the coordinator's clock sees that its jobs were submitted some seconds ago."""
        now = time.time() + self.ahead_seconds
        for job in pool.call("Jobs/List", ended=True, all=True, limit=1000)["jobs"]:
            assert abs(float(job["submitted_at"]) - now) < NEAR_SECONDS


async def test_a_clock_that_jumps_by_an_hour_neither_ends_nor_prolongs_a_leadership(
    pool: Pool, tmp_path: Path
) -> None:
    clock = ShiftedClock(tmp_path)
    pool.process.environment = clock.environment
    await asyncio.to_thread(pool.process.start)
    jobs, epoch = {pool.submit("one")}, pool.status()["epoch"]
    async with opened(EtcdAccess(pool.cluster.endpoints), pool.prefix) as second:
        for ahead_seconds in (HOUR_SECONDS, -HOUR_SECONDS):
            clock.jump(ahead_seconds)
            await asyncio.sleep(TTL_SECONDS + 2)
            with pytest.raises(Deposed, match="another coordinator leads"):
                await second.lead()
            jobs.add(pool.submit(f"at {ahead_seconds}"))
            clock.check_times(pool)
            assert (pool.jobs(), pool.status()["epoch"], pool.status().get("troubles", [])) == (
                jobs,
                epoch,
                [],
            )
    pool.process.end(signal.SIGKILL)
    clock.jump(HOUR_SECONDS)
    await asyncio.to_thread(pool.process.start)  # its earlier lease ends by etcd's clock
    await asyncio.to_thread(wait_for_epoch_above, pool, int(epoch))
    assert pool.jobs() == jobs
    clock.check_times(pool)


async def test_a_leader_whose_lease_etcd_ended_too_early_knows_before_its_next_keep_alive(
    etcd_member: EtcdCluster,
) -> None:
    access = EtcdAccess(etcd_member.endpoints)
    async with opened(access, "/ended-early/", ttl_seconds=LONG_LEASE_SECONDS) as store:
        epoch = await store.lead()
        await store.commit(Transaction(epoch, {"job/1": b"1"}))
        await asyncio.to_thread(etcd_member.ctl, "del", "/ended-early/leader")
        async with asyncio.timeout(LONG_LEASE_SECONDS / BEATS / 2):
            with pytest.raises(Deposed, match="its lease at etcd has ended"):
                await store.lost()
