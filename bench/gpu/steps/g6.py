"""G6: what sharing costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from bench.gpu.case import BASIC, WITH_MPS, Case, Seen, Step
from bench.gpu.child import Child
from bench.gpu.lab import Lab
from bench.gpu.machine import Need
from bench.gpu.mps import ASK_MIB, client, daemon, server_of
from gpushared.sharing.control import DaemonLimits

OPEN = DaemonLimits((ASK_MIB,), 100)
LOOP_SECONDS = 1.5
MOST_CLIENTS = 64
AT_ONCE = 8

Environments = list[dict[str, str]]


def loops(count: int, *, daemons: int, shared_out: bool = False) -> Callable[[Lab], Awaitable[Seen]]:
    """The same work by so many processes at once, over so many daemons (0: without MPS)."""

    async def run(lab: Lab) -> Seen:
        async with AsyncExitStack() as stack:
            controls = [await stack.enter_async_context(daemon(lab, OPEN)) for _ in range(daemons)]
            share = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // count)} if shared_out else {}
            environments: Environments = [
                client(controls[number % daemons], share) if daemons else {} for number in range(count)
            ]
            seen = {kind: await _together(lab, kind, environments) for kind in ("matmul", "copy", "short")}
            servers = [server for control in controls for server in await control.servers()]
            return Seen(seen | ({"servers": servers} if daemons else {}))

    return run


async def _together(lab: Lab, kind: str, environments: Environments) -> dict[str, Any]:
    """Start all, let them loop at the same time, sum up."""
    children = [
        await lab.start("info", "wait", "loop", kind, str(LOOP_SECONDS), env=env) for env in environments
    ]
    for child in children:
        await child.next("info", 20)
    await asyncio.gather(*(child.go_on() for child in children))
    loops = [await child.next("loop", 20) for child in children]
    for child in children:
        await child.finish(5)
    rates = [loop.get("rounds_per_second", 0.0) for loop in loops]
    return {
        "rounds_per_second": sum(rates),
        "each": rates,
        "p99_seconds": [loop.get("p99_seconds") for loop in loops],
    }


async def first_kernel(lab: Lab) -> Seen:
    """Seconds from starting a process to its first finished kernel."""
    plain = await _to_first_kernel(lab, {})
    async with daemon(lab, OPEN) as control:
        cold = await _to_first_kernel(lab, client(control))
        warm = await _to_first_kernel(lab, client(control))
    return Seen({"plain_seconds": plain, "first_client_seconds": cold, "next_client_seconds": warm})


async def _to_first_kernel(lab: Lab, env: dict[str, str]) -> float | None:
    started = time.monotonic()
    child = await lab.start("alive", env=env)
    line = await child.next("alive", 20)
    seconds = time.monotonic() - started
    await child.finish(5)
    return seconds if line.get("result") == "CUDA_SUCCESS" else None


async def idle_memory(lab: Lab) -> Seen:
    """Device memory of a server without clients' data, of a client's and of a plain process's context."""
    used = {"nothing": await _used(lab)}
    plain = await lab.start("info", "wait")
    await plain.next("info", 15)
    used["one_plain"] = await _used(lab)
    await plain.finish(5)
    async with daemon(lab, OPEN) as control:
        children: list[Child] = []
        for number in range(1, 4):
            child = await lab.start("info", "wait", env=client(control))
            await child.next("info", 15)
            children.append(child)
            used[f"{number}_clients"] = await _used(lab)
        server = await server_of(control)
        for child in children:
            await child.finish(5)
        used["server_alone"] = await _used(lab)
        lists = (await lab.script("look.py", "lists")).values()
    return Seen({"used_bytes": used, "server": server, **lists})


async def _used(lab: Lab) -> int | None:
    found = (await lab.script("look.py", "lists")).values()
    used = found.get("lists", {}).get("device", {}).get("used")
    return None if used is None else int(used)


async def most_clients(lab: Lab) -> Seen:
    """How many clients one server takes."""
    async with daemon(lab, OPEN) as control:
        accepted, refused = 0, dict[str, Any]()
        while accepted < MOST_CLIENTS and not refused:
            children = [await lab.start("info", "wait", env=client(control)) for _ in range(AT_ONCE)]
            for child in children:
                if await child.next("info", 20):
                    accepted += 1
                else:
                    refused = (await child.finish(1)).values()
        values = {"accepted": accepted, "tried_at_most": MOST_CLIENTS, "refusal": refused}
        return Seen({**values, "servers": await control.servers()})


def _loops() -> tuple[Case, ...]:
    alone = Case("1-plain", "one process without MPS", loops(1, daemons=0), BASIC)
    ways: list[Case] = []
    for count in (2, 4):
        ways += [
            Case(f"{count}-plain", f"{count} processes without MPS", loops(count, daemons=0), BASIC),
            Case(f"{count}-one-server", f"{count} clients of one server", loops(count, daemons=1)),
            Case(
                f"{count}-one-server-shares",
                f"{count} clients of one server, equal shares",
                loops(count, daemons=1, shared_out=True),
            ),
            Case(
                f"{count}-servers",
                f"{count} clients, each with a server of its own",
                loops(count, daemons=count),
                seconds=60,
            ),
        ]
    return (alone, Case("1-client", "one client of a server", loops(1, daemons=1)), *ways)


STEP = Step(
    "G6",
    "What sharing costs",
    (
        Case("first-kernel", "from a process's start to its first kernel", first_kernel, seconds=60),
        Case("idle-memory", "memory of contexts and servers", idle_memory, (*WITH_MPS, Need.NVML), 90),
        *_loops(),
        Case("most-clients", "clients until one is refused", most_clients, seconds=90),
    ),
)
