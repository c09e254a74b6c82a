"""Let the time of a pool go on when another machine leads: its times are by the leader's clock."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import NoReturn

from gpushared.daemon.clocks import boot_id, boottime
from gpushared.domain.model.errors import GpushareError
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.ports import Clock
from gpushared.ports.job_store import JobStore

log = logging.getLogger(__name__)

KEEP_SECONDS = 60.0
CLOCK = "pool/clock"
"""The record says how far the leader's clock had got, and how far the time of day was ahead of that clock."""


@dataclass(frozen=True, slots=True)
class LeaderClock:
    """Implement a ``Clock`` by that of this machine and a number of seconds."""

    clock: Clock
    seconds: float

    def now(self) -> float:
        return self.clock.now() + self.seconds

    def ahead(self) -> float:
        return self.clock.ahead() - self.seconds

    def keep(self) -> None:
        self.clock.keep()


@dataclass(frozen=True, slots=True)
class ClockOfLoop:
    """Implement a ``Clock`` by the one that a coordinator's loop has now."""

    loop: PoolLoop

    def now(self) -> float:
        return self.loop.now()

    def ahead(self) -> float:
        return self.loop.clock.ahead()

    def keep(self) -> None:
        self.loop.clock.keep()


async def continued(store: JobStore, clock: Clock) -> LeaderClock:
    """Return a clock that goes on where the last leader's clock was. Raises as the store does.

    The two machines agree on the time of day, as well as they are synchronised; on the machine of the last
    leader the time since its boot says more. Time never goes back, so that nothing in the store is of the
    future.
    """
    found = (await store.load(CLOCK)).records.get(CLOCK)
    if found is None:
        return LeaderClock(clock, 0.0)
    try:
        told = json.loads(found.value)
        ahead, at, up = float(told["ahead"]), float(told["at"]), float(told.get("up", 0.0))
        int(ahead + at + up)  # infinity and what is no number raise
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        log.warning(
            "the store's record %s cannot be read: %s; times go by this machine's clock", CLOCK, error
        )
        return LeaderClock(clock, 0.0)
    by_boot, by_day = at + boottime() - up, clock.now() + clock.ahead() - ahead
    now = max(at, by_boot if told.get("boot") == boot_id() else by_day)
    return LeaderClock(clock, now - clock.now())


def place_of(clock: Clock) -> bytes:
    """Return the value of the record for the leader's clock as it is now."""
    told = {"ahead": clock.ahead(), "at": clock.now(), "boot": boot_id(), "up": boottime()}
    return json.dumps(told).encode()


async def keep_leader_clock(loop: PoolLoop) -> NoReturn:
    """Keep the record, as long as this coordinator leads."""
    while True:
        try:
            await loop.write({CLOCK: place_of(loop.clock)})
        except GpushareError as error:
            log.info("the leader's clock is not kept now: %s", error)
        await asyncio.sleep(KEEP_SECONDS)
