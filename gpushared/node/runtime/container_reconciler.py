"""Reconcile the core's view of containers with the engine, and keep users' common limits in force."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path

from gpushared.daemon.systemd import is_docker_going_down, is_machine_going_down
from gpushared.daemon.tasks import within
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.node_messages import EngineEnded, MachineGoesDown
from gpushared.domain.leases.events import Condition, ContainerSeen, EngineSurveyed, Means, MeansKnown
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.errors import EngineGone, GpushareError, JournalUnavailable
from gpushared.domain.model.lease import (
    Active,
    ContainerId,
    Draining,
    Lease,
    Paused,
    Requeued,
    Starting,
    Suspended,
)
from gpushared.gate.containers.inject import binds_late, is_unnamed
from gpushared.node.runtime.loop import Loop
from gpushared.ports import (
    Checkpoints,
    ContainerFacts,
    ContainerStatus,
    DeviceMechanism,
    Engine,
    EngineFacts,
    UserBounds,
)
from gpushared.sharing.user_cgroups import UserCgroups

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
SURVEY_SECONDS = 30.0
"""Events can be lost between an engine's end and its start; a survey finds the changes that they would have
reported."""

_CONDITIONS = {
    ContainerStatus.CREATED: Condition.CREATED,
    ContainerStatus.RUNNING: Condition.RUNNING,
    ContainerStatus.PAUSED: Condition.PAUSED,
    ContainerStatus.RESTARTING: Condition.RESTARTING,
    ContainerStatus.REMOVING: Condition.EXITED,
    ContainerStatus.EXITED: Condition.EXITED,
    ContainerStatus.DEAD: Condition.EXITED,
}
USERS_NAME = "users.json"


def event_of(facts: ContainerFacts) -> ContainerSeen:
    """Return the engine's facts in the core's terms; ``created`` with an exit code means a failed start."""
    condition = _CONDITIONS[facts.status]
    if condition is Condition.CREATED and facts.exit_code != 0:
        condition = Condition.EXITED
    code = facts.exit_code if condition in (Condition.EXITED, Condition.RESTARTING) else None
    return ContainerSeen(
        facts.id,
        condition,
        facts.device_name,
        code,
        facts.name,
        facts.image,
        facts.memory,
        facts.start_error if condition is Condition.EXITED else "",
        facts.ran_seconds if condition is Condition.EXITED else None,
    )


def _ended_job(event: ContainerSeen, state: NodeState) -> Lease | None:
    """Return the lease of a job whose container has ended; None if this node ends the lease itself."""
    if event.condition not in {Condition.EXITED, Condition.GONE}:
        return None
    lease = state.of_container(event.container)
    if lease is None or lease.attempt is None or isinstance(lease.state, Draining):
        return None
    # A container that is to be started again had ended before.
    waits = isinstance(lease.state, Requeued) or (isinstance(lease.state, Starting) and lease.state.held)
    return lease if event.condition is Condition.GONE or not waits else None


def _is_unfinished_job(event: ContainerSeen, state: NodeState) -> bool:
    """Return True if a job's container has ended with an error, or while its programs were frozen."""
    lease = _ended_job(event, state)
    if lease is None or event.condition is not Condition.EXITED:
        return False
    return bool(event.exit_code) or isinstance(lease.state, Paused | Suspended)


class ContainerReconciler:
    """Keep the core's view of the containers true, also when the engine goes away and comes back."""

    def __init__(
        self, loop: Loop, engine: Engine, checkpoints: Checkpoints, troubles: Troubles, *, simulated: bool
    ) -> None:
        self.facts: EngineFacts | None = None
        self.available = asyncio.Event()
        self.on_change: Callable[[ContainerFacts | ContainerId], None] = lambda _: None
        """This function gets each changed container after the core did."""
        self.on_reached: Callable[[], None] = lambda: None
        """This function is called each time that the engine answers again."""
        self.before_job_ends: Callable[[], Awaitable[None]] = _do_nothing
        """This function reports facts that the core must know before the end of a job's container."""
        self._loop = loop
        self._engine = engine
        self._checkpoints = checkpoints
        self._troubles = troubles
        self._simulated = simulated
        self._survey_asked = asyncio.Event()
        self._begun: dict[ContainerId, float] = {}
        """The newest run of each container that the core has heard of began then; 0 before the first."""
        self._surveyed_at: float | None = None
        """The last survey that the engine answered began at this time (seconds since the epoch)."""
        self._gone = False
        """This is True from the engine's end until a new connection."""

    def ask_survey(self) -> None:
        """Look at all containers soon."""
        self._survey_asked.set()

    async def run(self) -> None:
        """Survey and listen for ever, and begin again when the engine went away."""
        await asyncio.gather(self._keep_surveying(), self._keep_listening())

    async def _keep_surveying(self) -> None:
        while True:
            try:
                await (self.survey() if self.available.is_set() else self.connect())
            except GpushareError as error:
                await self._failed(error)
            pause = SURVEY_SECONDS if self.available.is_set() else RETRY_SECONDS
            await self._pause_unless_asked(pause)

    async def _pause_unless_asked(self, seconds: float) -> None:
        await within(self._survey_asked, seconds)
        self._survey_asked.clear()

    async def _keep_listening(self) -> None:
        while True:
            await self.available.wait()
            # A survey after the stream has opened finds the events from the time without a stream.
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self.ask_survey)
            try:
                async for change in self._engine.events():
                    await self._changed(change)
            except GpushareError as error:
                await self._failed(error)
                self.ask_survey()
            await asyncio.sleep(RETRY_SECONDS)

    async def _changed(self, change: ContainerFacts | ContainerId) -> None:
        try:
            await self._report(change)
        except JournalUnavailable:
            log.debug("change not recorded: the journal is away; a survey follows")
        self.on_change(change)

    async def _failed(self, error: GpushareError) -> None:
        if isinstance(error, JournalUnavailable):
            return
        self.lost(str(error))
        # Where systemd listens for Docker, a call during its restart meets no refusal and just takes long.
        if isinstance(error, EngineGone) or (not self._gone and await is_docker_going_down()):
            self._gone = True

    def lost(self, text: str) -> None:
        """Raise the trouble that the engine does not answer; only a new connection ends that trouble."""
        self.available.clear()
        self._troubles.raised("engine", text)

    async def connect(self) -> None:
        """Probe the engine's abilities, and survey its containers."""
        before, self.facts = self.facts, await self._engine.probe()
        self._check_mechanism(self.facts)
        await self._loop.send(MeansKnown(await self._means(self.facts)))
        ends_containers = before is not None and not before.live_restore and not self.facts.live_restore
        await self.survey(ended_since=self._surveyed_at if self._gone and ends_containers else None)
        self._gone = False
        self._troubles.cleared("engine")
        self.available.set()
        self.on_reached()

    async def _means(self, facts: EngineFacts) -> Means:
        try:
            trouble = await self._checkpoints.trouble()
        except GpushareError as error:
            trouble = error.message
        return Means(trouble, self._checkpoints.with_mps, binds_late(facts))

    def _check_mechanism(self, facts: EngineFacts) -> None:
        """Raise a trouble if real GPUs have no way into containers; simulated GPUs need none."""
        if facts.gpu_mechanism is DeviceMechanism.PLAIN and not self._simulated:
            self._troubles.raised(
                "gpu-mechanism",
                "the Docker engine cannot put a GPU into a container: it has neither NVIDIA's CDI devices "
                "nor its runtime (install nvidia-container-toolkit, then `nvidia-ctk cdi generate`)",
            )
        else:
            self._troubles.cleared("gpu-mechanism")

    async def _check_instances(self) -> None:
        """Probe again for MIG instances that the last probe's specs did not name.

        A trouble names the instances that are still missing.
        """
        if not self.facts or not self._unnamed(self.facts):
            self._troubles.cleared("mig-specs")
            return
        self.facts = await self._engine.probe()
        unnamed = self._unnamed(self.facts)
        if not unnamed:
            self._troubles.cleared("mig-specs")
            return
        other = self.facts.other_mechanism
        without = other is DeviceMechanism.PLAIN
        then = "no container can have them" if without else f"they are given by {other} instead"
        self._troubles.raised(
            "mig-specs",
            f"no CDI spec names MIG instance {', '.join(unnamed)}: {then} "
            f"(`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` after each change of instances)",
        )

    def _unnamed(self, facts: EngineFacts) -> list[str]:
        return [gpu.label for gpu in self._loop.state.gpus.values() if is_unnamed(gpu.id, facts)]

    async def survey(self, ended_since: float | None = None) -> None:
        """Report all containers to the core.

        ``ended_since``: the engine has ended since then, and ended the containers that it had; earlier ends
        were reported while it ran.
        """
        at, began_at, known = self._loop.now(), time.time(), frozenset(self._begun)
        containers = await self._engine.containers()
        events = tuple(self._event_of(facts) for facts in containers)
        if ended_since is not None:
            late = {each.id for each in containers if (each.finished_at or 0.0) >= ended_since}
            await self._report_engine_end([event for event in events if event.container in late])
        await self._report_before_ends(*events)
        await self._loop.send(EngineSurveyed(events, at))
        self._surveyed_at = began_at
        for facts in containers:
            self.on_change(facts)
        for gone in known - {facts.id for facts in containers}:
            self._begun.pop(gone, None)
            self.on_change(gone)
        await self._check_instances()

    async def inspect(self, container: ContainerId) -> None:
        """Report one container to the core."""
        facts = await self._engine.inspect(container)
        await self._report(container if facts is None else facts)

    async def note_end(self, facts: ContainerFacts, at: float) -> None:
        """Report an end to the core that no event has reported yet; ``facts`` are of ``at``, or later.

        The engine answers a stop before it reports the end.
        """
        event, lease = event_of(facts), self._loop.state.of_container(facts.id)
        if lease is None or event.condition is not Condition.EXITED:
            return
        if isinstance(lease.state, Active | Paused) and lease.state.since < at:
            await self._report(facts)

    async def _report(self, change: ContainerFacts | ContainerId) -> None:
        event = (
            self._event_of(change)
            if isinstance(change, ContainerFacts)
            else ContainerSeen(change, Condition.GONE)
        )
        await self._report_before_ends(event)
        await self._loop.send(event)

    def _event_of(self, facts: ContainerFacts) -> ContainerSeen:
        """Return the engine's facts in the core's terms, with whether the core has not heard of this run yet."""
        known, began = self._begun.get(facts.id), facts.started_at or 0.0
        self._begun[facts.id] = max(known or 0.0, began)
        return replace(event_of(facts), runs_anew=known is not None and began > known)

    async def _report_before_ends(self, *events: ContainerSeen) -> None:
        """Report first the facts that explain the ends of jobs, such as a shutdown of the machine.

        At a shutdown the engine ends all containers, and is itself ended before this daemon. Without this
        check the jobs in the containers would count as failed, but they have to run again. The check is made
        only when a job ends unfinished.
        """
        if any(_ended_job(event, self._loop.state) is not None for event in events):
            await self.before_job_ends()
        state = self._loop.state
        is_asked = not state.goes_down and any(_is_unfinished_job(event, state) for event in events)
        if not is_asked:
            return
        if await is_machine_going_down():
            await self._loop.send(MachineGoesDown())
        elif self.facts is not None and not self.facts.live_restore and await is_docker_going_down():
            await self._report_engine_end(events)

    async def _report_engine_end(self, events: Iterable[ContainerSeen]) -> None:
        """Report that the engine, and not their programs, ended the containers of unfinished jobs."""
        ended = frozenset(event.container for event in events if _is_unfinished_job(event, self._loop.state))
        if ended:
            await self._loop.send(EngineEnded(ended))


async def _do_nothing() -> None:
    """Do nothing, because before the parts are wired nothing else is known."""


class UserLimitKeeper:
    """Keep users' limits in force.

    ``bounds`` returns the limits; ``facts`` returns None before the engine has answered.
    """

    def __init__(
        self,
        name: str,
        state_dir: Path,
        bounds: Callable[[], UserBounds],
        facts: Callable[[], EngineFacts | None],
    ) -> None:
        self.cgroups = UserCgroups(name, state_dir / USERS_NAME)
        self._bounds = bounds
        self._facts = facts
        self._due = asyncio.Event()

    @property
    def trouble(self) -> str:
        return self.cgroups.trouble

    async def restore(self) -> None:
        """Set the limits at the daemon's start, before the engine starts containers by itself."""
        await self.cgroups.restore(self._bounds())

    def changed(self) -> None:
        """Set the limits again because the engine answers (again), or the limits changed."""
        self._due.set()

    async def joining(self, uid: int) -> list[str]:
        """Return the files by which a process joins the user's cgroups; empty where there are none."""
        facts = self._facts()
        if facts is None:
            return []
        try:
            await self.cgroups.hold(uid, self._bounds(), facts)
        except GpushareError:
            return []
        return [str(file) for file in await self.cgroups.join_files(uid, facts)]

    async def run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            if (facts := self._facts()) is not None:
                await self.cgroups.on_engine_answer(self._bounds(), facts)
