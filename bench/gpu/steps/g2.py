"""G2: what the memory limit covers, and how it is shed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from bench.gpu.case import BASIC, WITH_MPS, Case, Seen, Step
from bench.gpu.lab import Lab
from bench.gpu.machine import Need
from bench.gpu.mps import ASK_MIB, LIMIT_MIB, LIMITS, STEP_MIB, as_client, client, daemon, take
from gpushared.sharing.control import DaemonLimits

METHODS = ("malloc", "async", "vmm", "managed")
WIDE = DaemonLimits((ASK_MIB * 2,), 100)
NO_MODE_CHANGE = "it would need compute mode EXCLUSIVE_PROCESS, and a run changes no mode of the GPU"

Try = Callable[[Lab], Awaitable[Seen]]


def under(limits: DaemonLimits, method: str, extra: Mapping[str, str]) -> Try:
    """Memory taken by one method by a client of a daemon with these limits."""

    async def run(lab: Lab) -> Seen:
        async with daemon(lab, limits) as control:
            return await as_client(lab, control, "info", *take(method), extra=extra, limit_mib=LIMIT_MIB)

    return run


def limit_of(text: str) -> dict[str, str]:
    return {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": text}


async def imported(lab: Lab) -> Seen:
    """Memory of an unlimited client, opened by a limited one."""
    async with daemon(lab, WIDE) as control:
        path = str(lab.home / "handles")
        owner = await lab.start("share", str(ASK_MIB), str(STEP_MIB), path, "wait", env=client(control))
        shared = await owner.next("share", 15)
        seen = await as_client(
            lab,
            control,
            "info",
            "import",
            path,
            extra=limit_of(f"0={LIMIT_MIB}M"),
            limit_mib=LIMIT_MIB,
            shared=shared,
        )
        await owner.finish(10)
        return seen


async def two_at_once(lab: Lab) -> Seen:
    """Two processes of what would be one container."""
    async with daemon(lab, LIMITS) as control:
        both = [await lab.start(*take(), "wait", env=client(control)) for _ in range(2)]
        taken = [await child.next("alloc", 15) for child in both]
        done = [await child.finish(10) for child in both]
        total = sum(line.get("allocated_mib", 0) for line in taken)
        return Seen(
            {
                "limit_mib": LIMIT_MIB,
                "allocated_mib": total,
                "each": taken,
                "servers": await control.servers(),
            },
            max((one.rc or 0 for one in done), default=None),
        )


async def without_mps(lab: Lab) -> Seen:
    """A lease's process that drops the pipe directory while the daemon serves others."""
    async with daemon(lab, LIMITS) as control:
        beside = await lab.start("info", "wait", env=client(control))
        await beside.next("info", 15)
        wall = {
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={LIMIT_MIB}M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        }
        done = await lab.probe("info", *take(), env=wall)
        await beside.finish(10)
        return Seen.of(done, limit_mib=LIMIT_MIB)


def torch(configuration: str) -> Try:
    async def run(lab: Lab) -> Seen:
        async with daemon(lab, LIMITS) as control:
            extra = {"PYTORCH_CUDA_ALLOC_CONF": configuration}
            done = await lab.script("torch_memory.py", str(ASK_MIB), "256", env=client(control, extra))
            return Seen.of(done, limit_mib=LIMIT_MIB, servers=await control.servers())

    return run


def _by_methods() -> tuple[Case, ...]:
    server = (
        Case(f"{method}-server", f"{method} beyond a limit set in the daemon", under(LIMITS, method, {}))
        for method in METHODS
    )
    own = (
        Case(
            f"{method}-client",
            f"{method} beyond a limit set in the client's environment",
            under(WIDE, method, limit_of(f"0={LIMIT_MIB}M")),
        )
        for method in METHODS
    )
    return (*server, *own)


STEP = Step(
    "G2",
    "What the memory limit covers, and how it is shed",
    (
        *_by_methods(),
        Case("ipc-client", "another process's memory opened by a limited client", imported, seconds=60),
        Case("two-processes", "two clients at once under one limit", two_at_once, seconds=60),
        Case("env-above-server", "a client that asks for 8 GiB", under(LIMITS, "malloc", limit_of("0=8G"))),
        Case("env-below-server", "a client that asks for 2 GiB", under(LIMITS, "malloc", limit_of("0=2G"))),
        Case(
            "env-with-absent-gpu",
            "a client whose limits name a GPU that it cannot see",
            under(LIMITS, "malloc", limit_of("0=2G,1=4G")),
        ),
        Case("without-mps", "a client that drops its pipe directory", without_mps, needs=WITH_MPS),
        Case("without-mps-exclusive", "the same in EXCLUSIVE_PROCESS", needs=BASIC, never=NO_MODE_CHANGE),
        Case("torch", "torch's allocator", torch("expandable_segments:False"), (*WITH_MPS, Need.TORCH), 90),
        Case(
            "torch-expandable",
            "torch's allocator with expandable segments",
            torch("expandable_segments:True"),
            (*WITH_MPS, Need.TORCH),
            90,
        ),
    ),
)
