"""Keep the guard of fenced containers: its deadlines, its process, and the ends that it made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from gpushared.daemon.clocks import boottime
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.attempt_log import fenced
from gpushared.domain.jobs.node_messages import GuardEnded, GuardLooked
from gpushared.domain.leases.job_attempts import deadlines
from gpushared.domain.model.errors import GpushareError, TimedOut, Unavailable
from gpushared.domain.model.lease import ContainerId
from gpushared.guard.fences import GuardProcess
from gpushared.node.runtime.loop import Loop

log = logging.getLogger(__name__)

PART = "guard"
LOOK_SECONDS = 1.0


class GuardKeeper:
    """Renew deadlines while the coordinator answers, and report to the core if a guard watches."""

    def __init__(self, loop: Loop, guard: GuardProcess, troubles: Troubles) -> None:
        self._loop = loop
        self._guard = guard
        self._troubles = troubles
        self._written: dict[ContainerId, float] | None = None
        """None before this process's first write."""
        self._renewals = asyncio.Lock()

    async def arm(self, container: ContainerId) -> None:
        """Return when a guard watches over a fenced attempt's container, which may start then.

        Raises Unavailable if no guard does, and TimedOut if the container is already to end.
        """
        await self._renew()
        deadline = (self._written or {}).get(container)
        if deadline is None or deadline <= boottime():
            raise TimedOut("its coordinator has not heard of this node for too long")

    async def run(self) -> None:
        """Renew the deadlines, for ever."""
        while True:
            try:
                await self.take_ends()
                await self._renew()
            except GpushareError as error:
                log.debug("the guard was not looked after: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def take_ends(self) -> None:
        """Report the guard's ends to the core; this must come before the engine's report of these ends."""
        if not self._is_needed():
            return
        ended = await asyncio.to_thread(self._guard.ended)
        if not ended:
            return
        await self._loop.send(GuardEnded(ended))
        over = ended - deadlines(self._loop.state).keys()
        await asyncio.to_thread(self._guard.forget, over)

    def _is_needed(self) -> bool:
        return bool(self._written) or any(map(fenced, self._loop.state.attempts.values()))

    async def _renew(self) -> None:
        async with self._renewals:
            fences = self._fences()
            if not fences and self._written is None and not await asyncio.to_thread(self._guard.has_any):
                self._written = {}
            try:
                await self._write(fences)
                if fences and not await asyncio.to_thread(self._guard.watches):
                    await asyncio.to_thread(self._guard.ensure)
            except Unavailable as error:
                self._troubles.raised(PART, error.message)
                await self._report_watch(watches=False)
                raise
            self._troubles.cleared(PART)
            await self._report_watch(watches=True)

    def _fences(self) -> dict[ContainerId, float]:
        before: Mapping[ContainerId, float] = self._written or {}
        now = boottime()
        return {
            container: before.get(container, now) if at is None else at
            for container, at in deadlines(self._loop.state).items()
        }

    async def _write(self, fences: dict[ContainerId, float]) -> None:
        if fences != self._written:
            await asyncio.to_thread(self._guard.write, fences)
            self._written = fences

    async def _report_watch(self, *, watches: bool) -> None:
        attempt_logs = self._loop.state.attempts.values()
        if any(attempt.guarded != watches for attempt_log in attempt_logs for attempt in fenced(attempt_log)):
            await self._loop.send(GuardLooked(watches))
