"""A fake NVIDIA driver for tests: builds ``libnvidia-ml.so.1`` and writes its state file.

The library's C source and the state file's words are in ``fake_nvml.c``. In the tests' own process, hand the
library's path to ``NvmlGpus(library=...)`` and name the state file with
``monkeypatch.setenv(STATE_VARIABLE, ...)``. A whole daemon needs nothing but its environment::

    library = fake_nvml_library(folder, named=True)         # folder/libnvidia-ml.so.1
    machine = FakeMachine(folder / "state", gpus=[FakeGpu("GPU-a")])
    subprocess.Popen([...], env=os.environ | machine.environment(library))
    machine.gpus[0].compute[pid] = 2**30                    # a process appears while the daemon runs
    machine.write()
"""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY_NAME = "libnvidia-ml.so.1"
STATE_VARIABLE = "FAKE_NVML_STATE"

OLD_DRIVER = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
)
"""What a driver of 2021 (r470) does not export yet."""

NO_MEMORY_LIMITS = ("nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1")
"""What a driver before r615 does not export."""

Errors = dict[str, int | tuple[int, int]]
"""Codes that functions answer, always or (code, times) the first times only."""


def fake_nvml_library(folder: Path, *, without: Sequence[str] = (), named: bool = False) -> Path:
    """Build the library into a folder that may be empty or not there yet; needs gcc.

    ``without`` names functions that it shall not export, as an older driver's would not. ``named``: it tells
    the loader its name, as NVIDIA's does. Whoever asks for that name later in the same process gets it then,
    so that this is for daemons, not for the process of the tests.
    """
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / LIBRARY_NAME
    library.write_bytes(_built(tuple(without), named=named))
    return library


@functools.cache
def _built(without: tuple[str, ...], *, named: bool) -> bytes:
    """The library, once for all tests of a run."""
    hidden = "".join(f" {name};" for name in without)
    flags = ["-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    with tempfile.TemporaryDirectory() as folder:
        library, script = Path(folder, LIBRARY_NAME), Path(folder, "exports")
        script.write_text(f"{{ global: nvml*; local:{hidden} *; }};\n")
        flags += [f"-Wl,--version-script={script}", *([f"-Wl,-soname,{LIBRARY_NAME}"] if named else [])]
        subprocess.run(["gcc", *flags, "-o", library, SOURCE], check=True, timeout=60)
        return library.read_bytes()


@dataclass
class FakeInstance:
    """A MIG device of a GPU; ``place`` is its index there, where there may be holes."""

    place: int
    uuid: str
    profile: str = "1g.10gb"
    total_bytes: int = 2 * 2**30 - 2**27
    reserved_bytes: int = 13 * 2**20
    slices: int = 1
    gpu_instance: int | None = None
    """As ``place`` unless it is said: compute instances of one GPU instance share its memory."""
    compute: dict[int, int | None] = field(default_factory=dict)
    mps: dict[int, int | None] = field(default_factory=dict)
    errors: Errors = field(default_factory=dict)

    def lines(self, gpu_name: str) -> list[str]:
        gpu_instance = self.place if self.gpu_instance is None else self.gpu_instance
        return [
            f"instance {self.place} {gpu_instance} {self.slices} {self.uuid} {gpu_name} MIG {self.profile}",
            f"memory {self.total_bytes} {self.reserved_bytes}",
            *_process_lines("compute", self.compute),
            *_process_lines("mps", self.mps),
            *_error_lines(self.errors),
        ]


@dataclass
class FakeGpu:
    """One GPU of the machine; a figure that is None is one that it does not support."""

    uuid: str
    name: str = "NVIDIA Fake 16GB"
    total_bytes: int | None = 16 * 2**30
    reserved_bytes: int = 500 * 2**20
    utilization_percent: int | None = 0
    temperature_celsius: int | None = 40
    power_milliwatts: int | None = 50_000
    energy_millijoules: int | None = 7_000_000
    mig: int | None = None
    instances: list[FakeInstance] = field(default_factory=list)
    persistence: int | None = None
    compute_mode: int | None = None
    capability: tuple[int, int] | None = None
    nvlink: int | None = None
    numa: int | None = None
    lost: bool = False
    xids: list[int] = field(default_factory=list)
    compute: dict[int, int | None] = field(default_factory=dict)
    mps: dict[int, int | None] = field(default_factory=dict)
    graphics: dict[int, int | None] = field(default_factory=dict)
    process_utilization: str | None = None
    """``told`` or ``silent``: how samples of what processes did are given, see the C source."""
    did: list[tuple[int, int, int]] = field(default_factory=list)
    """Such samples: PID, microseconds, percent."""
    errors: Errors = field(default_factory=dict)

    def lines(self) -> list[str]:
        memory = None if self.total_bytes is None else f"{self.total_bytes} {self.reserved_bytes}"
        figures = {
            "memory": memory,
            "utilization": self.utilization_percent,
            "temperature": self.temperature_celsius,
            "power": self.power_milliwatts,
            "energy": self.energy_millijoules,
            "mig": self.mig,
            "persistence": self.persistence,
            "compute_mode": self.compute_mode,
            "nvlink": self.nvlink,
            "numa": self.numa,
            "process_utilization": self.process_utilization,
            "capability": None if self.capability is None else " ".join(map(str, self.capability)),
        }
        return [
            f"gpu {self.uuid} {self.name}",
            *(["lost"] if self.lost else []),
            *(f"xid {number}" for number in self.xids),
            *(f"{word} {value}" for word, value in figures.items() if value is not None),
            *_process_lines("compute", self.compute),
            *_process_lines("mps", self.mps),
            *_process_lines("graphics", self.graphics),
            *(f"did {pid} {at_us} {percent}" for pid, at_us, percent in self.did),
            *_error_lines(self.errors),
            *(line for instance in self.instances for line in instance.lines(self.name)),
        ]


@dataclass
class FakeMachine:
    """What the fake library says: change the fields, then ``write``.

    ``hang`` names a function whose calls do not return until another state without it is written. ``cgroups``
    is where cgroup v2 is mounted, None on a machine with v1; ``unprivileged`` has whoever calls not be root;
    ``ignore_limits``: memory limits are taken and forgotten.
    """

    state: Path
    gpus: list[FakeGpu] = field(default_factory=list)
    driver: str = "580.95.05"
    errors: Errors = field(default_factory=dict)
    hang: str | None = None
    cgroups: Path | None = None
    unprivileged: bool = False
    ignore_limits: bool = False

    def __post_init__(self) -> None:
        self.write()

    def write(self) -> None:
        """In one step, because a daemon may be reading right now."""
        lines = [f"driver {self.driver}", *([f"hang {self.hang}"] if self.hang else [])]
        lines += [f"cgroups {self.cgroups}"] if self.cgroups else []
        lines += [word for word in ("unprivileged", "ignore_limits") if getattr(self, word)]
        lines += _error_lines(self.errors)
        lines += [line for gpu in self.gpus for line in gpu.lines()]
        draft = self.state.with_name(f"{self.state.name}.draft")
        draft.write_text("".join(f"{line}\n" for line in lines))
        draft.replace(self.state)

    def memory_limits(self) -> dict[tuple[str, str], tuple[int, int]]:
        """The soft and hard limits that are set, by GPU and cgroup, whoever set them."""
        path = self.state.with_name(f"{self.state.name}.limits")
        rows = [line.split(" ", 3) for line in path.read_text().splitlines()] if path.exists() else []
        return {(uuid, cgroup): (int(soft), int(hard)) for uuid, soft, hard, cgroup in rows}

    def modes_set(self) -> list[tuple[str, int]]:
        """Each compute mode that was set, GPU and mode, in order."""
        path = self.state.with_name(f"{self.state.name}.modes")
        lines = path.read_text().splitlines() if path.exists() else []
        return [(uuid, int(mode)) for uuid, mode in (line.split() for line in lines)]

    def unload_driver(self) -> None:
        """As ``rmmod nvidia``; ``write`` loads it again."""
        self.state.unlink()

    def environment(self, library: Path) -> dict[str, str]:
        """Variables for a process that shall find this machine instead of the real one."""
        return {"LD_LIBRARY_PATH": str(library.parent), STATE_VARIABLE: str(self.state)}


def _process_lines(kind: str, processes: dict[int, int | None]) -> list[str]:
    return [f"{kind} {pid} {'-' if held is None else held}" for pid, held in processes.items()]


def _error_lines(errors: Errors) -> list[str]:
    return [
        f"error {function} {' '.join(map(str, code)) if isinstance(code, tuple) else code}"
        for function, code in errors.items()
    ]
