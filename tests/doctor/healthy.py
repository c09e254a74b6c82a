"""A machine on which every check is well, to be made worse one thing at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpushared.doctor.machine_facts import (
    ConfigState,
    DaemonView,
    Directory,
    DoctorFacts,
    EngineReport,
    Groups,
    HostFacts,
    KnownGpu,
    MpsProgram,
    MpsReport,
    NvidiaSpecs,
    SocketFile,
    Toolkit,
    Unit,
)
from gpushared.domain.model.gpu import GpuId
from gpushared.ports import DeviceMechanism, DriverFacts, GpuSettings

GIB = 2**30
UUID = GpuId("GPU-01234567-89ab-cdef-0123-456789abcdef")

GPU = GpuSettings(UUID, 0, "H100", persistence=True, compute_mode=0, mig=False, compute_capability=(9, 0))
DRIVER = DriverFacts("615.71.09", (GPU,))
SPECS = NvidiaSpecs(("/etc/cdi/nvidia.yaml",), frozenset({"615.71.09"}), frozenset({UUID}))
ENGINE = EngineReport(
    version="29.3.1",
    api_version="1.52",
    gpu_mechanism=DeviceMechanism.CDI,
    cgroup_driver="systemd",
    default_runtime="runc",
    cdi_dirs=("/etc/cdi", "/var/run/cdi"),
    nvidia_specs=SPECS,
)
MPS = MpsReport(program=MpsProgram("/usr/bin/nvidia-cuda-mps-control", "615.71.09", serves_many_users=True))
HOST = HostFacts(kernel="6.14")
HEALTHY = DoctorFacts(
    simulated=False,
    daemon=DaemonView(gpus=(KnownGpu(0, "H100"),)),
    driver=DRIVER,
    engine=ENGINE,
    toolkit=Toolkit("1.18.1", env_switch=False),
    mps=MPS,
    host=HOST,
    groups=Groups({"docker": ()}),
    unit=Unit("gpushared.service", "process", "yes"),
    socket=SocketFile("/run/gpushared/gpushared.sock"),
    runtime_dir=Directory("/run/gpushared", "tmpfs", 8 * GIB, 100_000),
    state_dir=Directory("/var/lib/gpushared", "ext4", 80 * GIB, 5_000_000),
    config=ConfigState(),
)


def but(part: str, **changes: Any) -> DoctorFacts:
    """The healthy machine with fields of one part changed."""
    return also(HEALTHY, **{part: replace(getattr(HEALTHY, part), **changes)})


def with_gpu(**changes: Any) -> DoctorFacts:
    return but("driver", gpus=(replace(GPU, **changes),))


def with_part(part: str, value: Any) -> DoctorFacts:
    return also(HEALTHY, **{part: value})


def also(facts: DoctorFacts, **parts: Any) -> DoctorFacts:
    """The machine with whole parts exchanged."""
    return replace(facts, **parts)
