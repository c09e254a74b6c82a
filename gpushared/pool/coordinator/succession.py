"""Stand by while another coordinator leads the shared store, and take over when that one ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn

from gpushared.daemon.process import no_collection
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.coordinator import restore
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.member import Member
from gpushared.domain.model.errors import GpushareError, TimedOut
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.jobs.job_records import SIGN_OF_LIFE
from gpushared.jobs.leader_clock import clock_after_last_leader
from gpushared.jobs.restore import restored
from gpushared.jobs.standby import Standby
from gpushared.jobs.store_follower import StoreFollower
from gpushared.ports import Clock
from gpushared.ports.job_store import Deposed, SharedStore, Transaction

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Ask the store this often who leads."""
SHOW_SECONDS = 1.0
SHOW_SHARE = 10
"""After the followed state was shown, wait this many times the duration of that before the next time."""
CATCH_UP_SECONDS = 5.0
PART = "store"


class Succession:
    """Follow the leader's writes, and take over from the leader. ``on_other_change`` is that of ``StoreFollower``."""

    def __init__(
        self,
        store: SharedStore,
        loop: PoolLoop,
        clock: Clock,
        rules: Callable[[], PoolRules],
        troubles: Troubles,
        *,
        name: str,
        on_other_change: Callable[[str], None],
    ) -> None:
        self._store = store
        self._loop = loop
        self._clock = clock
        self._rules = rules
        self._troubles = troubles
        self.standby = loop.standby = Standby(name, self._age_seconds)
        self._follower = StoreFollower(store, rules().ended_kept, on_other_change)
        self._epoch = 0
        self._shown_revision = -1
        """The revision of the store that readers see."""
        self._shown_at = 0.0
        """When the store was at that revision, by the event loop's clock."""
        self._side_tasks: tuple[asyncio.Task[NoReturn], ...] = ()
        self._look_problem: GpushareError | None = None
        self._has_namesake = False
        """A process of this coordinator's name leads: an earlier life of it, or another one, or it itself."""

    async def prepare(self) -> None:
        """Load the store, so that reads can be answered. Raises the store's errors."""
        leader = await self._store.leader()
        self._epoch = leader.epoch
        self.standby.led_by(leader.name, leader.epoch)
        await self._follower.load()
        self._store.heard_at = asyncio.get_running_loop().time()
        await self._show()

    async def run(
        self,
        announce: Callable[[], Awaitable[None]],
        members: Callable[[int, float], Awaitable[Iterable[Member]]],
    ) -> None:
        """Stand by until this coordinator leads, with the whole store in the loop's state.

        ``announce`` is called every ``LOOK_SECONDS``. ``members`` is called once this coordinator leads, with
        the epoch and the seconds by which the time of day is ahead of the pool's clock; it returns the nodes
        that have a certificate. Raises ConfigError, and the store's errors if the state cannot be read then.
        """
        side_tasks = [
            asyncio.create_task(self._follower.follow(), name="store follower"),
            asyncio.create_task(self._look_always(), name="leader of the store"),
            asyncio.create_task(self._show_always(), name="followed state"),
        ]
        self._side_tasks = tuple(side_tasks)
        try:
            epoch = await self._lead(announce)
            log.info("leads now epoch=%d", epoch)
            await self._begin(epoch, members)
        finally:
            for task in side_tasks:
                task.cancel()
            await asyncio.gather(*side_tasks, return_exceptions=True)

    async def _lead(self, announce: Callable[[], Awaitable[None]]) -> int:
        while True:
            for task in self._side_tasks:
                if task.done():
                    task.result()  # only a bug ends it
            try:
                await announce()
                problem = self._look_problem or self._follower.problem
                if problem is not None:
                    raise problem
                if not self.standby.leader:
                    return await self._store.lead()
            except Deposed as error:
                log.debug("another coordinator was faster")
                if self._has_namesake:
                    self._troubles.raised(
                        PART, f"{error}; does another one have the name {self.standby.name}?"
                    )
            except GpushareError as error:
                self._troubles.raised(PART, str(error))
            else:
                self._troubles.cleared(PART)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look_always(self) -> NoReturn:
        """Ask who leads, also while an attempt to lead waits for a slow store."""
        while True:
            try:
                leader = await self._store.leader()
            except GpushareError as error:
                self._look_problem = error
            else:
                self._look_problem, self._epoch = None, leader.epoch
                # An earlier ``lead`` whose answer was lost may have made this coordinator the leader.
                self._has_namesake = leader.name == self.standby.name
                self.standby.led_by("" if self._has_namesake else leader.name, leader.epoch)
            await asyncio.sleep(LOOK_SECONDS)

    async def _begin(self, epoch: int, members: Callable[[int, float], Awaitable[Iterable[Member]]]) -> None:
        """Make the followed state the loop's own, as soon as it has all that earlier leaders wrote."""
        clock = await clock_after_last_leader(self._store, self._clock)
        enrolled = await members(epoch, clock.ahead())
        revision = await self._store.commit(Transaction(epoch, {SIGN_OF_LIFE: b""}))
        try:
            await self._follower.until_reached(revision, CATCH_UP_SECONDS)
        except TimedOut as error:
            log.warning("%s; it is read anew", error)
            await self._follower.load()
        stored = await self._follower.stored()
        with no_collection():
            state = await restored(
                self._store,
                self._rules(),
                epoch=epoch,
                now=clock.now(),
                ahead_seconds=clock.ahead(),
                enrolled=enrolled,
                is_behind=await self._store.is_behind(),
                followed=stored,
            )
        self._troubles.cleared(PART)
        self._loop.begin(state, clock)
        self._loop.take_rules(self._rules())  # they may have been read again meanwhile

    # --- what readers see ------------------------------------------------------------------------------

    def _age_seconds(self) -> float:
        is_newest = self._shown_revision == self._follower.revision
        at = self._store.heard_at if is_newest else self._shown_at
        return max(0.0, asyncio.get_running_loop().time() - at)

    async def _show_always(self) -> NoReturn:
        while True:
            took = 0.0
            if self._follower.revision != self._shown_revision:
                try:
                    took = await self._show()
                except GpushareError as error:
                    log.warning("the followed state cannot be shown: %s", error)
            await asyncio.sleep(max(SHOW_SECONDS, SHOW_SHARE * took))

    async def _show(self) -> float:
        """Return the seconds that it took to make the state, without those in which etcd was asked."""
        at = self._store.heard_at
        stored = await self._follower.stored()
        clock = await clock_after_last_leader(self._store, self._clock)

        def make_state() -> PoolState:
            return restore(
                self._rules(),
                epoch=self._epoch,
                jobs=stored.jobs,
                members=stored.members,
                accounts=stored.accounts,
                revision=stored.revision,
                now=clock.now(),
                ahead_seconds=clock.ahead(),
                from_copy=stored.recovering,
                complete=True,
            )

        began = asyncio.get_running_loop().time()
        state = await asyncio.to_thread(make_state)
        took = asyncio.get_running_loop().time() - began
        if self._loop.standby is not None:
            self._loop.follow(state, clock)
        self._shown_revision, self._shown_at = stored.revision, at
        return took
