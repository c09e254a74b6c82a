"""Define a user's request."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.gpu import GpuId


class Isolation(StrEnum):
    """Name how a lease stands beside other leases on the same GPU."""

    SHARED = "shared"
    """The lease goes through one MPS server with the others on the GPU, so that their kernels can overlap."""
    SEPARATE = "separate"
    """The lease goes through an MPS server of its own beside the others, so limits and faults are its own."""
    EXCLUSIVE = "exclusive"
    MIG = "mig"
    """The lease is a whole MIG instance: a part of a GPU with memory and compute of its own."""


class LeaseClass(StrEnum):
    """Name the kind of work, which is recorded with the lease; quotas and classes' order build on it."""

    BUILD = "build"
    TRAIN = "train"
    INFER = "infer"


@dataclass(frozen=True, slots=True)
class Process:
    """Identify a process of this machine, distinct from all others that ever had or will have its number.

    ``started_ticks``: the start of the process in clock ticks since the boot (field 22 of /proc/PID/stat,
    proc(5)).
    """

    pid: int
    started_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Identify the caller as the kernel reported it; ``trusted`` = root or a member of the docker group."""

    uid: int
    gid: int
    name: str
    trusted: bool = False
    process: Process | None = field(default=None, compare=False, metadata={"recorded": False})
    """The process that opened the connection, if it is known for certain."""


MAX_PRIORITY = 100


def check_priority(priority: int) -> None:
    """Raise RequestError for a priority that does not exist."""
    if abs(priority) > MAX_PRIORITY:
        raise RequestError(
            f"a priority of {priority} does not exist", hint=f"give -{MAX_PRIORITY} to {MAX_PRIORITY}"
        )


@dataclass(frozen=True, slots=True)
class Request:
    """Hold a request, checked on its own; ``placement`` decides whether a node can grant it.

    Per GPU: the memory is ``memory_bytes`` or else ``memory_permille`` of what the chosen GPU can lease;
    ``compute_permille`` None follows the memory. If a ``max_...`` is set, the figure of that name without
    ``max_`` is the least that will do, and free capacity is given up to the maximum (``elastic``). ``gpus``
    pins the request to exactly these GPUs (a stopped container whose settings already name them).
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
    """The container is started again at most this many times after faults that other leases caused."""
    gpus: tuple[GpuId, ...] = ()
    models: tuple[str, ...] = ()
    """The GPU models that will do; empty for all."""
    host_cpu_milli: int | None = None
    host_memory_bytes: int | None = None
    """The container may take this much of the host (docker's ``--cpus`` and ``--memory``); None means that
    the request names no limit."""
    near: tuple[str, ...] = ()
    """The lease is to be on the host of these leases."""
    away_from: tuple[str, ...] = ()
    """The lease is not to be on the GPUs of these leases."""
    project: str = ""
    """The project whose quota the lease counts against; empty for the project that its owner is in."""
    priority: int = 0
    """Higher goes first among the requests of the same project."""
    begin_at: float | None = None
    """The lease is not to start before this time (epoch seconds)."""
    after: tuple[str, ...] = ()
    """These leases must be over before the lease may start, however they end."""
    requeue: bool | None = None
    """True if the container is started again after it gave way; None: if nobody is attached to it."""
    notice_signal: str = ""
    """The container gets this signal when it is notified of its end, such as ``SIGUSR1``; empty for none."""
    notify: tuple[str, ...] = ()
    """These targets are told what happens to the lease: ``mail``, or URLs."""
    max_gpu_count: int | None = None
    """Only requests for whole GPUs have this."""
    max_compute_permille: int | None = None
    max_memory_bytes: int | None = None
    max_memory_permille: int | None = None
    compute_limit_permille: int | None = None
    """The processes may use this much if other leases leave it free; ``compute_permille`` is booked."""

    @property
    def wants_whole_gpus(self) -> bool:
        """Return True if no other lease may be on the granted parts: whole GPUs, or whole MIG instances."""
        return self.isolation in {Isolation.EXCLUSIVE, Isolation.MIG}
