"""Perform the core's instructions, such as edits and stops; a container gets its instructions in order.

Each instruction is a task. No task blocks another, except for tasks of one container that need an order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, assert_never
from weakref import WeakValueDictionary

from gpushared.daemon.tasks import TaskSet
from gpushared.domain.jobs.node_messages import (
    AttemptInstruction,
    GiveUpAttempt,
    LaunchAttempt,
    PrepareAttempt,
    TellCoordinator,
)
from gpushared.domain.leases import events as m
from gpushared.domain.leases.instructions import (
    DropEdits,
    FreezeAgain,
    HoldContainer,
    InspectContainer,
    Instruction,
    MakeEdits,
    NotifyContainer,
    ResumeContainer,
    SampleGpus,
    StartContainer,
    StopContainer,
    SuspendContainer,
)
from gpushared.domain.leases.stop_order import AskedEnd
from gpushared.domain.model.errors import EngineUnavailable, GpushareError, SharingUnavailable, TimedOut
from gpushared.domain.model.lease import (
    ContainerId,
    Lease,
    LeaseId,
    LeaseState,
    Resuming,
    Starting,
    Suspended,
    Suspending,
)
from gpushared.engine.processes import began_with, place_of
from gpushared.node.runtime.container_reconciler import ContainerReconciler
from gpushared.node.runtime.loop import Loop
from gpushared.node.runtime.mps_detach import MpsDetach
from gpushared.node.runtime.sampler import Sampler
from gpushared.node.runtime.suspension_worker import Suspender
from gpushared.ports import Checkpoints, Edits, Engine, Sharing

log = logging.getLogger(__name__)

EDITS_RETRY_SECONDS = 5.0
RESUME_EDITS_SECONDS = 30.0
"""A container that must be resumed waits this long for its settings; then the core has to ask again."""

OnContainer = (
    StopContainer
    | StartContainer
    | SuspendContainer
    | FreezeAgain
    | ResumeContainer
    | HoldContainer
    | InspectContainer
)

InTurn = SuspendContainer | FreezeAgain | ResumeContainer | StartContainer
"""A container performs these instructions one at a time."""


class Executor:
    """Perform instructions, and keep the edits of the leases that have some."""

    def __init__(
        self,
        loop: Loop,
        sharing: Sharing,
        engine: Engine,
        checkpoints: Checkpoints,
        reconciler: ContainerReconciler,
        sampler: Sampler,
    ) -> None:
        self.on_attempt: Callable[[AttemptInstruction], None] = lambda _: None
        """This function performs instructions about attempts; without one the attempts stay as they are."""
        self._loop = loop
        self._sharing = sharing
        self._engine = engine
        self._reconciler = reconciler
        self._sampler = sampler
        self.mps_detach = MpsDetach(loop, sharing, engine)
        self._suspender = Suspender(loop, engine, checkpoints, sampler.free_bytes)
        self._queues = ContainerQueues(lambda: loop.state.leases, self._perform_in_turn, self._begin)
        self._edits: dict[LeaseId, asyncio.Future[Edits]] = {}
        # A container that is started again has a new lease under its old device name.
        self._devices: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # The event loop itself keeps only weak references to tasks.
        self._tasks = TaskSet()

    def perform(self, instruction: Instruction) -> None:
        """Begin to perform an instruction; its results come back to the core as events."""
        match instruction:
            case MakeEdits(lease):
                self._expect_edits(lease)
                self._begin(self._make_edits(lease))
            case DropEdits(lease, device_name):
                self._begin(self._drop_edits(lease, device_name))
            case NotifyContainer(lease):
                self._begin(self._notify(lease))
            case SampleGpus():
                self._sampler.ask()
            case PrepareAttempt() | LaunchAttempt() | GiveUpAttempt() | TellCoordinator():
                self.on_attempt(instruction)
            case _:
                self._perform_on_container(instruction)

    def _perform_on_container(self, instruction: OnContainer) -> None:
        match instruction:
            case StopContainer():
                self._begin(self._stop(instruction))
            case StartContainer() | SuspendContainer() | FreezeAgain() | ResumeContainer():
                self._queues.put(instruction)
            case HoldContainer(lease, container):
                self._look_after_start(lease, container)
            case InspectContainer(container):
                self._begin(self._reconciler.inspect(container))

    async def _perform_in_turn(self, instruction: InTurn) -> None:
        match instruction:
            case StartContainer():
                await self._guarded(self._start(instruction))
            case SuspendContainer(lease, container):
                await self._guarded(self._suspender.suspend(lease, container))
            case FreezeAgain(lease, container):
                await self._guarded(self._suspender.freeze_again(lease, container))
            case ResumeContainer(lease, container):
                await self._guarded(self._resume(lease, container))
            case _:
                assert_never(instruction)

    def _look_after_start(self, lease_id: LeaseId, container: ContainerId) -> None:
        lease = self._loop.state.leases.get(lease_id)
        if lease is not None and self._sharing.holds(lease):
            self._begin(self._hold(lease_id, container))
        if lease is not None and lease.asked_first is not None:
            self._begin(self._report_settings(lease_id, container))

    def _expect_edits(self, lease: LeaseId) -> None:
        """Accept only settings for the lease's present grants from now on; waiting tasks wait on."""
        future = self._edits.get(lease)
        if future is None or future.done():
            self._edits[lease] = asyncio.get_running_loop().create_future()

    def remake_all(self) -> None:
        """Make the edits of all containers again after a start, before the engine restarts any of them."""
        for lease in self._loop.state.holders():
            self.perform(MakeEdits(lease.id))

    async def settle(self, timeout_seconds: float) -> None:
        """Wait until the edits asked for so far are in place or refused, but not longer than this."""
        if self._edits:
            await asyncio.wait(self._edits.values(), timeout=timeout_seconds)

    async def edits_of(self, lease: LeaseId) -> Edits:
        """Return the lease's edits as soon as they are in place; raises if they cannot be made."""
        future = self._edits.get(lease)
        if future is None:
            raise SharingUnavailable(f"lease {lease} has no settings", hint="ask for a new one")
        return await asyncio.shield(future)

    async def close(self) -> None:
        """Cancel the work under way. Half-done work is done again at the next start."""
        await self._tasks.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except GpushareError as error:
            # The core asks again by its deadlines; the part's own trouble is shown by the part that noticed
            # it.
            log.warning("instruction failed: %s", error)

    async def _make_edits(self, lease_id: LeaseId) -> None:
        """Try until the edits are made or the lease is over: a container may need them much later."""
        reported = ""
        while (lease := await self._holder(lease_id)) is not None:
            try:
                edits = await self._open(lease)
            except GpushareError as error:
                if str(error) != reported:
                    reported = str(error)
                    await self._loop.send(m.EditsFailed(lease_id, reported))
                if lease_id not in self._loop.state.leases:
                    self._fail(lease_id, error)
                    return
                await asyncio.sleep(EDITS_RETRY_SECONDS)
            else:
                current = self._loop.state.leases.get(lease_id)
                if edits is not None and current is not None and current.grants not in ((), lease.grants):
                    continue  # resized in between
                if edits is not None:
                    self._succeed(lease_id, edits)
                    await self._loop.send(m.EditsMade(lease_id, edits.walls))
                return

    async def _holder(self, lease_id: LeaseId) -> Lease | None:
        """Return the lease if it holds something, once the GPUs are known.

        After a start the driver may be slow.
        """
        while (lease := self._loop.state.leases.get(lease_id)) is not None and lease.grants:
            if self._loop.state.gpus:
                return lease
            await self._loop.changed(EDITS_RETRY_SECONDS)
        return None

    async def _open(self, lease: Lease) -> Edits | None:
        """Return the edits, or None if the lease has ended."""
        async with self._device(lease.device_name):
            if lease.id not in self._loop.state.leases:
                return None
            facts = self._reconciler.facts
            lease = self._in_day_time(lease)
            edits = await self._sharing.open(lease, self._loop.state.gpus, facts)
            if lease.notice is not None:
                await self._sharing.tell(lease)
            # Before the engine has ever answered, at boot, its devices are written all the same: the engine
            # reads them when it starts its containers, which may be before it answers us.
            if facts is None or facts.lease_devices:
                await self._engine.write_device(lease.device_name, edits)
            return edits

    def _in_day_time(self, lease: Lease) -> Lease:
        """Return the lease with times of day where its container can read a time."""
        day, notice = self._loop.state.day, lease.notice
        return replace(
            lease,
            expires_at=None if lease.expires_at is None else day(lease.expires_at),
            notice=None if notice is None else replace(notice, until=day(notice.until)),
        )

    def _device(self, device_name: str) -> asyncio.Lock:
        """Return the lock of a device, whose edits are made and dropped one after the other."""
        return self._devices.setdefault(device_name, asyncio.Lock())

    def _succeed(self, lease: LeaseId, edits: Edits) -> None:
        future = self._edits.get(lease)
        if future is not None and not future.done():
            future.set_result(edits)

    def _fail(self, lease: LeaseId, error: GpushareError) -> None:
        future = self._edits.get(lease)
        if future is not None and not future.done():
            future.set_exception(error)
            future.exception()  # without this asyncio would warn if no task awaited the future

    async def _drop_edits(self, lease: LeaseId, device_name: str) -> None:
        self._fail(lease, SharingUnavailable(f"lease {lease} is over", hint="ask for a new one"))
        self._edits.pop(lease, None)
        async with self._device(device_name):
            if self._loop.state.of_device(device_name) is not None:
                return  # a restarted container has a new lease under the same name
            await self._sharing.close_lease(lease, device_name)
            await self._engine.remove_device(device_name)

    async def _hold(self, lease_id: LeaseId, container: ContainerId) -> None:
        facts = await self._engine.inspect(container)
        cgroup = await asyncio.to_thread(place_of, facts.pid, container) if facts is not None else None
        lease = self._loop.state.leases.get(lease_id)
        if cgroup is None or lease is None:
            return
        async with self._device(lease.device_name):
            await self._sharing.hold(lease, cgroup)

    async def _report_settings(self, lease: LeaseId, container: ContainerId) -> None:
        """Report to the core if a container whose lease was resized has started with the present settings.

        The container's environment shows that: an engine that knows lease devices sets it at every start.
        """
        edits = await self.edits_of(lease)
        facts = await self._engine.inspect(container)
        if facts is not None and await asyncio.to_thread(began_with, facts.pid, edits.env):
            await self._loop.send(m.SettingsTaken(lease, container, edits.walls))

    async def _resume(self, lease: LeaseId, container: ContainerId) -> None:
        try:
            async with asyncio.timeout(RESUME_EDITS_SECONDS):
                await self.edits_of(lease)
        except TimeoutError:
            raise TimedOut(f"the settings of lease {lease} are not in place yet") from None
        await self._suspender.resume(lease, container)

    async def _notify(self, lease_id: LeaseId) -> None:
        """Write the notice's file before the signal, because the signal makes a program look for the file.

        Most programs save and end at the signal, so a program that need not end gets none.
        """
        lease = self._loop.state.leases.get(lease_id)
        if lease is None:
            return
        await self._sharing.tell(self._in_day_time(lease))
        signal = lease.request.notice_signal
        if lease.notice is not None and lease.notice.ends and signal and lease.container is not None:
            await self._engine.signal(lease.container, signal)

    async def _stop(self, instruction: StopContainer) -> None:
        container, grace = instruction.container, instruction.grace_seconds
        try:
            with self._queues.stop(container):
                async with self.mps_detach.around(container, AskedEnd(grace_seconds=grace)):
                    await self._engine.stop(container, grace)
        except (EngineUnavailable, TimedOut):
            # A survey notices an engine that hangs, and reports it.
            self._reconciler.ask_survey()
            raise
        await self._reconciler.inspect(instruction.container)

    async def _start(self, instruction: StartContainer) -> None:
        """Start a container with settings as fresh as at its first start: the MPS daemon may be new."""
        lease = self._loop.state.leases.get(instruction.lease)
        if lease is None or await self._open(lease) is None:
            return
        await self._engine.start_again(instruction.container)
        await self._loop.send(m.RestartDone(instruction.lease))


class ContainerQueues:
    """Keep one queue for each container: an instruction begins when the one before it is over.

    A queue holds the instruction that is under way and one that waits. More is not needed: the newest
    instruction is the core's present wish for the container, and an instruction that the core does not want
    any more when its turn comes is left out, with a line in the log.

    A stop waits for nothing, so that a container can be ended whatever hangs. Instructions that come after a
    stop wait for it, because it would end what they begin.
    """

    def __init__(
        self,
        leases: Callable[[], Mapping[LeaseId, Lease]],
        perform: Callable[[InTurn], Awaitable[None]],
        begin: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """Take ``leases``, which returns the unfinished leases, and functions to run an instruction.

        ``perform`` performs it; ``begin`` runs a coroutine as a task.
        """
        self._leases = leases
        self._perform = perform
        self._begin = begin
        self._queues: dict[ContainerId, deque[InTurn]] = {}
        self._stops: dict[ContainerId, set[asyncio.Task[Any]]] = {}

    def put(self, instruction: InTurn) -> None:
        """Queue an instruction; it begins when the one before it is over."""
        queue = self._queues.get(instruction.container)
        if queue is None:
            self._queues[instruction.container] = deque([instruction])
            self._begin(self._perform_queued(instruction.container))
            return
        if len(queue) > 1 and (superseded := queue.pop()) != instruction:
            log.info("superseded by %r: %r", instruction, superseded)
        queue.append(instruction)

    @contextmanager
    def stop(self, container: ContainerId) -> Iterator[None]:
        """Note that the running task stops the container at once; later instructions wait for the stop."""
        task = asyncio.current_task()
        assert task is not None, "only in a task"
        stops = self._stops.setdefault(container, set())
        stops.add(task)
        try:
            yield
        finally:
            stops.discard(task)
            if not stops:
                self._stops.pop(container, None)

    async def _perform_queued(self, container: ContainerId) -> None:
        queue = self._queues[container]
        try:
            while queue:
                while stops := self._stops.get(container):
                    await asyncio.wait(set(stops))
                if self._is_wanted(queue[0]):
                    await self._perform(queue[0])
                else:
                    log.info("not needed any more: %r", queue[0])
                queue.popleft()
        finally:
            del self._queues[container]

    def _is_wanted(self, instruction: InTurn) -> bool:
        lease = self._leases().get(instruction.lease)
        return (
            lease is not None
            and lease.container == instruction.container
            and _asks_for(lease.state, instruction)
        )


def _asks_for(state: LeaseState, instruction: InTurn) -> bool:
    """Return True if a lease in this state waits for the instruction."""
    match instruction:
        case SuspendContainer():
            return isinstance(state, Suspending)
        case FreezeAgain():
            return isinstance(state, Suspended)
        case ResumeContainer():
            return isinstance(state, Resuming)
        case StartContainer():
            return isinstance(state, Starting) and state.by_node
        case _:
            assert_never(instruction)
