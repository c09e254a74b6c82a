"""What the reconciler makes of an engine, on fakes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.job import EndKind, JobSpec, Owner
from gpushared.domain.jobs.node_messages import AttemptPrepared, OrderTaken
from gpushared.domain.jobs.protocol import Place
from gpushared.domain.leases.events import (
    ClaimAsked,
    Condition,
    ContainerCreated,
    ContainerSeen,
    GpusSampled,
    GpusSurveyed,
)
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.lease import AttemptKey, ContainerId, JobId
from gpushared.domain.model.request import Caller, Request
from gpushared.node.runtime.container_reconciler import ContainerReconciler
from gpushared.node.runtime.loop import Loop
from gpushared.ports import ContainerFacts, ContainerStatus, DeviceMechanism
from gpushared.testing import FAKE_FACTS, FakeCheckpoints, FakeEngine, ManualClock, MemoryJournal
from gpushared.testing.fake_gpus import fake_gpu

BOX = ContainerId("box")


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


@pytest.mark.parametrize(("said", "kind"), [("stopping", EndKind.LOST), ("running", EndKind.EXITED)])
async def test_a_job_that_fails_while_systemd_shuts_the_machine_down_is_lost(
    said: str, kind: EndKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a reboot: the engine is ended before this daemon, and ends its containers."""
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f"#!/bin/sh\necho {said}\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    troubles, engine = Troubles(), FakeEngine(FAKE_FACTS)
    clock = ManualClock()
    loop = Loop(NodeState(boot_id="b1"), MemoryJournal(), clock, troubles)
    loop.perform = lambda _: None
    key, ada, gpu = AttemptKey(JobId("job"), 1), Caller(1000, 1000, "ada"), fake_gpu()
    order = Place(key, 1, JobSpec(Request(), Owner("ada@lab", "ada"), image="i", body="{}"), Request())
    async with loop.running():
        await loop.send(GpusSurveyed((gpu,)))
        await loop.send(OrderTaken(order, "lab", ada))
        await loop.send(AttemptPrepared(key, "lab"))
        lease = next(iter(loop.state.leases))
        await loop.send(ClaimAsked(lease, ada))
        await loop.send(ContainerCreated(lease, BOX, "box", "i"))
        await loop.send(ContainerSeen(BOX, Condition.RUNNING))
        reconciler = ContainerReconciler(loop, engine, FakeCheckpoints(), troubles, simulated=True)
        await reconciler._changed(
            ContainerFacts(BOX, "box", "i", ContainerStatus.EXITED, 143, 0, lease, ada.uid, "")
        )
        await loop.send(GpusSampled(clock.now() + 1, frozenset(), {}, frozenset({gpu.id})))
        ending = loop.state.attempts["lab"].records[key].ending
    assert ending is not None
    assert (ending.kind, ending.exit_code) == (kind, 143)


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
