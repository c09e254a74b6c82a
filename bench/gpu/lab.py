"""Where the cases work: the probe, its clients' environment, and everything that must be gone afterwards."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.gpu.child import Child, Done, run
from bench.gpu.machine import Machine

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD_SECONDS = 120.0
PROBE_SECONDS = 20.0
CLEAR_SECONDS = 2.0
"""What is left of a case gets the end of its input, and so long to go by itself."""
OTHER_UID = 1001
"""A user without a name does; nothing is written for it."""
THIRD_UID = 1002

_KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")


class BuildFailed(Exception):
    """nvcc is missing or does not build the probe."""


class Lab:
    """A directory with a short name (sockets lie in it), the probe, and the children of the running case."""

    def __init__(self, machine: Machine, out: Path) -> None:
        self.machine = machine
        self.out = out
        self.home = Path(tempfile.mkdtemp(prefix="gsl-", dir="/tmp"))
        # Users other than root must reach the probe, and servers of theirs the sockets.
        self.home.chmod(0o755)
        self.probe_path = self.home / "bin" / "probe"
        self.probe_path.parent.mkdir(mode=0o755)
        self._children: list[Child] = []
        self._names = 0

    def new_home(self) -> Path:
        """A directory's name that was not used before."""
        self._names += 1
        return self.home / f"d{self._names}"

    async def build(self) -> float:
        """Build the probe; the seconds it took. Raises BuildFailed."""
        return await build_probe(self.machine.nvcc, self.probe_path.parent)

    def environ(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Of an ordinary CUDA process on our GPU that finds no MPS daemon."""
        nowhere = {"CUDA_MPS_PIPE_DIRECTORY": str(self.home / "nowhere")}
        device = {"CUDA_VISIBLE_DEVICES": self.machine.uuid} if self.machine.uuid else {}
        return {**inherited(), **nowhere, **device, **(extra or {})}

    async def start(
        self, *actions: str, env: Mapping[str, str] | None = None, uid: int | None = None
    ) -> Child:
        """A probe that runs on; ended with the case at the latest."""
        return await self.start_words([self.probe_path, *actions], env=env, uid=uid)

    async def start_words(
        self,
        words: list[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        uid: int | None = None,
    ) -> Child:
        child = await Child.start(words, env=self.environ(env), uid=uid)
        self._children.append(child)
        return child

    async def probe(
        self,
        *actions: str,
        env: Mapping[str, str] | None = None,
        uid: int | None = None,
        seconds: float = PROBE_SECONDS,
    ) -> Done:
        """A probe, awaited."""
        child = await self.start(*actions, env=env, uid=uid)
        return await child.finish(seconds)

    async def script(self, name: str, *words: str, env: Mapping[str, str] | None = None) -> Done:
        """One of the Python programs beside this one, awaited."""
        command = [sys.executable, str(HERE / name), *words]
        return await run(command, seconds=60, env=self.environ(env))

    async def clear(self) -> None:
        """End what the case has left running."""
        children, self._children = self._children, []
        await asyncio.gather(*(child.finish(CLEAR_SECONDS) for child in children if child.running))

    async def close(self) -> None:
        await self.clear()
        shutil.rmtree(self.home, ignore_errors=True)

    def keep_log(self, path: Path, title: str) -> None:
        """Add the end of a log to what the run leaves behind."""
        try:
            text = path.read_text(errors="replace")[-3000:]
        except OSError:
            return
        with (self.out / "mps.log").open("a") as log:
            log.write(f"--- {title}\n{text}\n")


def inherited() -> dict[str, str]:
    """What a program needs to find its libraries, and nothing of CUDA's settings."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


async def build_probe(nvcc: str | None, directory: Path) -> float:
    """Build the probe into a directory that exists; the seconds it took. Raises BuildFailed."""
    if nvcc is None:
        raise BuildFailed("nvcc is not installed")
    source = HERE / "probe"
    flags = ("-std=c++17", "-O2", "-Xcompiler", "-Wall,-Wextra")
    seconds = 0.0
    commands: tuple[list[str | Path], ...] = (
        [nvcc, *flags, "-o", directory / "probe", source / "main.cpp", "-ldl"],
        # For every generation, so that nothing depends on which GPU is seen while building.
        [nvcc, "-fatbin", "-arch=all-major", "-o", directory / "kernels.fatbin", source / "kernels.cu"],
    )
    for words in commands:
        done = await run(words, seconds=BUILD_SECONDS)
        seconds += done.seconds
        if done.rc != 0:
            raise BuildFailed(f"nvcc failed ({done.rc}): {done.stderr}")
    return seconds
