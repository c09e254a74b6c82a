"""The time of a pool goes on when another machine leads, whatever the clocks of the two say."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from gpushared.daemon.clocks import boot_id
from gpushared.jobs import leader_clock as module
from gpushared.jobs.leader_clock import CLOCK, clock_after_last_leader, clock_record, keep_leader_clock
from gpushared.ports.job_store import StoreUnavailable, Transaction
from gpushared.testing import ManualClock, MemoryStore
from tests.pool.pools import SECONDS, coordinator

DAY = 1_000_000.0
"""The time of day at the beginning, on all machines."""


def machine(began: float, day: float = DAY) -> ManualClock:
    """A clock that nobody sets began anywhere; people set the time of day."""
    clock = ManualClock(began)
    clock.set_day(day - began)
    return clock


def place_elsewhere(clock: ManualClock) -> bytes:
    """The record of a leader on another machine."""
    return json.dumps(json.loads(clock_record(clock)) | {"boot": "another machine's"}).encode()


async def kept(value: bytes) -> MemoryStore:
    store = MemoryStore()
    await store.commit(Transaction(await store.lead(), {CLOCK: value}))
    return store


async def test_without_a_record_times_go_by_this_machines_clock() -> None:
    clock = machine(DAY - 5.0)
    led = await clock_after_last_leader(MemoryStore(), clock)
    assert (led.now(), led.ahead()) == (clock.now(), clock.ahead())


@pytest.mark.parametrize("apart", [-3600.0, -1.0, 0.0, 1.0, 3600.0, 1e6])
async def test_a_clock_that_began_at_another_time_goes_on_where_the_last_one_was(apart: float) -> None:
    first, second = machine(DAY - 50.0), machine(DAY - 50.0 + apart)
    store = await kept(place_elsewhere(first))
    first.advance(30.0)
    second.advance(30.0)
    led = await clock_after_last_leader(store, second)
    assert led.now() == first.now()
    second.advance(7.0)
    assert led.now() == first.now() + 7.0


@pytest.mark.parametrize("apart", [-3600.0, 0.0, 3600.0])
async def test_the_time_of_day_stays_that_of_the_machine(apart: float) -> None:
    second = machine(DAY + apart)
    led = await clock_after_last_leader(await kept(place_elsewhere(machine(DAY - 50.0))), second)
    assert led.now() + led.ahead() == second.now() + second.ahead() == DAY


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
async def test_on_the_same_machine_the_time_since_its_boot_counts_whatever_people_set(
    jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = 100.0
    monkeypatch.setattr(module, "boottime", lambda: up)
    first, second = machine(DAY - 50.0), machine(5.0, DAY + jump)
    store = await kept(clock_record(first))
    up += 30.0
    assert (await clock_after_last_leader(store, second)).now() == first.now() + 30.0


async def test_a_record_without_a_boot_is_read_by_the_time_of_day() -> None:
    led = await clock_after_last_leader(
        await kept(json.dumps({"at": 7.0, "ahead": 10.0}).encode()), machine(5.0, 30.0)
    )
    assert led.now() == 20.0


@pytest.mark.parametrize("behind", [0.5, 3600.0])
async def test_time_does_not_go_back_before_the_record_on_a_machine_whose_day_is_behind(
    behind: float,
) -> None:
    first, second = machine(DAY - 50.0), machine(5.0, DAY - behind)
    led = await clock_after_last_leader(await kept(place_elsewhere(first)), second)
    assert led.now() == first.now()
    second.advance(1.0)
    assert led.now() == first.now() + 1.0


async def test_a_machine_whose_day_is_ahead_lets_time_jump_by_as_much() -> None:
    first, second = machine(DAY - 50.0), machine(5.0, DAY + 3600.0)
    led = await clock_after_last_leader(await kept(place_elsewhere(first)), second)
    assert led.now() == first.now() + 3600.0


async def test_over_many_leaders_time_only_goes_on() -> None:
    store, now = MemoryStore(), 0.0
    epoch = await store.lead()
    for began, day in ((7.0, DAY), (DAY, DAY + 60.0), (2 * DAY, DAY - 60.0), (0.0, DAY + 1.0)):
        clock = await clock_after_last_leader(store, machine(began, day))
        assert clock.now() >= now
        now = clock.now() + 5.0
        value = json.dumps({"at": now, "ahead": clock.ahead()}).encode()
        await store.commit(Transaction(epoch, {CLOCK: value}))


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"x", b"[]", b"7", b'{"at": 1}', b'{"at": "x", "ahead": 1}', b"\xff"),
        *(b'{"at": Infinity, "ahead": 1}', b'{"at": 1, "ahead": NaN}'),
    ],
)
async def test_a_record_that_cannot_be_read_is_told_and_ignored(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    clock = machine(DAY)
    with caplog.at_level(logging.WARNING):
        assert (await clock_after_last_leader(await kept(value), clock)).now() == clock.now()
    assert "pool/clock cannot be read" in caplog.text


async def test_the_leader_keeps_how_far_its_clock_is_also_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEEP_SECONDS", 0.001)
    async with coordinator() as pool:
        pool.store.fail_next(StoreUnavailable("the disk is full"))
        changes = pool.store.watch(CLOCK, pool.loop.revision)
        keeping = asyncio.create_task(keep_leader_clock(pool.loop))
        try:
            for _ in range(2):
                async with asyncio.timeout(SECONDS):
                    fields = json.loads((await anext(changes)).value or b"")
                assert (fields["at"], fields["boot"]) == (pool.loop.now(), boot_id())
                pool.clock.advance(5.0)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


async def test_time_does_not_go_back_on_a_machine_that_was_put_back_without_a_boot() -> None:
    """As a virtual machine is: the boot is the same, and less time has passed since."""
    clock = machine(5.0)
    fields = json.loads(clock_record(machine(DAY - 50.0)))
    fields["up"] += 1000.0
    assert (await clock_after_last_leader(await kept(json.dumps(fields).encode()), clock)).now() == fields[
        "at"
    ]
