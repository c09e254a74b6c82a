"""What the reconciler makes of an engine, on fakes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.job import Ending, EndKind, JobSpec, Owner
from gpushared.domain.jobs.node_messages import AttemptPrepared, OrderTaken
from gpushared.domain.jobs.protocol import Place
from gpushared.domain.leases.events import (
    ClaimAsked,
    Condition,
    ContainerCreated,
    ContainerSeen,
    GpusSampled,
    GpusSurveyed,
    PreemptAsked,
    RequestSubmitted,
    Tick,
)
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.errors import EngineGone, EngineUnavailable, GpushareError
from gpushared.domain.model.lease import AttemptKey, ContainerId, JobId, LeaseId, Requeued
from gpushared.domain.model.request import Caller, Request
from gpushared.node.runtime.container_reconciler import ContainerReconciler
from gpushared.node.runtime.loop import Loop
from gpushared.ports import ContainerFacts, ContainerStatus, DeviceMechanism
from gpushared.sharing.checkpoint import NoCheckpoints
from gpushared.testing import FAKE_FACTS, FakeCheckpoints, FakeEngine, ManualClock, MemoryJournal
from gpushared.testing.fake_gpus import fake_gpu


@pytest.mark.parametrize(
    ("mechanism", "simulated", "told"),
    [
        (DeviceMechanism.PLAIN, False, True),
        (DeviceMechanism.PLAIN, True, False),
        (DeviceMechanism.CDI, False, False),
    ],
)
async def test_an_engine_that_cannot_pass_real_gpus_on_is_a_trouble(
    mechanism: DeviceMechanism, simulated: bool, told: bool
) -> None:
    troubles = Troubles()
    loop = Loop(NodeState(), MemoryJournal(), ManualClock(), troubles)
    engine = FakeEngine(replace(FAKE_FACTS, gpu_mechanism=mechanism))
    async with loop.running():
        await ContainerReconciler(loop, engine, FakeCheckpoints(), troubles, simulated=simulated).connect()
    assert ("nvidia-container-toolkit" in troubles.of("gpu-mechanism")) is told


@dataclass(frozen=True)
class Failing:
    """What systemd and the engine tell when a container of a job has ended with an error."""

    machine: str = "running"
    docker: str = "active"
    lost_by: GpushareError | None = None
    """By this the daemon learned that the engine was away; a survey then finds the end."""
    finished_ago: float = 0.0
    live_restore: bool = False


GPU = fake_gpu()


@dataclass
class Node:
    """A node on which a container of a job runs."""

    loop: Loop
    clock: ManualClock
    engine: FakeEngine
    reconciler: ContainerReconciler
    attempt: AttemptKey
    lease: LeaseId
    container: ContainerId

    def container_ends(self, exit_code: int, ago_seconds: float = 0.0) -> ContainerFacts:
        facts = replace(
            self.engine._containers[self.container],
            status=ContainerStatus.EXITED,
            exit_code=exit_code,
            finished_at=time.time() - ago_seconds,
        )
        self.engine._containers[self.container] = facts
        return facts

    @property
    def ending(self) -> Ending | None:
        return self.loop.state.attempts["lab"].records[self.attempt].ending


@asynccontextmanager
async def node_with_a_job(engine: FakeEngine) -> AsyncIterator[Node]:
    troubles, clock = Troubles(), ManualClock()
    loop = Loop(NodeState(boot_id="b1"), MemoryJournal(), clock, troubles)
    loop.perform = lambda _: None
    key, ada = AttemptKey(JobId("job"), 1), Caller(1000, 1000, "ada")
    order = Place(key, 1, JobSpec(Request(), Owner("ada@lab", "ada"), image="i", body="{}"), Request())
    async with loop.running():
        await loop.send(GpusSurveyed((GPU,)))
        await loop.send(OrderTaken(order, "lab", ada))
        await loop.send(AttemptPrepared(key, "lab"))
        lease = next(iter(loop.state.leases))
        await loop.send(ClaimAsked(lease, ada))
        box = engine.create(lease)
        await loop.send(ContainerCreated(lease, box, "box", "i", stays=True))
        await loop.send(ContainerSeen(box, Condition.RUNNING))
        reconciler = ContainerReconciler(loop, engine, NoCheckpoints("off"), troubles, simulated=True)
        yield Node(loop, clock, engine, reconciler, key, lease, box)


GONE = EngineGone("no Docker engine answers on /run/docker.sock: Connection refused")
HUNG = EngineUnavailable("the Docker engine did not answer within 10 s")
FAILING = {
    "while systemd shuts the machine down": (Failing(machine="stopping"), EndKind.LOST),
    "while systemd ends Docker": (Failing(docker="deactivating"), EndKind.LOST),
    "while systemd starts Docker again": (Failing(docker="activating"), EndKind.LOST),
    "while systemd ends Docker, which leaves containers alone": (
        Failing(docker="deactivating", live_restore=True),
        EndKind.EXITED,
    ),
    "by itself": (Failing(), EndKind.EXITED),
    "where Docker is no unit of systemd's": (Failing(docker="inactive"), EndKind.EXITED),
    "with its engine": (Failing(lost_by=GONE), EndKind.LOST),
    "before its engine did": (Failing(lost_by=GONE, finished_ago=3600.0), EndKind.EXITED),
    "while its engine was gone, which leaves containers alone": (
        Failing(lost_by=GONE, live_restore=True),
        EndKind.EXITED,
    ),
    "while its engine hung": (Failing(lost_by=HUNG), EndKind.EXITED),
    "while systemd ended Docker and kept its socket": (
        Failing(docker="deactivating", lost_by=HUNG),
        EndKind.LOST,
    ),
}


@pytest.mark.parametrize("name", FAILING)
async def test_a_job_is_lost_and_not_failed_only_where_its_machine_or_engine_ended_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed ..."""
    case, kind = FAILING[name]
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(
        f"#!/bin/sh\ncase $1 in is-active) echo {case.docker};; *) echo {case.machine};; esac\n"
    )
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    engine = FakeEngine(replace(FAKE_FACTS, live_restore=case.live_restore))
    async with node_with_a_job(engine) as node:
        await node.reconciler.connect()
        node.clock.advance(1)
        ended = node.container_ends(143, case.finished_ago)
        if case.lost_by is None:
            await node.reconciler._changed(ended)
        else:
            await node.reconciler._failed(case.lost_by)
            await node.reconciler.connect()
        await node.loop.send(GpusSampled(node.clock.now() + 1, frozenset(), {}, frozenset({GPU.id})))
        ending = node.ending
    assert ending is not None
    assert (ending.kind, ending.exit_code) == (kind, 143)


@pytest.mark.parametrize("lost_by", [GONE, None])
async def test_a_job_that_waits_to_be_started_again_is_not_lost_with_the_engine(
    lost_by: GpushareError | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its container had ended before. ``lost_by`` None: a survey while systemd ends Docker."""
    systemctl = tmp_path / "systemctl"
    systemctl.write_text("#!/bin/sh\ncase $1 in is-active) echo deactivating;; *) echo running;; esac\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    async with node_with_a_job(FakeEngine(replace(FAKE_FACTS, live_restore=False))) as node:
        await node.reconciler.connect()
        await node.loop.send(PreemptAsked(node.lease, Caller(0, 0, "root", trusted=True)))
        node.clock.advance(3600)
        await node.loop.send(Tick())
        await node.loop.send(RequestSubmitted(Request(), Caller(1001, 1001, "bob")))
        await node.reconciler._changed(node.container_ends(143))
        node.clock.advance(1)
        await node.loop.send(GpusSampled(node.clock.now() + 1, frozenset(), {}, frozenset({GPU.id})))
        assert isinstance(node.loop.state.find(node.lease).state, Requeued)
        if lost_by is None:
            await node.reconciler.survey()
        else:
            await node.reconciler._failed(lost_by)
            await node.reconciler.connect()
        assert node.ending is None


async def test_a_survey_reports_a_container_whose_removal_no_event_told() -> None:
    troubles = Troubles()
    loop = Loop(NodeState(), MemoryJournal(), ManualClock(), troubles)
    engine = FakeEngine(FAKE_FACTS)
    box = engine.create("box")
    changes: list[ContainerFacts | ContainerId] = []
    async with loop.running():
        reconciler = ContainerReconciler(loop, engine, FakeCheckpoints(), troubles, simulated=True)
        reconciler.on_change = changes.append
        await reconciler.survey()
        del engine._containers[box]
        for _ in range(2):
            await reconciler.survey()
    assert changes[1:] == [box]


async def test_an_engine_that_was_too_slow_at_the_start_is_no_trouble_once_it_answers() -> None:
    """Else the daemon would go on to look at containers, and show a trouble that is over for ever."""
    troubles = Troubles()
    loop = Loop(NodeState(), MemoryJournal(), ManualClock(), troubles)
    async with loop.running():
        reconciler = ContainerReconciler(
            loop, FakeEngine(FAKE_FACTS), FakeCheckpoints(), troubles, simulated=True
        )
        await reconciler.connect()
        reconciler.lost("the Docker engine does not answer")
        assert troubles.of("engine") == "the Docker engine does not answer"
        following = asyncio.create_task(reconciler.run())
        async with asyncio.timeout(30):
            await reconciler.available.wait()
        following.cancel()
    assert troubles.of("engine") == ""
