"""Continue the pool's clock, which is the leader's, when another machine leads."""

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
"""This record has the leader's clock at one moment, and by how much the time of day was ahead of that clock."""


@dataclass(frozen=True, slots=True)
class LeaderClock:
    """Implement a ``Clock``: this machine's clock plus ``seconds``."""

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


async def clock_after_last_leader(store: JobStore, clock: Clock) -> LeaderClock:
    """Return a clock that goes on where the last leader's clock was. Raises the store's errors.

    On another machine the time of day says how much time has passed since; on the last leader's machine, if it
    was not rebooted, the time since boot does so more exactly. The clock never goes back: otherwise times in
    the store would lie in the future.
    """
    record = (await store.load(CLOCK)).records.get(CLOCK)
    if record is None:
        return LeaderClock(clock, 0.0)
    try:
        fields = json.loads(record.value)
        ahead, at, up = float(fields["ahead"]), float(fields["at"]), float(fields.get("up", 0.0))
        int(ahead + at + up)  # raises for infinity and NaN
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        log.warning(
            "the store's record %s cannot be read: %s; times go by this machine's clock", CLOCK, error
        )
        return LeaderClock(clock, 0.0)
    by_boot, by_day = at + boottime() - up, clock.now() + clock.ahead() - ahead
    now = max(at, by_boot if fields.get("boot") == boot_id() else by_day)
    return LeaderClock(clock, now - clock.now())


def clock_record(clock: Clock) -> bytes:
    """Return the value of the record for the leader's clock as it is now."""
    fields = {"ahead": clock.ahead(), "at": clock.now(), "boot": boot_id(), "up": boottime()}
    return json.dumps(fields).encode()


async def keep_leader_clock(loop: PoolLoop) -> NoReturn:
    """Keep the record, as long as this coordinator leads."""
    while True:
        try:
            await loop.write({CLOCK: clock_record(loop.clock)})
        except GpushareError as error:
            log.info("the leader's clock is not kept now: %s", error)
        await asyncio.sleep(KEEP_SECONDS)
