"""Compute a container's settings from its lease. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpushared.domain.leases.explain import bounds, count_bounds
from gpushared.domain.model.errors import SharingUnavailable
from gpushared.domain.model.gpu import (
    MIB,
    WHOLE_PERMILLE,
    Gpu,
    GpuId,
)
from gpushared.domain.model.instances import wants_instances
from gpushared.domain.model.lease import (
    ComputeCap,
    Grant,
    Lease,
    MemoryWall,
    Walls,
)
from gpushared.domain.model.request import Isolation
from gpushared.ports import EditMount, Edits
from gpushared.sharing.control import DaemonLimits
from gpushared.sharing.driver_wall import CgroupPlacement

CONTAINER_DIRECTORY = "/run/gpushare"
"""A container finds its lease's directory here (see ``LeaseDirectories``)."""
CONTAINER_PIPE_DIRECTORY = f"{CONTAINER_DIRECTORY}/mps"
NO_PIPE_DIRECTORY = "/tmp/gpushare-mps"  # noqa: S108  # only a name: nothing of ours is ever there
"""Containers without MPS look for a socket here and find none. The driver's own default is a place that
NVIDIA's container tools mount from the host, where a foreign control daemon may serve. A program that starts
its own daemon in its container can do so here."""
CONTAINER_LOG_DIRECTORY = "/tmp/gpushare-mps-log"  # noqa: S108  # only daemons write there, clients do not

_WHOLE = Walls(MemoryWall.WHOLE_GPU, ComputeCap.WHOLE_GPU)
_MIG = Walls(MemoryWall.MIG, ComputeCap.MIG)
_OWN_MPS = Walls(MemoryWall.MPS_SERVER, ComputeCap.MPS_PERCENTAGE)
_MPS = Walls(MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)
_WATCHED = Walls(MemoryWall.WATCHDOG, ComputeCap.NONE)
_NONE = Walls(MemoryWall.NONE, ComputeCap.NONE)


def ordered_grants(lease: Lease, gpus: Mapping[GpuId, Gpu]) -> tuple[Grant, ...]:
    """Return the lease's grants by GPU index. Raises SharingUnavailable if a GPU is missing."""
    missing = sorted({grant.gpu for grant in lease.grants} - gpus.keys())
    if missing or not lease.grants:
        if missing:
            trouble = f"GPU {missing[0]} of lease {lease.id} is not there"
            raise SharingUnavailable(trouble, hint="`gpushare gpus` lists what there is")
        raise SharingUnavailable(f"lease {lease.id} holds no GPU")
    return tuple(sorted(lease.grants, key=lambda grant: (gpus[grant.gpu].index, grant.gpu)))


def holds_whole_gpus(lease: Lease, gpus: Mapping[GpuId, Gpu]) -> bool:
    """Return True if no other lease can be on the GPUs: the lease wants that, or has all of them."""
    return lease.request.wants_whole_gpus or all(
        grant.compute_permille >= WHOLE_PERMILLE and grant.memory_bytes >= gpus[grant.gpu].leasable_bytes
        for grant in lease.grants
    )


def lease_edits(
    lease: Lease,
    gpus: Mapping[GpuId, Gpu],
    *,
    directory: str,
    mps: bool,
    simulated: bool,
    placement: CgroupPlacement | None = None,
    watched: bool = False,
    mounts: tuple[EditMount, ...] = (),
) -> Edits:
    """Return the edits of a lease; ``directory`` is the lease's own on the host, ``mounts`` are added.

    ``mps``: a control daemon serves the lease, and its socket lies in the directory. A separate lease has its
    own daemon, which keeps the lease's limits, so that a client can only lower them. Without MPS a lease of a
    part has no walls but the watchdog, if that acts (``watched``), and the walls say so. ``placement``: the
    driver limits the lease's cgroup too.
    """
    grants = ordered_grants(lease, gpus)
    whole = holds_whole_gpus(lease, gpus)
    mps = mps and not whole
    walls = _walls(lease, whole=whole, mps=mps, watched=watched)
    placement = None if whole else placement
    if placement is not None and _is_new(lease):
        walls = Walls(MemoryWall.DRIVER, walls.compute_cap)
    return Edits(
        gpus=tuple(grant.gpu for grant in grants),
        walls=walls,
        env={
            **_device_env(grants),
            **(_mps_env(grants) if mps else _no_mps_env()),
            **_facts_env(lease, grants, walls, simulated=simulated),
            **_range_env(lease, [bounds(lease.request, grant, gpus[grant.gpu]) for grant in grants]),
        },
        env_defaults={} if whole else _framework_env(grants, gpus, walls),
        mounts=(EditMount(directory, CONTAINER_DIRECTORY), *mounts),
        cgroup_parent=placement.cgroup_parent if placement else "",
        hooks=placement.hooks if placement else (),
    )


def _walls(lease: Lease, *, whole: bool, mps: bool, watched: bool) -> Walls:
    """Return the walls without those of the driver."""
    if whole:
        return _MIG if wants_instances(lease.request) else _WHOLE
    if mps:
        return _OWN_MPS if lease.request.isolation is Isolation.SEPARATE else _MPS
    return _WATCHED if watched else _NONE


def _is_new(lease: Lease) -> bool:
    """Return True if the lease's container is made for the lease.

    A container that is started again under another lease may have been made before the driver had limits, and
    so outside the lease's cgroup: its walls are only known once it runs.
    """
    return lease.device_name == lease.id


def _device_env(grants: Sequence[Grant]) -> dict[str, str]:
    uuids = ",".join(grant.gpu for grant in grants)
    return {
        "CUDA_VISIBLE_DEVICES": uuids,
        "NVIDIA_VISIBLE_DEVICES": uuids,
    }


def _mps_env(grants: Sequence[Grant]) -> dict[str, str]:
    """Return the client's side of MPS.

    Memory limits go by ordinal and not by UUID: ordinals are fixed by our CUDA_VISIBLE_DEVICES, and limits by
    UUID have been seen to be ignored (NVIDIA/k8s-device-plugin issue 572). An entry for a GPU that the
    process cannot see makes the driver drop every limit, so each visible GPU has one and no other GPU.
    """
    limits = (f"{ordinal}={_whole_mib(grant)}M" for ordinal, grant in enumerate(grants))
    return {
        "CUDA_MPS_PIPE_DIRECTORY": CONTAINER_PIPE_DIRECTORY,
        "CUDA_MPS_LOG_DIRECTORY": CONTAINER_LOG_DIRECTORY,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": _percent(_ceiling_permille(grants)),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(limits),
        # Images may set these variables; the gate sees only the caller's own variables.
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "0",
        "CUDA_MPS_CLIENT_PRIORITY": "0",
    }


def _no_mps_env() -> dict[str, str]:
    return {"CUDA_MPS_PIPE_DIRECTORY": NO_PIPE_DIRECTORY, "CUDA_MPS_LOG_DIRECTORY": CONTAINER_LOG_DIRECTORY}


def _facts_env(lease: Lease, grants: Sequence[Grant], walls: Walls, *, simulated: bool) -> dict[str, str]:
    return {
        "GPUSHARE_LEASE": lease.id,
        "GPUSHARE_GPU_UUIDS": ",".join(grant.gpu for grant in grants),
        "GPUSHARE_MEMORY_BYTES": str(min(grant.memory_bytes for grant in grants)),
        "GPUSHARE_COMPUTE_PERCENT": _percent(_compute_permille(grants)),
        "GPUSHARE_COMPUTE_LIMIT_PERCENT": _percent(_ceiling_permille(grants)),
        "GPUSHARE_GPU_COUNT": str(len(grants)),
        "GPUSHARE_MEMORY_WALL": walls.memory_wall,
        "GPUSHARE_COMPUTE_CAP": walls.compute_cap,
        "GPUSHARE_SIMULATED": "1" if simulated else "0",
    }


def _range_env(lease: Lease, ends: Sequence[tuple[Grant, Grant]]) -> dict[str, str]:
    """Return the least and the most that the lease may have at its next start, beside its present size."""
    lows, highs = zip(*ends, strict=True)
    fewest, most = count_bounds(lease.request)
    return {
        "GPUSHARE_MEMORY_BYTES_MIN": str(min(grant.memory_bytes for grant in lows)),
        "GPUSHARE_MEMORY_BYTES_MAX": str(min(grant.memory_bytes for grant in highs)),
        "GPUSHARE_COMPUTE_PERCENT_MIN": _percent(_compute_permille(lows)),
        "GPUSHARE_COMPUTE_PERCENT_MAX": _percent(_compute_permille(highs)),
        "GPUSHARE_GPU_COUNT_MIN": str(fewest),
        "GPUSHARE_GPU_COUNT_MAX": str(most),
    }


def _framework_env(grants: Sequence[Grant], gpus: Mapping[GpuId, Gpu], walls: Walls) -> dict[str, str]:
    """Return hints for frameworks that read the GPU's total.

    A limit of the driver changes it, MPS does not.
    """
    growth = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    if walls.memory_wall is MemoryWall.DRIVER:
        return growth
    permille = min(grant.memory_bytes * 1000 // gpus[grant.gpu].memory_total_bytes for grant in grants)
    return {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{max(1, permille) / 1000:.3f}", **growth}


def own_limits(grants: Sequence[Grant]) -> DaemonLimits:
    """Return the limits of a daemon that serves only one lease; ``grants`` in the daemon's order."""
    return DaemonLimits(tuple(map(_whole_mib, grants)), _ceiling_permille(grants) / 10)


def _whole_mib(grant: Grant) -> int:
    """Return the grant in whole MiB, at least one, because zero means no limit."""
    return max(1, grant.memory_bytes // MIB)


def _compute_permille(grants: Sequence[Grant]) -> int:
    """Return the least share of all GPUs, because a process has one percentage for all of them."""
    return min(grant.compute_permille for grant in grants)


def _ceiling_permille(grants: Sequence[Grant]) -> int:
    """Return the least ceiling of all GPUs, by the same rule."""
    return min(grant.ceiling_permille for grant in grants)


def _percent(permille: int) -> str:
    whole, tenths = divmod(permille, 10)
    return f"{whole}.{tenths}" if tenths else str(whole)
