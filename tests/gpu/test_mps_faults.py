"""Clients that are taken off a real MPS server, faults of a real server, and canaries that get through."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from bench.gpu.child import Child
from bench.gpu.lab import inherited
from bench.gpu.leases import lease_of
from gpushared.domain.model.gpu import Gpu
from gpushared.ports import Edits, SharingStatus
from gpushared.sharing.canary_watch import CanaryTiming, CanaryWatch
from gpushared.sharing.mps import MpsSharing
from tests.gpu.conftest import Contained

SUCCESS = "CUDA_SUCCESS"
QUARTER = 250


async def until(sharing: MpsSharing, condition: Callable[[SharingStatus], object]) -> SharingStatus:
    async with asyncio.timeout(40):
        while not condition(status := (await sharing.status())[0]):  # noqa: ASYNC110 - the port offers a look
            await asyncio.sleep(0.05)
    return status


async def computing(contained: Contained, edits: Edits, seconds: int = 20) -> Child:
    child = await contained.start(edits, "loop", "matmul", str(seconds), "alive")
    await child.next("busy", 30)
    return child


async def test_a_busy_client_that_is_parted_and_killed_does_its_neighbour_no_harm(
    gpu: Gpu, sharing: MpsSharing, contained: Contained
):
    edits = [await sharing.open(lease_of(gpu, number, QUARTER), {gpu.id: gpu}) for number in (1, 2)]
    neighbour = await computing(contained, edits[0], 10)
    (stays,) = (await until(sharing, lambda status: len(status.clients) == 1)).clients
    await computing(contained, edits[1])
    clients = (await until(sharing, lambda status: len(status.clients) == 2)).clients
    (goes,) = set(clients) - {stays}
    assert await sharing.detach_clients(lease_of(gpu, 2, QUARTER), {goes}) == 1
    os.kill(goes, signal.SIGKILL)
    assert (await neighbour.finish(40)).values()["alive"]["result"] == SUCCESS
    assert not (await sharing.status())[0].faults


async def test_a_fault_is_seen_with_its_clients_and_over_when_they_are_gone(
    gpu: Gpu, sharing: MpsSharing, contained: Contained
):
    edits = [await sharing.open(lease_of(gpu, number, QUARTER), {gpu.id: gpu}) for number in (1, 2)]
    victim = await contained.start(edits[0], "alive", "wait")
    await victim.next("alive", 30)
    (hit,) = (await until(sharing, lambda status: status.clients)).clients
    culprit = await contained.start(edits[1], "fault", "alive", "wait")
    status = await until(sharing, lambda status: status.faults)
    assert hit in status.faults[0].clients
    assert status.trouble is not None
    for child in (culprit, victim):
        child.signal(signal.SIGKILL)
        await child.finish(20)
    await until(sharing, lambda status: not status.faults)
    again = await contained.start(edits[0], "alive")
    assert (await again.finish(40)).values()["alive"]["result"] == SUCCESS


async def test_a_canary_gets_through_to_a_server_that_is_well(
    gpu: Gpu, sharing: MpsSharing, contained: Contained
):
    edits = await sharing.open(lease_of(gpu, 1, QUARTER), {gpu.id: gpu})
    await computing(contained, edits)
    status = await until(sharing, lambda status: status.pids)
    pipe = next(mount.source for mount in edits.mounts)
    libraries = {key: value for key, value in inherited().items() if key == "LD_LIBRARY_PATH"}
    env = {**libraries, "CUDA_VISIBLE_DEVICES": gpu.id}
    canaries = CanaryWatch(Path(pipe) / "mps", env, CanaryTiming(1.0, failures=1))
    await canaries.send(status.pids[0])
    assert canaries.complaint is None
