"""G8: what driver r615 adds: namespaces of MPS v3, and memory limits of cgroups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from bench.gpu.case import BASIC, WITH_MPS, Case, Seen, Step
from bench.gpu.child import Done, run
from bench.gpu.lab import Lab, inherited
from bench.gpu.machine import CGROUP, Need
from bench.gpu.mps import take

HARD_MIB = 3000
ASK_MIB = 4096
MIB = 1024 * 1024
SERVER, FIRST, SECOND = "s1", "small", "large"
V3 = (*WITH_MPS, Need.ROOT, Need.R615)
CGROUP_LIMITS = (*BASIC, Need.NVML, Need.ROOT, Need.CGROUP2, Need.R615)
JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


class V3Daemon:
    """A control daemon of protocol 3, asked with words on its command line."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self._lab = lab
        self.pipe = home / "pipe"
        self._env = {
            **inherited(),
            "CUDA_MPS_PROTOCOL_VERSION": "3",
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(home / "log"),
        }

    async def ask(self, *words: str) -> Done:
        assert self._lab.machine.mps_control is not None
        return await run([self._lab.machine.mps_control, *words], seconds=10, env=self._env)

    async def said(self, *words: str) -> str:
        done = await self.ask(*words)
        return f"{done.rc}: {(done.stdout + done.stderr).strip()}"


@asynccontextmanager
async def v3_daemon(lab: Lab) -> AsyncIterator[V3Daemon]:
    """With one server on our GPU, and two namespaces of different limits."""
    home = lab.new_home()
    (home / "pipe").mkdir(parents=True)
    (home / "log").mkdir()
    made = V3Daemon(lab, home)
    try:
        await made.ask("-d", "-p", "3")
        for words in (
            ("server", "create", SERVER, "--uid=0", f"--allowed-devices={lab.machine.uuid}"),
            ("namespace", "create", FIRST, f"--server={SERVER}"),
            ("namespace", "set", FIRST, f"--server={SERVER}", f"--pinned-memory-limit={HARD_MIB}M"),
            ("namespace", "create", SECOND, f"--server={SERVER}"),
            ("namespace", "set", SECOND, f"--server={SERVER}", "--active-thread-percentage=25"),
        ):
            await made.ask(*words)
        yield made
    finally:
        await lab.clear()
        await made.ask("-q")


async def namespaces(lab: Lab) -> Seen:
    """Limits of two namespaces, two clients of one of them, and deleting one that has a client."""
    async with v3_daemon(lab) as v3:
        values: dict[str, Any] = {"list": await v3.said("namespace", "list", "--format=csv")}
        for name in (FIRST, SECOND):
            env = {"CUDA_MPS_PIPE_DIRECTORY": str(v3.pipe / SERVER / name)}
            values[name] = (await lab.probe("info", *take(upto_mib=ASK_MIB), env=env)).values()
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(v3.pipe / SERVER / FIRST)}
        both = [await lab.start(*take(upto_mib=ASK_MIB), "wait", env=env) for _ in range(2)]
        values["two"] = [await child.next("alloc", 15) for child in both]
        values["clients"] = await v3.said("client", "list", "--all", "--format=csv")
        values["delete"] = await v3.said("namespace", "delete", FIRST, f"--server={SERVER}")
        for child in both:
            await child.finish(5)
        return Seen({**values, "limit_mib": HARD_MIB})


@asynccontextmanager
async def cgroup(lab: Lab) -> AsyncIterator[Path]:
    """A cgroup of the case's own with a hard limit of device memory."""
    path = CGROUP / f"gpushared-bench-{lab.home.name}"
    path.mkdir()
    try:
        yield path
    finally:
        await lab.clear()
        # Before the cgroup goes, or its ancestors keep the reservation.
        await lab.script("look.py", "limit", str(path), "0", "max")
        for _ in range(50):
            with suppress(OSError):
                path.rmdir()
                break
            await asyncio.sleep(0.1)


def _inside(lab: Lab, path: Path, *actions: str) -> list[str | Path]:
    """The probe's command, which first joins the cgroup."""
    return ["sh", "-c", JOIN, str(path), str(lab.probe_path), *actions]


def limited(method: str) -> Callable[[Lab], Awaitable[Seen]]:
    """Memory taken by one method beyond the cgroup's hard limit, without MPS."""

    async def attempt(lab: Lab) -> Seen:
        async with cgroup(lab) as path:
            hard = await lab.script("look.py", "limit", str(path), "0", str(HARD_MIB * MIB))
            read = await lab.script("look.py", "limits", str(path))
            words = _inside(lab, path, "info", *take(method, ASK_MIB))
            done = await (await lab.start_words(words)).finish(20)
            return Seen.of(done, set=hard.values(), read_back=read.values(), limit_mib=HARD_MIB)

    return attempt


async def two_in_cgroup(lab: Lab) -> Seen:
    """Two processes of one cgroup: do they share its limit?"""
    async with cgroup(lab) as path:
        await lab.script("look.py", "limit", str(path), "0", str(HARD_MIB * MIB))
        words = _inside(lab, path, *take(upto_mib=ASK_MIB), "wait")
        both = [await lab.start_words(words) for _ in range(2)]
        taken = [await child.next("alloc", 15) for child in both]
        read = await lab.script("look.py", "limits", str(path))
        for child in both:
            await child.finish(5)
        total = sum(line.get("allocated_mib", 0) for line in taken)
        return Seen({"limit_mib": HARD_MIB, "allocated_mib": total, "each": taken, "limits": read.values()})


STEP = Step(
    "G8",
    "What driver r615 adds",
    (
        Case("v3-namespaces", "limits of two namespaces of MPS v3", namespaces, V3, 90),
        *(
            Case(
                f"cgroup-{method}",
                f"{method} beyond a cgroup's hard limit",
                limited(method),
                CGROUP_LIMITS,
                60,
            )
            for method in ("malloc", "async", "vmm", "managed")
        ),
        Case(
            "cgroup-two-processes", "two processes under one cgroup's limit", two_in_cgroup, CGROUP_LIMITS, 60
        ),
        Case(
            "cgroup-soft-left-behind",
            "a soft limit whose cgroup is removed",
            needs=CGROUP_LIMITS,
            never="it may leave a reservation behind; try it by hand where that is no harm",
        ),
        Case(
            "cgroup-by-hook",
            "the limit set by a container engine's createRuntime hook",
            needs=CGROUP_LIMITS,
            never="it needs a container engine, and a run works without one",
        ),
    ),
)
