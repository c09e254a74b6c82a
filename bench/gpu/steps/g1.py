"""G1: which of MPS's settings take effect, and what a client sees of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bench.gpu.case import Case, Seen, Step
from bench.gpu.lab import Lab
from bench.gpu.mps import ASK_MIB, LIMIT_MIB, LIMITS, PERCENTAGE, as_client, client, daemon, server_of, take
from gpushared.domain.model.errors import SharingUnavailable
from gpushared.sharing.control import DaemonLimits, MpsControl

LOOK = ("info", *take())
RAISED_MIB = 8192
PERCENTAGES = (10, 12, 25, 50, 75, 100)


async def multiuser(lab: Lab) -> Seen:
    """Whether the binary knows the flag, as gpushared finds it out."""
    try:
        async with daemon(lab, LIMITS, multiuser=True) as control:
            return await as_client(lab, control, *LOOK, known=True)
    except SharingUnavailable as error:
        return Seen({"known": False, "why": error.message})


async def by_ordinal(lab: Lab) -> Seen:
    async with daemon(lab, LIMITS) as control:
        return await as_client(lab, control, *LOOK, limit_mib=LIMIT_MIB)


async def by_uuid(lab: Lab) -> Seen:
    async with daemon(lab) as control:
        name = lab.machine.uuid
        await control.ask(f"set_default_device_pinned_mem_limit {name} {LIMIT_MIB}M")
        return await _read_back(lab, control, name)


async def in_daemon_environment(lab: Lab) -> Seen:
    async with daemon(lab, environ={"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={LIMIT_MIB}M"}) as control:
        return await _read_back(lab, control, "0")


async def _read_back(lab: Lab, control: MpsControl, name: str) -> Seen:
    shown = await control.ask(f"get_default_device_pinned_mem_limit {name}")
    return await as_client(lab, control, *LOOK, read_back=" ".join(shown), limit_mib=LIMIT_MIB)


async def odd_size(lab: Lab) -> Seen:
    """A limit of one and a half GiB, which the daemon shows as one.

    The share is small, because a context takes memory with its multiprocessors: 517 MiB for all 132 of an H200.
    """
    async with daemon(lab, DaemonLimits((1536,), PERCENTAGE)) as control:
        shown = await control.ask("get_default_device_pinned_mem_limit 0")
        look = ("info", *take(upto_mib=2048, step_mib=16))
        return await as_client(lab, control, *look, read_back=" ".join(shown), limit_mib=1536)


async def raised(lab: Lab) -> Seen:
    """The server's limit raised while a client runs."""
    async with daemon(lab, LIMITS) as control:
        old = await lab.start("info", "wait", *take(upto_mib=RAISED_MIB), env=client(control))
        await old.next("info", 15)
        server = await server_of(control)
        said = await control.ask(f"set_device_pinned_mem_limit {server} 0 {RAISED_MIB}M")
        shown = await control.ask(f"get_device_pinned_mem_limit {server} 0")
        await old.go_on()
        first = await old.finish(15)
        new = await lab.probe("info", *take(upto_mib=RAISED_MIB), env=client(control))
        values = {"said": " ".join(said), "read_back": " ".join(shown), "servers": await control.servers()}
        return Seen({**values, "old": first.values(), "new": new.values()}, new.rc)


async def percentages(lab: Lab) -> Seen:
    """What share of the multiprocessors a client sees, by its own environment."""
    async with daemon(lab, DaemonLimits((LIMIT_MIB,), 100)) as control:
        seen = {}
        for percent in PERCENTAGES:
            env = client(control, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)})
            done = await lab.probe("info", env=env)
            seen[str(percent)] = done.values().get("info", {}).get("sm_count")
        return Seen({"sm_count": seen})


async def percentage_above_daemon(lab: Lab) -> Seen:
    async with daemon(lab, LIMITS) as control:
        extra = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}
        return await as_client(lab, control, "info", extra=extra, daemon_percentage=PERCENTAGE)


def by_client(limit: Callable[[Lab], str]) -> Callable[[Lab], Awaitable[Seen]]:
    """A limit in the client's environment only, as a lease sets it."""

    async def run(lab: Lab) -> Seen:
        async with daemon(lab, DaemonLimits((ASK_MIB * 2,), 100)) as control:
            wall = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit(lab), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}
            return await as_client(lab, control, *LOOK, extra=wall, limit_mib=LIMIT_MIB)

    return run


STEP = Step(
    "G1",
    "Which settings of MPS take effect",
    (
        Case("multiuser", "a daemon with -multiuser-server", multiuser),
        Case("by-ordinal", "25 % and 4096 MiB set in the daemon, by ordinal", by_ordinal),
        Case("by-uuid", "4096 MiB set in the daemon, by UUID", by_uuid),
        Case("in-daemon-environment", "4096 MiB set in the daemon's environment only", in_daemon_environment),
        Case("odd-size", "a limit that is no whole number of GiB", odd_size),
        Case("raised", "a server's limit raised while a client runs", raised, seconds=60),
        Case("percentages", "multiprocessors seen at several percentages", percentages, seconds=60),
        Case(
            "percentage-above-daemon", "a client that wants more than the daemon has", percentage_above_daemon
        ),
        Case(
            "by-client",
            "4096 MiB and 25 % in the client's environment, by ordinal",
            by_client(lambda _: f"0={LIMIT_MIB}M"),
        ),
        Case(
            "by-client-uuid",
            "the same, by UUID",
            by_client(lambda lab: f"{lab.machine.uuid}={LIMIT_MIB}M"),
        ),
    ),
)
