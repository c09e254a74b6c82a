"""G5: faults, kills and a daemon that dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.gpu.case import WITH_MPS, Case, Seen, Step
from bench.gpu.child import Child
from bench.gpu.lab import Lab
from bench.gpu.machine import Need
from bench.gpu.mps import LIMITS, client, daemon, server_of, server_states
from gpushared.domain.model.errors import GpushareError
from gpushared.sharing.control import MpsControl

NO_RESET = "a GPU that does not recover would need a reset, and a run makes none"


async def fault(lab: Lab) -> Seen:
    """One client writes to an illegal address beside a neighbour, another daemon's client and a plain one."""
    async with daemon(lab, LIMITS) as control, daemon(lab, LIMITS) as other:
        neighbour = await _computing(lab, client(control))
        separate = await _computing(lab, client(other))
        plain = await _computing(lab, {})
        server = await server_of(control)
        assert server is not None, "no server came with the first client"
        watch = asyncio.create_task(server_states(control, server, 12))
        culprit = await lab.probe("info", "fault", "alive", env=client(control))
        refused = await lab.probe("info", "alive", env=client(control), seconds=10)
        hit = await neighbour.finish(15)
        started = time.monotonic()
        again = await _first_that_works(lab, control, 20)
        seconds_to_work = time.monotonic() - started
        values: dict[str, Any] = {
            "culprit": culprit.values(),
            "neighbour": hit.values(),
            "new_client": refused.values(),
        }
        values["server_log"] = control.server_log()[-20:]
        values |= {"states": await watch, "works_again": again, "seconds_to_work": seconds_to_work}
        values |= {
            "separate": (await separate.finish(15)).values(),
            "plain": (await plain.finish(15)).values(),
        }
        return Seen(values)


async def _computing(lab: Lab, env: dict[str, str], seconds: int = 8) -> Child:
    child = await lab.start("loop", "matmul", str(seconds), "alive", env=env)
    await child.next("busy", 15)
    return child


async def _first_that_works(lab: Lab, control: MpsControl, seconds: float) -> bool:
    """Whether a new client computes before the time is over."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done = await lab.probe("alive", env=client(control), seconds=5)
        if done.values().get("alive", {}).get("result") == "CUDA_SUCCESS":
            return True
        await asyncio.sleep(0.2)
    return False


def killed(*, terminate_first: bool) -> Callable[[Lab], Awaitable[Seen]]:
    """A busy client is killed, with or without being terminated through the daemon first."""

    async def run(lab: Lab) -> Seen:
        async with daemon(lab, LIMITS) as control:
            neighbour = await _computing(lab, client(control))
            victim = await _computing(lab, client(control), 30)
            server = await server_of(control)
            assert server is not None, "no server came with the first client"
            watch = asyncio.create_task(server_states(control, server, 5))
            values: dict[str, Any] = {}
            if terminate_first:
                started = time.monotonic()
                said = await control.ask(f"terminate_client {server} {victim.pid}")
                values["terminate"] = {"said": said, "seconds": time.monotonic() - started}
                values["victim_saw"] = await victim.next("loop", 5)
            victim.signal(signal.SIGKILL)
            await victim.finish(5)
            values["neighbour"] = (await neighbour.finish(15)).values()
            values["states"] = await watch
            values["works_afterwards"] = await _first_that_works(lab, control, 10)
            return Seen(values)

    return run


async def control_held_open(lab: Lab) -> Seen:
    """Somebody connects to the public socket and says nothing."""
    async with daemon(lab, LIMITS) as control:
        held = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        held.connect(str(control.socket))
        started = time.monotonic()
        beside = await lab.start("info", env=client(control))
        came = await beside.next("info", 8)
        held.close()
        later = came or await beside.next("info", 10)
        done = await beside.finish(5)
        values: dict[str, Any] = {"served_while_held": bool(came), "served_afterwards": bool(later)}
        values["servers"] = await control.servers()
        return Seen({**values, "seconds": time.monotonic() - started}, done.rc)


async def daemon_killed(lab: Lab) -> Seen:
    """The control daemon dies under a running client; then a new one starts in its place."""
    async with daemon(lab, LIMITS) as control:
        running = await _computing(lab, client(control), 6)
        server = await server_of(control)
        assert control.pid is not None
        os.kill(control.pid, signal.SIGKILL)
        gone = await control.exits_within(5)
        values: dict[str, Any] = {"daemon_gone": gone, "server": server}
        try:
            await control.start()
            await control.set_limits(LIMITS)
            values["servers_of_new_daemon"] = list(await control.servers())
        except GpushareError as error:
            values["new_daemon"] = error.message
        done = await lab.probe("info", "alive", env=client(control), seconds=10)
        values["new_client"] = done.values()
        values["running_client"] = (await running.finish(15)).values()
        values["old_server_lives"] = server is not None and _lives(server)
        return Seen(values)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


STEP = Step(
    "G5",
    "Faults, kills, and a daemon that dies",
    (
        Case(
            "control-held-open",
            "a connection to the public socket that says nothing",
            control_held_open,
            seconds=40,
        ),
        Case(
            "terminated-then-killed",
            "a busy client terminated by the daemon, then killed",
            killed(terminate_first=True),
            seconds=50,
        ),
        Case("killed-busy", "a busy client killed", killed(terminate_first=False), seconds=50),
        Case(
            "daemon-killed",
            "the control daemon killed under a running client",
            daemon_killed,
            (*WITH_MPS, Need.ROOT),
            60,
        ),
        Case("fault", "one client writes to an illegal address", fault, seconds=70),
        Case("reset", "the GPU's reset after a fault that stays", never=NO_RESET),
    ),
)
