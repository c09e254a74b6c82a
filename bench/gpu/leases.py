"""Leases opened by gpushared's own sharing, and plain processes that live inside them as containers would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.gpu.lab import Lab, inherited
from gpushared.domain.leases.node_rules import MpsMode
from gpushared.domain.model.errors import SharingUnavailable
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import (
    ComputeCap,
    Grant,
    Lease,
    LeaseId,
    Reserved,
)
from gpushared.domain.model.request import Request
from gpushared.gpus.mig import MPS_RESERVE_BYTES, leasable_bytes
from gpushared.ports import Edits
from gpushared.sharing.lease_edits import CONTAINER_DIRECTORY, CONTAINER_PIPE_DIRECTORY
from gpushared.sharing.mps import MpsSharing

MIB = 1024 * 1024
FOREVER = 4e9
_MOUNTS = """
mount -t tmpfs -o mode=755 none /run
while [ "$1" != -- ]; do
  mkdir -p "$2" && mount --bind "$1" "$2" && mount -o remount,bind,ro "$2"
  shift 2
done
shift
exec "$@"
"""


def gpu_of(lab: Lab) -> Gpu:
    """Our GPU as the rules see it, by nvidia-smi's figures."""
    row = lab.machine.gpu
    assert row is not None
    total = int(float(row["memory.total"])) * MIB
    free = int(float(row["memory.free"])) * MIB
    leasable = leasable_bytes(total, total - free, MPS_RESERVE_BYTES)
    return Gpu(GpuId(lab.machine.uuid), int(row["index"]), row["name"], total, leasable)


def lease_of(gpu: Gpu, number: int, permille: int, *, uid: int = 0, memory_bytes: int | None = None) -> Lease:
    """A lease of so much of the GPU, reserved."""
    memory = gpu.memory_of_share(permille) if memory_bytes is None else memory_bytes
    name = f"l-{number}"
    return Lease(
        id=LeaseId(name),
        sequence=number,
        request=Request(compute_permille=permille, memory_permille=permille),
        owner_uid=uid,
        owner_name=str(uid),
        created_at=0.0,
        state=Reserved((Grant(gpu.id, memory, permille),), since=0.0, deadline=FOREVER),
        device_name=name,
    )


@asynccontextmanager
async def opened(lab: Lab, permilles: Sequence[int]) -> AsyncIterator[list[Edits]]:
    """The edits of leases of these sizes on our GPU, served until the end of the block."""
    libraries = {key: value for key, value in inherited().items() if key == "LD_LIBRARY_PATH"}
    sharing = MpsSharing(
        lab.new_home(), binary=lab.machine.mps_control, mode=MpsMode.REQUIRED, environ=libraries
    )
    gpu = gpu_of(lab)
    try:
        edits = [
            await sharing.open(lease_of(gpu, number, permille), {gpu.id: gpu})
            for number, permille in enumerate(permilles, 1)
        ]
        unlimited = [one for one in edits if one.walls.compute_cap is ComputeCap.NONE]
        if unlimited:
            raise SharingUnavailable("a lease was opened without walls, so there is nothing to measure")
        yield edits
    finally:
        await lab.clear()
        await sharing.close(keep_running=False)


def process_environment(edits: Edits) -> dict[str, str]:
    """A lease's environment for a process that sees the host's files: the mounted directory by its source."""
    sources = {mount.target: mount.source for mount in edits.mounts}
    env = {**edits.env_defaults, **edits.env}
    if env.get("CUDA_MPS_PIPE_DIRECTORY") == CONTAINER_PIPE_DIRECTORY:
        env["CUDA_MPS_PIPE_DIRECTORY"] = f"{sources[CONTAINER_DIRECTORY]}/mps"
    return env


def inside(edits: Edits, words: Sequence[str | Path], *, uid: int | None = None) -> list[str | Path]:
    """A command in a mount namespace of its own, with the lease's mounts where a container has them.

    Its /run is empty but for them. Needs root; the environment is the lease's as it is.
    """
    mounts = [part for mount in edits.mounts for part in (mount.source, mount.target)]
    user = [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    return ["unshare", "--mount", "sh", "-ec", _MOUNTS, "sh", *mounts, "--", *user, *words]
