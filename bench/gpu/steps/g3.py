"""G3: to whom NVML and MPS attribute memory and work, and what a client in namespaces of its own needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.gpu.case import WITH_MPS, Case, Seen, Step
from bench.gpu.child import Child
from bench.gpu.lab import Lab
from bench.gpu.machine import Need
from bench.gpu.mps import LIMITS, client, daemon, public_socket_only, server_of, take
from gpushared.sharing.control import DaemonLimits, MpsControl

HELD_MIB = (1024, 2048)
ROOM = DaemonLimits((16384,), 100)
NVML = (*WITH_MPS, Need.NVML)
APART = (*WITH_MPS, Need.ROOT, Need.UNSHARE)

EMPTY_SHM = 'mount -t tmpfs none /dev/shm && exec "$0" "$@"'


async def memory(lab: Lab) -> Seen:
    return await _held_by(lab, "malloc")


async def managed_memory(lab: Lab) -> Seen:
    return await _held_by(lab, "managed")


async def _held_by(lab: Lab, method: str) -> Seen:
    """Two clients hold different amounts; who is said to hold what?"""
    async with daemon(lab, ROOM) as control:
        clients = [await lab.start(*take(method, mib), "wait", env=client(control)) for mib in HELD_MIB]
        for child in clients:
            await child.next("alloc", 15)
        server = await server_of(control)
        values: dict[str, Any] = {
            "clients": {str(child.pid): mib for child, mib in zip(clients, HELD_MIB, strict=True)},
            "server": server,
            "control": control.pid,
            **(await lab.script("look.py", "lists")).values(),
            **(await lab.script("look.py", "adapter")).values(),
            "client_list": await control.ask(f"get_client_list {server}"),
            "ps": await control.ask("ps"),
        }
        for child in clients:
            await child.finish(10)
        return Seen(values)


async def utilisation(lab: Lab) -> Seen:
    """One client computes all the time, another holds memory only."""
    async with daemon(lab, ROOM) as control:
        busy = await lab.start("loop", "matmul", "4", env=client(control))
        idle = await lab.start(*take(upto_mib=1024), "wait", env=client(control))
        await busy.next("busy", 15)
        await idle.next("alloc", 15)
        await busy.next("loop", 15)
        look = await lab.script("look.py", "utilization", "4")
        await idle.finish(10)
        return Seen.of(look, busy=busy.pid, idle=idle.pid, server=await server_of(control))


def connects(
    *flags: str, shell: str = "", whole_directory: bool = False, with_log: bool = False
) -> Callable[[Lab], Awaitable[Seen]]:
    """Whether a client behind `unshare` is a client of the daemon: it is if it sees the limits."""

    async def run(lab: Lab) -> Seen:
        async with daemon(lab, LIMITS) as control:
            pipe = control.pipe_dir
            if not whole_directory:
                pipe = public_socket_only(lab, control, with_log=with_log)
            child = await _apart(lab, pipe, flags, shell)
            seen = await child.next("alloc", 20)
            values = {"listed": await _listed(control), "started_as": child.pid, "seen": seen}
            return Seen.of(await child.finish(10), **values)

    return run


async def _apart(lab: Lab, pipe: Path, flags: tuple[str, ...], shell: str) -> Child:
    probe: list[str | Path] = [lab.probe_path, "info", *take(), "wait"]
    if shell:
        probe = ["sh", "-c", shell, *probe]
    words: list[str | Path] = ["unshare", *flags, *probe] if flags else probe
    return await lab.start_words(words, env={"CUDA_MPS_PIPE_DIRECTORY": str(pipe)})


async def _listed(control: MpsControl) -> dict[str, Any]:
    """What the daemon says while the client lives; a client that missed it started no server."""
    servers = await control.servers()
    clients = await control.ask(f"get_client_list {servers[0]}") if servers else []
    return {"servers": list(servers), "client_list": clients, "ps": await control.ask("ps")}


PRIVATE_SHM = ("--mount", "--ipc")
PRIVATE_ALL = ("--mount", "--ipc", "--pid", "--fork", "--mount-proc")

STEP = Step(
    "G3",
    "Who is seen to hold memory and to compute, and what a contained client needs",
    (
        Case("memory", "device memory of two clients, in every list of the driver", memory, NVML, 60),
        Case("managed-memory", "the same with managed memory", managed_memory, NVML, 60),
        Case("utilisation", "work of two unequal clients", utilisation, NVML, 60),
        Case("hard-link", "a client with a hard link of `control` only", connects()),
        Case("hard-link-and-log", "a client with hard links of `control` and `log`", connects(with_log=True)),
        Case(
            "empty-shm", "a new IPC namespace, /dev/shm empty", connects(*PRIVATE_SHM, shell=EMPTY_SHM), APART
        ),
        Case(
            "new-pid-namespace",
            "a new PID namespace, the whole pipe directory",
            connects("--mount", "--pid", "--fork", "--mount-proc", whole_directory=True),
            APART,
        ),
        Case(
            "contained",
            "new PID and IPC namespaces, /dev/shm empty, a hard link of `control` only",
            connects(*PRIVATE_ALL, shell=EMPTY_SHM),
            APART,
        ),
    ),
)
