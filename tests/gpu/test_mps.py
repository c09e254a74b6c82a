"""gpushared's sharing on a real MPS server: limits hold, are read back, and survive what goes wrong."""

from __future__ import annotations

import os
import signal

from bench.gpu.lab import OTHER_UID, THIRD_UID, Lab
from bench.gpu.leases import lease_of
from bench.gpu.machine import Machine, Need
from bench.gpu.mps import LIMITS, client, daemon, server_of
from gpushared.domain.model.gpu import MIB, Gpu
from gpushared.domain.model.lease import ComputeCap, MemoryWall
from gpushared.sharing.control import MpsControl
from gpushared.sharing.mps import MpsSharing
from tests.gpu.conftest import Contained, need

SUCCESS = "CUDA_SUCCESS"
LEASED_MIB = 4096
ASK = ("alloc", "malloc", "6144", "64")
QUARTER = 250


async def test_a_leases_memory_and_share_hold_a_real_process(
    gpu: Gpu, sharing: MpsSharing, contained: Contained, lab: Lab
):
    everything = (await lab.probe("info")).values()["info"]["sm_count"]
    edits = await sharing.open(lease_of(gpu, 1, QUARTER, memory_bytes=LEASED_MIB * MIB), {gpu.id: gpu})
    assert (edits.walls.memory_wall, edits.walls.compute_cap) == (
        MemoryWall.MPS_CLIENT,
        ComputeCap.MPS_PERCENTAGE,
    )
    seen = (await (await contained.start(edits, "info", *ASK)).finish(30)).values()
    assert 0 < seen["alloc"]["allocated_mib"] <= LEASED_MIB
    assert seen["alloc"]["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert 0 < seen["info"]["sm_count"] <= everything * 0.26
    assert sharing_pids(await sharing.status()), "the daemon has no server, so the client was none of MPS's"


async def test_leases_of_two_users_compute_at_the_same_time(
    gpu: Gpu, sharing: MpsSharing, contained: Contained
):
    children = []
    for number, uid in enumerate((OTHER_UID, THIRD_UID), 1):
        edits = await sharing.open(lease_of(gpu, number, QUARTER, uid=uid), {gpu.id: gpu})
        children.append(await contained.start(edits, "info", "wait", "alive", uid=uid))
    for child, uid in zip(children, (OTHER_UID, THIRD_UID), strict=True):
        assert (await child.next("info", 30))["uid"] == uid
    for child in children:
        assert (await child.finish(20)).values()["alive"]["result"] == SUCCESS


async def test_two_leases_keep_each_its_own_memory(gpu: Gpu, sharing: MpsSharing, contained: Contained):
    taken = []
    for number, mib in enumerate((1024, 3072), 1):
        edits = await sharing.open(lease_of(gpu, number, QUARTER, memory_bytes=mib * MIB), {gpu.id: gpu})
        done = await (await contained.start(edits, *ASK)).finish(30)
        taken.append(done.values()["alloc"]["allocated_mib"])
    assert 0 < taken[0] <= 1024 < taken[1] <= 3072


async def test_the_daemons_own_limits_are_read_back_and_hold_its_clients(machine: Machine, lab: Lab):
    need(machine, Need.MPS)
    async with daemon(lab, LIMITS) as control:
        done = await lab.probe(*ASK, env=client(control))
        assert await control.servers()
        assert 0 < done.values()["alloc"]["allocated_mib"] <= LIMITS.memory_mib[0]


async def test_a_client_terminated_before_its_kill_leaves_its_neighbour_alone(machine: Machine, lab: Lab):
    need(machine, Need.MPS)
    async with daemon(lab, LIMITS) as control:
        neighbour = await computing(lab, control, 4)
        victim = await computing(lab, control, 60)
        server = await server_of(control)
        await control.ask(f"terminate_client {server} {victim.pid}")
        assert (await victim.next("loop", 20))["result"] != SUCCESS
        victim.signal(signal.SIGKILL)
        assert (await neighbour.finish(20)).values()["loop"]["result"] == SUCCESS
        assert (await lab.probe("alive", env=client(control))).values()["alive"]["result"] == SUCCESS


async def test_after_a_fault_new_clients_are_served_again(machine: Machine, lab: Lab):
    need(machine, Need.MPS)
    async with daemon(lab, LIMITS) as control:
        neighbour = await computing(lab, control, 60)
        fault = (await lab.probe("fault", env=client(control))).values()["fault"]
        assert fault["result"] != SUCCESS
        await neighbour.next("loop", 60)
        await lab.clear()
        results = []
        for _ in range(20):
            done = await lab.probe("alive", env=client(control), seconds=10)
            results.append(done.values().get("alive", {}).get("result"))
            if results[-1] == SUCCESS:
                break
        assert results[-1] == SUCCESS


async def test_a_lease_is_served_again_after_its_daemon_was_killed(
    gpu: Gpu, sharing: MpsSharing, contained: Contained
):
    of = lease_of(gpu, 1, QUARTER, memory_bytes=LEASED_MIB * MIB)
    edits = await sharing.open(of, {gpu.id: gpu})
    assert (await (await contained.start(edits, "alive")).finish(30)).values()["alive"]["result"] == SUCCESS
    (supervisor,) = sharing._pool.all()
    assert supervisor.control.pid is not None
    os.kill(supervisor.control.pid, signal.SIGKILL)
    assert await supervisor.control.exits_within(10)
    edits = await sharing.open(of, {gpu.id: gpu})
    seen = (await (await contained.start(edits, "alive", *ASK)).finish(30)).values()
    assert seen["alive"]["result"] == SUCCESS
    assert 0 < seen["alloc"]["allocated_mib"] <= LEASED_MIB


async def computing(lab: Lab, control: MpsControl, seconds: int):
    child = await lab.start("loop", "matmul", str(seconds), env=client(control))
    assert (await child.next("busy", 30))["result"] == SUCCESS
    return child


def sharing_pids(status: tuple[object, ...]) -> list[int]:
    return [pid for one in status for pid in getattr(one, "pids", ())]
