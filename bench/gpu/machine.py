"""What this machine has that the steps need, found without changing anything."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.gpu.child import run

QUERY_SECONDS = 30.0
CGROUP = Path("/sys/fs/cgroup")
GPU_FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "compute_mode",
    "persistence_mode",
    "mig.mode.current",
    "memory.total",
    "memory.used",
    "memory.free",
    "compute_cap",
)
FIRST_WITH_CGROUP_LIMITS = 615
_MORE_PLACES = ("/usr/local/nvidia/bin", "/usr/local/cuda/bin", "/opt/nvidia/bin", "/usr/lib/nvidia/bin")


class Need(StrEnum):
    """What a case cannot do without."""

    GPU = "a GPU"
    PROBE = "the CUDA probe"
    MPS = "MPS"
    NVML = "nvidia-ml-py"
    TORCH = "torch"
    ROOT = "root"
    UNSHARE = "unshare"
    R615 = "driver r615"
    CGROUP2 = "cgroup v2"


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts; ``gpu`` is the row of nvidia-smi's table for the GPU that is used, or None."""

    gpu: Mapping[str, str] | None
    no_gpu: str
    mps_control: Path | None
    nvcc: str | None
    modules: frozenset[str]
    root: bool
    unshare: bool
    cgroup2: bool
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        return "" if self.gpu is None else self.gpu["uuid"]

    @property
    def driver_major(self) -> int:
        version = "" if self.gpu is None else self.gpu["driver_version"]
        head = version.split(".", 1)[0]
        return int(head) if head.isdecimal() else 0

    def lacks(self, need: Need) -> str | None:
        """Why a need is not met, in a few words; None when it is. The probe is another's to judge."""
        match need:
            case Need.GPU | Need.PROBE:
                return None if self.gpu else f"there is no GPU here: {self.no_gpu}"
            case Need.MPS:
                return None if self.mps_control else "nvidia-cuda-mps-control is not installed"
            case Need.NVML:
                return None if "pynvml" in self.modules else "nvidia-ml-py (module pynvml) is not installed"
            case Need.TORCH:
                return None if "torch" in self.modules else "torch is not installed"
            case Need.ROOT:
                return None if self.root else "it needs root"
            case Need.UNSHARE:
                return None if self.unshare else "unshare is not installed"
            case Need.R615:
                return (
                    None if self.driver_major >= FIRST_WITH_CGROUP_LIMITS else "the driver is older than r615"
                )
            case Need.CGROUP2:
                return None if self.cgroup2 else "there is no writable cgroup v2 at /sys/fs/cgroup"


async def look(index: int = 0, mps: Path | None = None) -> Machine:
    """Find out; ``mps`` is a directory with the MPS programs, searched first."""
    rows, why = await gpu_table()
    gpu = rows[index] if index < len(rows) else None
    return Machine(
        gpu=gpu,
        no_gpu=why or f"nvidia-smi lists {len(rows)} GPUs, none of index {index}",
        mps_control=_program("nvidia-cuda-mps-control", mps),
        nvcc=shutil.which("nvcc", path=_path()),
        modules=frozenset(
            name for name in ("pynvml", "torch", "cupy", "cuda") if importlib.util.find_spec(name)
        ),
        root=os.geteuid() == 0,
        unshare=shutil.which("unshare") is not None,
        cgroup2=(CGROUP / "cgroup.controllers").exists() and os.access(CGROUP, os.W_OK),
        facts=_facts(),
    )


async def gpu_table() -> tuple[list[dict[str, str]], str]:
    """nvidia-smi's table, or no rows and why there are none."""
    program = _program("nvidia-smi", None)
    if program is None:
        return [], "nvidia-smi is not installed"
    words: list[str | Path] = [
        program,
        f"--query-gpu={','.join(GPU_FIELDS)}",
        "--format=csv,noheader,nounits",
    ]
    try:
        done = await run(words, seconds=QUERY_SECONDS)
    except OSError as error:
        return [], f"nvidia-smi cannot be run: {error.strerror}"
    if done.rc:
        return [], f"nvidia-smi ended with {done.rc}: {(done.stdout + done.stderr).strip()[:200]}"
    if done.rc is None:
        return [], f"nvidia-smi did not answer in {QUERY_SECONDS:g} s"
    cells = ([cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines())
    return [dict(zip(GPU_FIELDS, row, strict=True)) for row in cells if len(row) == len(GPU_FIELDS)], ""


def _program(name: str, first: Path | None) -> Path | None:
    found = shutil.which(name, path=_path(first))
    return Path(found).absolute() if found else None


def _path(first: Path | None = None) -> str:
    return ":".join([*([str(first)] if first else []), os.environ.get("PATH", os.defpath), *_MORE_PLACES])


def _facts() -> dict[str, Any]:
    controllers = CGROUP / "cgroup.controllers"
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "uid": os.geteuid(),
        "cgroup_version": 2 if controllers.exists() else 1,
        "cgroup_controllers": controllers.read_text().split() if controllers.exists() else [],
        "device_nodes": sorted(str(path) for path in Path("/dev").glob("nvidia*")),
        "cpus": os.cpu_count(),
    }
