"""Control daemons for the cases, run by the adapter that gpushared itself uses."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from bench.gpu.case import Seen
from bench.gpu.child import Done, run
from bench.gpu.lab import Lab, inherited
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.gpu import GpuId
from gpushared.sharing.control import ControlTiming, DaemonLimits, MpsControl

LIMIT_MIB = 4096
ASK_MIB = 6144
"""More than the limit, and little of the memory of any GPU that is worth sharing."""
STEP_MIB = 64
PERCENTAGE = 25
LIMITS = DaemonLimits((LIMIT_MIB,), PERCENTAGE)
TIMING = ControlTiming(command_seconds=5.0, start_seconds=20.0, quit_seconds=5.0)
SERVER_SECONDS = 10.0


def take(method: str = "malloc", upto_mib: int = ASK_MIB, step_mib: int = STEP_MIB) -> tuple[str, ...]:
    """The probe's words for taking memory."""
    return ("alloc", method, str(upto_mib), str(step_mib))


@asynccontextmanager
async def daemon(
    lab: Lab,
    limits: DaemonLimits | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    multiuser: bool = False,
) -> AsyncIterator[MpsControl]:
    """A daemon of the case's own, with its limits set and read back."""
    assert lab.machine.mps_control is not None, "cases with a daemon need MPS"
    libraries = {key: value for key, value in inherited().items() if key == "LD_LIBRARY_PATH"}
    control = MpsControl(
        lab.machine.mps_control,
        lab.new_home(),
        [GpuId(lab.machine.uuid)],
        multiuser=multiuser,
        timing=TIMING,
        environ={**libraries, **(environ or {})},
    )
    try:
        await control.start()
        if limits is not None:
            await control.set_limits(limits)
        yield control
    finally:
        # Clients first: a daemon waits for them.
        await lab.clear()
        for log in sorted(control.log.parent.glob("*.log")):
            lab.keep_log(log, f"{control.home.name}/{log.name}")
        with suppress(GpushareError, OSError):
            await control.quit()


def client(control: MpsControl, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment that makes a process this daemon's client."""
    return {"CUDA_MPS_PIPE_DIRECTORY": str(control.pipe_dir), **(extra or {})}


async def as_client(
    lab: Lab, control: MpsControl, *actions: str, extra: Mapping[str, str] | None = None, **more: object
) -> Seen:
    """What a probe sees as the daemon's client. Without a server among the values it was none."""
    done = await lab.probe(*actions, env=client(control, extra))
    return Seen.of(done, servers=list(await control.servers()), **more)


async def server_of(control: MpsControl) -> int | None:
    """The daemon's server, waited for: it comes with the first client."""
    until = time.monotonic() + SERVER_SECONDS
    while time.monotonic() < until:
        if servers := await control.servers():
            return servers[0]
        await asyncio.sleep(0.05)
    return None


async def as_user(lab: Lab, pipe_dir: Path, commands: Iterable[str], uid: int | None) -> Done:
    """What the control program says to a user, through whatever socket lies in this directory."""
    assert lab.machine.mps_control is not None
    env = {**inherited(), "CUDA_MPS_PIPE_DIRECTORY": str(pipe_dir)}
    text = "".join(f"{command}\n" for command in commands)
    return await run([lab.machine.mps_control], seconds=10, env=env, uid=uid, text=text)


def public_socket_only(lab: Lab, control: MpsControl, *, with_log: bool = False) -> Path:
    """A directory like a lease's: a hard link of the public socket and nothing else."""
    directory = lab.new_home()
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    for name in ("control", "log") if with_log else ("control",):
        os.link(control.pipe_dir / name, directory / name)
    return directory


async def server_states(control: MpsControl, server: int, seconds: float) -> list[dict[str, object]]:
    """What the daemon says of its server for a while: each change, with its time."""
    started, seen = time.monotonic(), list[dict[str, object]]()
    while (age := time.monotonic() - started) < seconds:
        try:
            answer = " ".join(await control.ask(f"get_server_status {server}")).strip()
        except GpushareError as error:
            answer = f"no answer: {error.message}"
        if not seen or seen[-1]["state"] != answer:
            seen.append({"state": answer, "seconds": round(age, 3)})
        await asyncio.sleep(0.05)
    return seen
