"""What a user asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpushared.domain.gpu import GpuId


class Isolation(StrEnum):
    """How a lease stands beside the others on the same GPU."""

    SHARED = "shared"
    """Through one MPS server with the others on the GPU, so that their kernels can overlap."""
    SEPARATE = "separate"
    """Through an MPS server of its own beside the others, so that limits and faults are its own."""
    EXCLUSIVE = "exclusive"
    MIG = "mig"
    """A whole MIG instance: a part of a GPU with memory and compute of its own."""


class LeaseClass(StrEnum):
    """What kind of work it is; recorded with the lease, order among classes follows with quotas."""

    BUILD = "build"
    TRAIN = "train"
    INFER = "infer"


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine, told apart from all others that ever had or will have its number.

    ``started_ticks``: when it began, in clock ticks since the boot (field 22 of /proc/PID/stat, proc(5)).
    """

    pid: int
    started_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as the kernel reported it; ``trusted`` = root or a member of the docker group."""

    uid: int
    gid: int
    name: str
    trusted: bool = False
    process: Process | None = field(default=None, compare=False, metadata={"recorded": False})
    """The process that opened the connection, where that is known for certain."""


MAX_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class Request:
    """A request, checked on its own; whether a node can grant it is ``placement``'s question.

    Per GPU: the memory is ``memory_bytes`` or else ``memory_permille`` of what the chosen GPU can lease;
    ``compute_permille`` None follows the memory. Where a ``max_...`` is set, the figure of that name without
    it is the least that will do, and what is free is given up to the maximum (``elastic``). ``gpus`` pins the
    request to exactly these GPUs (a stopped container whose settings already name them).
    ``time_limit_seconds`` counts from the grant.
    """

    gpu_count: int = 1
    compute_permille: int | None = None
    memory_bytes: int | None = None
    memory_permille: int | None = None
    isolation: Isolation = Isolation.SHARED
    lease_class: LeaseClass = LeaseClass.TRAIN
    time_limit_seconds: int | None = None
    preset: str | None = None
    restart_on_fault: int = 0
    """How often its container is to be started again after a fault that was none of its own."""
    gpus: tuple[GpuId, ...] = ()
    models: tuple[str, ...] = ()
    """The GPU models that will do; empty for all."""
    host_cpu_milli: int | None = None
    host_memory_bytes: int | None = None
    """What the container may take of the host (docker's ``--cpus`` and ``--memory``); None = not said."""
    near: tuple[str, ...] = ()
    """Leases on whose host it is to be."""
    away_from: tuple[str, ...] = ()
    """Leases on whose GPUs it is not to be."""
    project: str = ""
    """Whose quota it counts against; empty for the one that its owner is in."""
    priority: int = 0
    """Higher goes first among the requests of the same project."""
    begin_at: float | None = None
    """It is not to start before (epoch seconds)."""
    after: tuple[str, ...] = ()
    """Leases that must be over before it may start, however they end."""
    requeue: bool | None = None
    """Whether its container is started again after it gave way; None: where nobody is attached to it."""
    notice_signal: str = ""
    """Sent to the container when it is told that it will end, such as ``SIGUSR1``; empty for none."""
    max_gpu_count: int | None = None
    """Only of whole GPUs."""
    max_compute_permille: int | None = None
    max_memory_bytes: int | None = None
    max_memory_permille: int | None = None
    compute_limit_permille: int | None = None
    """What its processes may use where the others leave it: ``compute_permille`` is what is booked."""

    @property
    def wants_whole_gpus(self) -> bool:
        """Whether nobody else may be on what it is granted: whole GPUs, or whole MIG instances."""
        return self.isolation in {Isolation.EXCLUSIVE, Isolation.MIG}
