"""NVML's adapter against a real driver, beyond the contract that ``tests/gpus`` runs there too."""

from __future__ import annotations

from bench.gpu.lab import Lab
from bench.gpu.machine import Machine
from gpushared.domain.model.gpu import MIB, Gpu
from gpushared.gpus.nvml import NvmlGpus

HELD_MIB = 2048


async def test_the_survey_lists_the_gpu_that_cuda_and_nvidia_smi_know(gpu: Gpu, lab: Lab, machine: Machine):
    info = (await lab.probe("info")).values()["info"]
    assert info["uuid"] == gpu.id == machine.uuid
    assert info["total_bytes"] <= gpu.memory_total_bytes


async def test_what_is_leasable_can_be_taken_by_one_process(gpu: Gpu, lab: Lab):
    mib = gpu.leasable_bytes // MIB // 1024 * 1024
    alloc = (await lab.probe("alloc", "malloc", str(mib), "1024", "free", seconds=60)).values()["alloc"]
    # A context takes its part of it too.
    assert alloc["allocated_mib"] >= mib - 1024


async def test_a_process_shows_with_its_memory_and_is_gone_after_its_end(gpu: Gpu, gpus: NvmlGpus, lab: Lab):
    child = await lab.start("alloc", "malloc", str(HELD_MIB), "64", "wait")
    assert (await child.next("alloc", 20))["allocated_mib"] == HELD_MIB
    held = await processes(gpus, gpu)
    assert held[child.pid] is not None
    assert (held[child.pid] or 0) >= HELD_MIB * MIB
    assert (await child.finish(10)).rc == 0
    assert child.pid not in await processes(gpus, gpu)


async def test_a_process_counts_in_the_memory_that_is_used(gpu: Gpu, gpus: NvmlGpus, lab: Lab):
    before = await used_bytes(gpus, gpu)
    child = await lab.start("alloc", "malloc", str(HELD_MIB), "64", "wait")
    await child.next("alloc", 20)
    assert await used_bytes(gpus, gpu) - before >= HELD_MIB * MIB
    await child.finish(10)


async def processes(gpus: NvmlGpus, gpu: Gpu) -> dict[int, int | None]:
    reading = next(one for one in await gpus.sample() if one.gpu == gpu.id)
    return {process.pid: process.memory_bytes for process in reading.processes}


async def used_bytes(gpus: NvmlGpus, gpu: Gpu) -> int:
    reading = next(one for one in await gpus.sample() if one.gpu == gpu.id)
    assert reading.memory_used_bytes is not None
    return reading.memory_used_bytes
