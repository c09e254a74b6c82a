"""CUDA checkpoints on a real GPU: the memory is really given back, and the program goes on where it was."""

from __future__ import annotations

import secrets

import pytest

from bench.gpu.lab import Lab
from bench.gpu.leases import lease_of
from gpushared.domain.leases.node_rules import MpsMode
from gpushared.domain.model.gpu import MIB, Gpu
from gpushared.gpus.nvml import NvmlGpus
from gpushared.sharing.checkpoint import CudaCheckpoints
from gpushared.sharing.mps import MpsSharing
from tests.gpu.conftest import Contained

HELD_MIB = 1024


async def held_bytes(gpus: NvmlGpus, gpu: Gpu, pid: int) -> int:
    """What the driver shows of a process on a GPU."""
    readings = {reading.gpu: reading for reading in await gpus.sample()}
    return sum(one.memory_bytes or 0 for one in readings[gpu.id].processes if one.pid == pid)


async def test_a_saved_process_holds_nothing_on_the_gpu_until_it_is_restored(
    gpu: Gpu, gpus: NvmlGpus, lab: Lab, contained: Contained
):
    checkpoints = CudaCheckpoints()
    if trouble := await checkpoints.trouble():
        pytest.skip(trouble)
    sharing = MpsSharing(lab.new_home(), binary=None, mode=MpsMode.OFF)
    edits = await sharing.open(lease_of(gpu, 1, 100), {gpu.id: gpu})
    container = secrets.token_hex(32)
    child = await contained.start(edits, "alloc", "malloc", str(HELD_MIB), "64", "wait", container=container)
    assert (await child.next("alloc", 30))["allocated_mib"] == HELD_MIB
    assert await held_bytes(gpus, gpu, child.pid) >= HELD_MIB * MIB
    await checkpoints.save([child.pid])
    assert await held_bytes(gpus, gpu, child.pid) == 0
    await checkpoints.restore([child.pid])
    assert await held_bytes(gpus, gpu, child.pid) >= HELD_MIB * MIB
    await sharing.close(keep_running=False)
