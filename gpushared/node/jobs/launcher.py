"""Make the containers of jobs, through the gate and as their owners, and report the results to the core.

Each step may be cut off at any point and is then done again, also after a restart of the daemon: an image
that exists is not pulled, and a container that exists is found by its lease and only started.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.job import AttemptState, Ending, EndKind
from gpushared.domain.jobs.node_messages import (
    AttemptInstruction,
    AttemptPrepared,
    GiveUpAttempt,
    LaunchAttempt,
    LaunchFailed,
    PrepareAttempt,
    TellCoordinator,
)
from gpushared.domain.leases.job_attempts import is_to_launch, under_way
from gpushared.domain.model.errors import (
    GpushareError,
    JournalUnavailable,
    LimitReached,
    TimedOut,
    Unavailable,
)
from gpushared.domain.model.lease import AttemptKey, ContainerId, Lease
from gpushared.net.loopback import LoopbackGate
from gpushared.node.jobs.job_containers import AttemptRefused, JobContainers, KeptContainers
from gpushared.node.jobs.job_images import JobImages, RegistryTrouble
from gpushared.node.jobs.order_handler import OrderHandler
from gpushared.node.runtime.container_reconciler import ContainerReconciler
from gpushared.node.runtime.guard_keeper import GuardKeeper
from gpushared.node.runtime.loop import Loop

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
SURVEY_SECONDS = 0.2

_AttemptId = tuple[str, AttemptKey]


class Launcher:
    """Perform the instructions about attempts; for each attempt at most one at a time."""

    def __init__(
        self,
        loop: Loop,
        order_handler: OrderHandler,
        loopback_gate: LoopbackGate,
        reconciler: ContainerReconciler,
        images: JobImages,
        guard_keeper: GuardKeeper,
        kept_containers: KeptContainers,
    ) -> None:
        self._loop = loop
        self._order_handler = order_handler
        self._loopback_gate = loopback_gate
        self._reconciler = reconciler
        self._images = images
        self._guard_keeper = guard_keeper
        self._kept_containers = kept_containers
        self._tasks: dict[_AttemptId, asyncio.Task[None]] = {}

    def perform(self, instruction: AttemptInstruction) -> None:
        """Begin to perform an instruction; its results come back to the core as events."""
        attempt_id = (instruction.coordinator, instruction.key)
        match instruction:
            case PrepareAttempt():
                self._begin(attempt_id, self._prepare(attempt_id))
            case LaunchAttempt():
                self._begin(attempt_id, self._launch(attempt_id))
            case GiveUpAttempt():
                self._give_up(attempt_id)
            case TellCoordinator(key, coordinator):
                self._order_handler.notify_subscribers(coordinator, key)

    def take_up(self) -> None:
        """Resume the instructions that the daemon's end cut off."""
        for instruction in under_way(self._loop.state):
            self.perform(instruction)

    async def close(self) -> None:
        """Cancel the work under way; the daemon's next run does it again."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, attempt_id: _AttemptId, work: Coroutine[Any, Any, None]) -> None:
        before = self._tasks.get(attempt_id)
        task = asyncio.create_task(_after(before, work))
        self._tasks[attempt_id] = task
        task.add_done_callback(partial(self._finished, attempt_id))

    def _finished(self, attempt_id: _AttemptId, task: asyncio.Task[None]) -> None:
        if self._tasks.get(attempt_id) is task:
            del self._tasks[attempt_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work for attempt %s failed", attempt_id[1], exc_info=error)
            # A bug of the daemon must not leave the attempt waiting for ever.
            ending = Ending(EndKind.FAILED, f"the daemon made a mistake: {error}", hint="see its log")
            self._begin(attempt_id, self._insist(LaunchFailed(attempt_id[1], ending, attempt_id[0])))

    def _give_up(self, attempt_id: _AttemptId) -> None:
        if (task := self._tasks.get(attempt_id)) is not None:
            task.cancel()

    def _live_attempt(self, attempt_id: _AttemptId) -> Attempt | None:
        coordinator, key = attempt_id
        attempt_log = self._loop.state.attempts.get(coordinator)
        return None if attempt_log is None else attempt_log.live.get(key)

    async def _insist(self, event: AttemptPrepared | LaunchFailed) -> None:
        """Send the event again while the journal cannot write it."""
        while True:
            try:
                await self._loop.send(event)
            except (JournalUnavailable, LimitReached):
                await asyncio.sleep(RETRY_SECONDS)
            except GpushareError as error:
                log.warning("what became of attempt %s is not noted: %s", event.key, error)
                return
            else:
                return

    # --- preparing -------------------------------------------------------------------------------------

    async def _prepare(self, attempt_id: _AttemptId) -> None:
        attempt = self._live_attempt(attempt_id)
        if attempt is None or attempt.state is not AttemptState.PREPARING:
            return
        ending = None
        assert attempt.spec is not None, "only tombstones have none"
        assert attempt.account is not None, "refused without one"
        if not attempt.spec.interactive:
            try:
                await self._images.prepare(attempt.spec, attempt.account)
            except GpushareError as error:
                passing = isinstance(error, RegistryTrouble)
                ending = Ending(EndKind.FAILED, error.message, hint=error.hint, passing=passing)
        coordinator, key = attempt_id
        await self._insist(AttemptPrepared(key, coordinator, ending))

    # --- launching -------------------------------------------------------------------------------------

    async def _launch(self, attempt_id: _AttemptId) -> None:
        coordinator, key = attempt_id
        # Before the engine has been surveyed, a container may exist that no record has.
        while not self._loop.state.engine_surveyed:
            await self._loop.changed(SURVEY_SECONDS)
        while (attempt := self._live_attempt(attempt_id)) is not None and is_to_launch(
            attempt, self._loop.state
        ):
            lease = self._loop.state.attempt_lease(attempt)
            assert lease is not None, "one that is to be launched has a lease"
            try:
                await self._create_and_start(attempt, lease)
            except AttemptRefused as refused:
                await self._insist(LaunchFailed(key, refused.ending, coordinator))
                return
            except (Unavailable, TimedOut) as error:
                # The engine is away. The lease's own deadline ends these tries.
                log.info("attempt %s is not launched yet: %s", key, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _create_and_start(self, attempt: Attempt, lease: Lease) -> None:
        assert attempt.account is not None, "refused without one"
        gate = self._loopback_gate.gate_as(attempt.account)
        containers = JobContainers(gate, attempt, self._kept_containers)
        container = lease.container
        if container is None:
            container = await containers.create(lease)
            await self._report_if_unbound(container, lease)
        if attempt.is_fenced:
            await self._arm_guard(container)
        await containers.start(container)

    async def _arm_guard(self, container: ContainerId) -> None:
        """Arm the guard that the coordinator was promised.

        Without a guard the container does not start here.
        """
        try:
            await self._guard_keeper.arm(container)
        except Unavailable as error:
            ending = Ending(EndKind.FAILED, error.message, hint=error.hint, passing=True)
            raise AttemptRefused(ending) from error

    async def _report_if_unbound(self, container: ContainerId, lease: Lease) -> None:
        """Bind a container to its lease if an earlier try made the container and its answer never came."""
        current = self._loop.state.leases.get(lease.id)
        if current is not None and current.container is None:
            await self._reconciler.inspect(container)


async def _after(before: asyncio.Task[None] | None, work: Coroutine[Any, Any, None]) -> None:
    if before is not None:
        try:
            await asyncio.wait({before})
        except asyncio.CancelledError:
            work.close()
            raise
    await work
