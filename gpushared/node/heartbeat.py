"""Do the daemon's work of every second: ticks, missing clients, quotas of projects, systemd's status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gpushared.config.model import Config
from gpushared.daemon.systemd import Notifier
from gpushared.daemon.troubles import Troubles
from gpushared.domain.leases.events import DayTimeSet, QuietTimeChanged, RequestAbandoned, Tick
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.leases.project_settings import capacity_of
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.scheduling.projects import problems
from gpushared.node.runtime.client_presence_checks import ClientPresence
from gpushared.node.runtime.configured import is_quiet
from gpushared.node.runtime.loop import Loop
from gpushared.ports import Clock

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
PART = "quotas"


class Heartbeat:
    """Run the work of every second. ``config`` returns the newest configuration."""

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        client_presence: ClientPresence,
        quota_promises: QuotaPromises,
        notifier: Notifier,
        config: Callable[[], Config],
        *,
        simulated: bool,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._client_presence = client_presence
        self._quota_promises = quota_promises
        self._notifier = notifier
        self._config = config
        self._simulated = simulated
        self._sent_status = ""

    async def run(self) -> None:
        """Do this work every second, for ever."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await self._follow_day_time()
                await self._loop.send(Tick())
                await self._check_clients()
            except GpushareError as error:
                log.debug("tick refused: %s", error)
            self._quota_promises.check(self._loop.state)
            self._send_status()

    async def follow_clients(self) -> None:
        """Take leases back as soon as the processes that hold them end, for ever."""
        ended = self._client_presence.processes.ended
        while True:
            await ended.wait()
            ended.clear()
            await self.take_back()

    async def take_back(self) -> None:
        """Take back the leases without a container whose process has ended."""
        for lease in self._client_presence.with_ended_client(self._loop.state):
            await self._abandon(lease)

    async def _check_clients(self) -> None:
        state, now = self._loop.state, self._loop.now()
        for missed in self._client_presence.missed(state, now):
            await self._loop.send(missed)
        patience = float(self._config().queue.orphan_seconds)
        for lease in self._client_presence.abandoned(state, now, patience):
            await self._abandon(lease)

    async def _abandon(self, lease: LeaseId) -> None:
        try:
            await self._loop.send(RequestAbandoned(lease))
        except GpushareError as error:
            log.info("lease %s is not taken back yet: %s", lease, error)

    def status(self) -> str:
        """Count the GPUs, leases and queued requests in one line."""
        return _status(self._loop.state, "simulated GPUs" if self._simulated else "GPUs")

    def send_status_again(self) -> None:
        """Let the next tick send the same status again, because another status was sent since."""
        self._sent_status = ""

    async def _follow_day_time(self) -> None:
        """Follow changes of the machine's clock, by which people give times of day, and of the quiet time."""
        state, ahead = self._loop.state, self._clock.ahead()
        if ahead != state.ahead_seconds:
            log.warning("the time of day was set by %+.1f s", ahead - state.ahead_seconds)
            await self._loop.send(DayTimeSet(ahead))
        quiet = is_quiet(self._config().idle_quiet, self._loop.state.day(self._loop.now()))
        if quiet is not self._loop.state.quiet:
            await self._loop.send(QuietTimeChanged(quiet))

    def _send_status(self) -> None:
        status = self.status()
        if status != self._sent_status:
            self._sent_status = status
            self._notifier.status(status)


def _status(state: NodeState, kind: str) -> str:
    waiting = len(state.waiting())
    lease_count = len(state.leases) - waiting
    drained = sum(state.drain_of(gpu) is not None for gpu in state.gpus)
    return f"{len(state.gpus)} {kind}, {lease_count} leases, {waiting} queued" + (
        f", {drained} drained" if drained else ""
    )


class QuotaPromises:
    """Raise a trouble for guaranteed quotas that the present GPUs cannot keep.

    The configuration cannot exclude such quotas: it does not know the GPUs, and GPUs can be lost.
    """

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._checked: tuple[object, ...] = ()

    def check(self, state: NodeState) -> None:
        """Raise or clear the trouble; return at once while rules, projects and GPUs are the same."""
        compared = (state.rules, state.projects, state.gpus)
        if compared == self._checked:
            return
        self._checked = compared
        unkept = problems(state.policy, capacity_of(state.gpus))
        if unkept:
            self._troubles.raised(PART, "; ".join(unkept))
        else:
            self._troubles.cleared(PART)
