"""What the follower makes of an engine, on fakes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.state import NodeState
from gpushared.node.follower import Follower
from gpushared.node.loop import Loop
from gpushared.ports import DeviceMechanism
from gpushared.serving.troubles import Troubles
from gpushared.testing import FAKE_FACTS, FakeCheckpoints, FakeEngine, ManualClock, MemoryJournal


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
        await Follower(loop, engine, FakeCheckpoints(), troubles, simulated=simulated).connect()
    assert ("nvidia-container-toolkit" in troubles.of("gpu-mechanism")) is told
