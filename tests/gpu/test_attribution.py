"""Whose memory it is: from the driver's process list, by cgroup, to the lease."""

from __future__ import annotations

import secrets
from dataclasses import replace

from bench.gpu.lab import Lab
from bench.gpu.leases import lease_of
from gpushared.daemon.troubles import Troubles
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.gpu import MIB, Gpu
from gpushared.domain.model.lease import Active, ContainerId, Lease
from gpushared.gpus.nvml import NvmlGpus
from gpushared.node.runtime.loop import Loop
from gpushared.node.runtime.sampler import Sample, Sampler
from gpushared.sharing.mps import MpsSharing
from gpushared.testing import ManualClock, MemoryJournal
from tests.gpu.conftest import Contained

QUARTER = 250
HELD_MIB = (1024, 2048)


def active(lease: Lease, container: str) -> Lease:
    return replace(lease, state=Active(lease.grants, ContainerId(container), since=0.0))


async def sample_of(gpu: Gpu, gpus: NvmlGpus, sharing: MpsSharing, leases: list[Lease]) -> Sample:
    """What the daemon's sampler makes of the GPU while these leases are active."""
    state = NodeState(gpus={gpu.id: gpu}, leases={lease.id: lease for lease in leases})
    troubles = Troubles()
    loop = Loop(state, MemoryJournal(), ManualClock(), troubles)
    sampler = Sampler(loop, gpus, sharing, troubles, 5.0)
    async with loop.running():
        await sampler.sample_and_report()
    assert not troubles.all()
    return sampler.newest


async def test_memory_of_two_contained_clients_counts_for_the_lease_of_each(
    gpu: Gpu, gpus: NvmlGpus, sharing: MpsSharing, contained: Contained
):
    leases, children = [], []
    for number, mib in enumerate(HELD_MIB, 1):
        lease, container = lease_of(gpu, number, QUARTER), secrets.token_hex(32)
        edits = await sharing.open(lease, {gpu.id: gpu})
        leases.append(active(lease, container))
        words = ("alloc", "malloc", str(mib), "64", "wait")
        children.append(await contained.start(edits, *words, container=container))
    for child, mib in zip(children, HELD_MIB, strict=True):
        assert (await child.next("alloc", 30))["allocated_mib"] == mib
    sample = await sample_of(gpu, gpus, sharing, leases)
    for lease, mib in zip(leases, HELD_MIB, strict=True):
        # Its context and code count too, and are far less than the other's memory.
        assert mib * MIB <= sample.used_bytes[lease.id] < (mib + 1000) * MIB


async def test_a_process_outside_of_all_leases_is_a_stranger(
    gpu: Gpu, gpus: NvmlGpus, sharing: MpsSharing, lab: Lab
):
    child = await lab.start("alloc", "malloc", str(HELD_MIB[0]), "64", "wait")
    await child.next("alloc", 30)
    sample = await sample_of(gpu, gpus, sharing, [])
    (stranger,) = [one for one in sample.strangers if one.pid == child.pid]
    assert (stranger.memory_bytes or 0) >= HELD_MIB[0] * MIB


async def test_the_mps_server_is_no_stranger(
    gpu: Gpu, gpus: NvmlGpus, sharing: MpsSharing, contained: Contained
):
    lease, container = lease_of(gpu, 1, QUARTER), secrets.token_hex(32)
    edits = await sharing.open(lease, {gpu.id: gpu})
    child = await contained.start(edits, "alive", "wait", container=container)
    await child.next("alive", 30)
    # Opening again asks the control daemon for its servers.
    await sharing.open(lease, {gpu.id: gpu})
    sample = await sample_of(gpu, gpus, sharing, [active(lease, container)])
    servers = [pid for status in await sharing.status() for pid in status.pids]
    assert servers
    assert not {one.pid for one in sample.strangers} & set(servers)
