"""The watchdog on a real GPU: what the driver shows of a process that takes more than its lease holds."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from bench.gpu.lab import Lab
from bench.gpu.leases import lease_of
from gpushared.daemon.troubles import Troubles
from gpushared.domain.leases.instructions import Instruction, StopContainer
from gpushared.domain.leases.node_rules import MpsMode
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.gpu import MIB, Gpu
from gpushared.domain.model.lease import (
    Active,
    ContainerId,
    Draining,
    Grant,
    Lease,
    OverLimit,
)
from gpushared.gpus.nvml import NvmlGpus
from gpushared.node.runtime.loop import Loop
from gpushared.node.runtime.sampler import Sampler
from gpushared.sharing.mps import MpsSharing
from gpushared.testing import ManualClock, MemoryJournal
from tests.gpu.conftest import Contained

LEASED_MIB = 1536


def holding(lease: Lease, gpu: Gpu, container: str) -> Lease:
    """The lease with a running container and so much memory."""
    grant = Grant(gpu.id, LEASED_MIB * MIB, 100)
    return replace(lease, state=Active((grant,), ContainerId(container), since=0.0))


@pytest.mark.parametrize(
    ("held_mib", "is_ended"), [(512, False), (4096, True)], ids=["inside its lease", "over its lease"]
)
async def test_a_process_that_holds_more_than_its_lease_has_its_container_stopped(
    gpu: Gpu, gpus: NvmlGpus, lab: Lab, contained: Contained, held_mib: int, is_ended: bool
):
    """Without MPS, so that nothing but the watchdog stands in the way."""
    sharing = MpsSharing(lab.new_home(), binary=None, mode=MpsMode.OFF)
    container = secrets.token_hex(32)
    lease = holding(lease_of(gpu, 1, 100), gpu, container)
    edits = await sharing.open(lease, {gpu.id: gpu})
    child = await contained.start(edits, "alloc", "malloc", str(held_mib), "64", "wait", container=container)
    assert (await child.next("alloc", 30))["allocated_mib"] == held_mib
    performed: list[Instruction] = []
    state = NodeState(gpus={gpu.id: gpu}, leases={lease.id: lease})
    loop = Loop(state, MemoryJournal(), ManualClock(), Troubles())
    loop.perform = performed.append
    async with loop.running():
        await Sampler(loop, gpus, sharing, Troubles(), 5.0).sample_and_report()
    await sharing.close(keep_running=False)
    found = loop.state.leases[lease.id].state
    assert isinstance(found, Draining) is is_ended
    assert [type(one) for one in performed] == ([StopContainer] if is_ended else [])
    if isinstance(found, Draining):
        assert isinstance(found.outcome, OverLimit)
        assert found.outcome.used_bytes >= held_mib * MIB
