"""Let the time of a pool go on when another machine leads: its times are by the leader's clock."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import NoReturn

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


async def continued(store: JobStore, clock: Clock) -> LeaderClock:
    """Return a clock that goes on where the last leader's clock was. Raises as the store does.

    The two machines agree on the time of day, as well as they are synchronised. Time never goes back, so that
    nothing in the store is of the future.
    """
    found = (await store.load(CLOCK)).records.get(CLOCK)
    if found is None:
        return LeaderClock(clock, 0.0)
    try:
        told = json.loads(found.value)
        ahead, at = float(told["ahead"]), float(told["at"])
    except (ValueError, KeyError, TypeError) as error:
        log.warning(
            "the store's record %s cannot be read: %s; times go by this machine's clock", CLOCK, error
        )
        return LeaderClock(clock, 0.0)
    now = max(clock.now() + clock.ahead() - ahead, at)
    return LeaderClock(clock, now - clock.now())


def place_of(clock: Clock) -> bytes:
    """Return the value of the record for the leader's clock as it is now."""
    return json.dumps({"ahead": clock.ahead(), "at": clock.now()}).encode()


async def keep_leader_clock(loop: PoolLoop) -> NoReturn:
    """Keep the record, as long as this coordinator leads."""
    while True:
        try:
            await loop.write({CLOCK: place_of(loop.clock)})
        except GpushareError as error:
            log.info("the leader's clock is not kept now: %s", error)
        await asyncio.sleep(KEEP_SECONDS)
