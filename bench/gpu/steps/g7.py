"""G7: pausing a process by the driver's checkpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from bench.gpu.case import BASIC, WITH_MPS, Case, Seen, Step
from bench.gpu.child import Child
from bench.gpu.lab import OTHER_UID, Lab
from bench.gpu.machine import Need
from bench.gpu.mps import client, daemon, take
from gpushared.sharing.control import DaemonLimits

PHASES = ("lock", "checkpoint", "restore", "unlock")
PHASE_SECONDS = 60.0
SPARE_MIB = 2048
NVML = (*BASIC, Need.NVML)

Try = Callable[[Lab], Awaitable[Seen]]


def paused(gib: int, method: str = "malloc") -> Try:
    """A process that holds so much, through all phases; its memory after each; whether it lives on."""

    async def run(lab: Lab) -> Seen:
        if (why := _too_much(lab, gib)) is not None:
            return Seen({"skipped": why}, None)
        child = await _holder(lab, gib * 1024, method, {})
        return Seen({"held_mib": gib * 1024, **(await _phases(lab, child))})

    return run


def _too_much(lab: Lab, gib: int) -> str | None:
    """The memory goes to the host: twice as much must be free there, and enough on the GPU."""
    free_mib = int((lab.machine.gpu or {}).get("memory.free", "0").split()[0])
    if free_mib < gib * 1024 + SPARE_MIB:
        return f"the GPU has {free_mib} MiB free"
    host_mib = _host_mib()
    return f"the host has {host_mib} MiB free" if host_mib < 2 * gib * 1024 else None


def _host_mib() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("MemAvailable"))


async def _holder(lab: Lab, mib: int, method: str, env: Mapping[str, str]) -> Child:
    child = await lab.start(*take(method, mib, min(1024, mib)), "wait", "alive", env=env)
    await child.next("alloc", 30)
    return child


async def _phases(lab: Lab, child: Child, uid: int | None = None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for phase in PHASES:
        values[phase] = await _phase(lab, phase, child.pid, uid)
        values[phase] |= {"rss_mib": _rss_mib(child.pid), "gpu_bytes": await _gpu_bytes(lab, child.pid)}
        if values[phase]["result"] != "CUDA_SUCCESS":
            await _phase(lab, "unlock", child.pid, None)
            break
    await child.go_on()
    values["afterwards"] = (await child.finish(10)).values().get("alive", {})
    return values


async def _phase(lab: Lab, phase: str, pid: int, uid: int | None) -> dict[str, Any]:
    done = await lab.probe("checkpoint", phase, str(pid), uid=uid, seconds=PHASE_SECONDS)
    found = done.values()
    line: dict[str, Any] = found.get("checkpoint") or found.get("error") or {}
    return {"result": "no answer", **line}


def _rss_mib(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS")), None)


async def _gpu_bytes(lab: Lab, pid: int) -> int | None:
    """What NVML says that the process holds; 0 when it is not listed at all."""
    lists = (await lab.script("look.py", "lists")).values().get("lists", {}).get("lists", {})
    compute = lists.get("Compute")
    if not isinstance(compute, list):
        return None
    return next((one["memory_bytes"] for one in compute if one["pid"] == pid), 0)


async def mps_client(lab: Lab) -> Seen:
    async with daemon(lab, DaemonLimits((4096,), 100)) as control:
        child = await _holder(lab, 1024, "malloc", client(control))
        servers = await control.servers()
        return Seen({"servers": servers, **(await _phases(lab, child))})


async def other_user(lab: Lab) -> Seen:
    """A user without rights checkpoints a process of root's."""
    child = await _holder(lab, 1024, "malloc", {})
    return Seen(await _phases(lab, child, OTHER_UID))


async def filled_meanwhile(lab: Lab) -> Seen:
    """While a process is paused, another takes the memory that it needs to come back."""
    child = await _holder(lab, 8192, "malloc", {})
    values: dict[str, Any] = {"lock": await _phase(lab, "lock", child.pid, None)}
    values["checkpoint"] = await _phase(lab, "checkpoint", child.pid, None)
    if values["checkpoint"]["result"] != "CUDA_SUCCESS":
        return Seen(values)
    free_mib = int((lab.machine.gpu or {}).get("memory.free", "0").split()[0])
    filler = await lab.start(*take(upto_mib=free_mib - 4096, step_mib=1024), "wait")
    values["filled"] = await filler.next("alloc", 30)
    values["restore_when_full"] = await _phase(lab, "restore", child.pid, None)
    values["lives_when_full"] = child.running
    await filler.finish(10)
    values["state"] = await _phase(lab, "state", child.pid, None)
    values["gpu_bytes_afterwards"] = await _gpu_bytes(lab, child.pid)
    values["restore_afterwards"] = await _phase(lab, "restore", child.pid, None)
    values["unlock"] = await _phase(lab, "unlock", child.pid, None)
    await child.go_on()
    done = await child.finish(10)
    values |= {"afterwards": done.values().get("alive", {}), "exit_code": done.rc, "stderr": done.stderr}
    return Seen(values)


STEP = Step(
    "G7",
    "Pausing a process by checkpoint",
    (
        Case("1-gib", "a process that holds 1 GiB", paused(1), NVML, 90),
        Case("8-gib", "a process that holds 8 GiB", paused(8), NVML, 90),
        Case("32-gib", "a process that holds 32 GiB", paused(32), NVML, 120),
        Case("managed", "a process that holds 1 GiB of managed memory", paused(1, "managed"), NVML, 90),
        Case("mps-client", "a client of an MPS server", mps_client, (*WITH_MPS, Need.NVML), 90),
        Case("other-user", "by a user who is not root", other_user, (*NVML, Need.ROOT), 90),
        Case(
            "filled-meanwhile",
            "its memory taken by another before it comes back",
            filled_meanwhile,
            NVML,
            120,
        ),
    ),
)
