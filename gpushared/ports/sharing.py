"""Declare the ports that share GPUs among containers and bound users."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import Lease, LeaseId
from gpushared.ports.engine import Edits, EngineFacts


@dataclass(frozen=True, slots=True)
class ServerFault:
    """Report a fatal fault of an MPS server: all its clients fail, and it takes no new ones until they go.

    ``clients`` are the host PIDs on the server; ``culprit`` is the one that its log names, if any.
    """

    server: int
    clients: tuple[int, ...]
    culprit: int | None = None


@dataclass(frozen=True, slots=True)
class SharingStatus:
    """Describe how one GPU is shared: ``mode`` is ``mps`` or ``none``; ``trouble`` is a sentence or None."""

    gpu: GpuId
    mode: str
    trouble: str | None = None
    pids: tuple[int, ...] = ()
    """These are host PIDs of our own servers, whose GPU memory belongs to no lease."""
    clients: tuple[int, ...] = ()
    """These are host PIDs of the servers' clients, as the last look found them."""
    clients_at: float | None = None
    """That look began at this time (``time.monotonic``); None if some clients are unknown."""
    faults: tuple[ServerFault, ...] = ()
    """These servers are in a fault now."""


class Sharing(Protocol):
    """Make leases real on GPUs. Raises ``SharingUnavailable``, ``TimedOut``."""

    async def open(self, lease: Lease, gpus: Mapping[GpuId, Gpu], engine: EngineFacts | None = None) -> Edits:
        """Prepare all that the lease's grants need; a repetition is harmless and restores lost parts.

        ``engine`` is None before the engine has answered for the first time.
        """
        ...

    async def close_lease(self, lease: LeaseId, device_name: str) -> None:
        """Remove the lease's parts; unknown leases are no error."""
        ...

    def holds(self, lease: Lease) -> bool:
        """Return True if the lease has settings that only its running container can be given."""
        ...

    async def hold(self, lease: Lease, cgroup: str) -> None:
        """Give the container these settings: its cgroup exists now, at this path in the tree of cgroup v2.

        The path begins at the top of the tree.
        """
        ...

    async def detach_clients(self, lease: Lease, pids: Collection[int]) -> int:
        """Take a lease's processes (host PIDs) off their MPS servers, so that their end harms nobody else.

        Return how many were clients; other processes are no error. The call returns when the servers have let
        the clients go. Within a few seconds it raises an error instead, which is no reason to let the
        processes live on.
        """
        ...

    async def tell(self, lease: Lease) -> None:
        """Write the lease's notice where its container can read it, or remove it if there is none."""
        ...

    async def sweep(self, live: Collection[str]) -> None:
        """Remove the leftovers of earlier runs; ``live`` are device names that leases or containers use."""
        ...

    async def status(self) -> tuple[SharingStatus, ...]: ...

    async def look_soon(self, gpu: GpuId) -> None:
        """Make ``status`` read this GPU's processes again, without waiting for that."""
        ...

    async def close(self, *, keep_running: bool) -> None:
        """End the adapter. ``keep_running`` leaves alone the parts that running containers still use."""
        ...


class Checkpoints(Protocol):
    """Move processes' GPU memory to the host's and back. Raises ``SharingUnavailable``, ``TimedOut``."""

    with_mps: bool
    """This is True if the moves work for clients of MPS too."""
    needs_host_memory: bool
    """This is True if saved memory takes the host's memory."""

    async def trouble(self) -> str:
        """Return why checkpoints do not work on this machine; empty if they do."""
        ...

    async def save(self, pids: Collection[int]) -> None:
        """Save all of these processes (host PIDs), or none; processes without a GPU are no error."""
        ...

    async def restore(self, pids: Collection[int]) -> None:
        """Let the saved processes among these continue where they were."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class UserBounds:
    """Bound a user; 0 is no limit.

    Memory includes swap, and files in ``/dev/shm`` and other memory file systems.
    """

    memory_bytes: int = 0
    cpus: float = 0.0
    pids: int = 0

    def __bool__(self) -> bool:
        return bool(self.memory_bytes or self.cpus or self.pids)


@dataclass(frozen=True, slots=True)
class UserUse:
    """Hold a user's use. Memory that the kernel can take back at once, such as read files, is left out."""

    memory_bytes: int = 0
    pids: int = 0


class UserWalls(Protocol):
    """Keep one cgroup for each user, in which the engine puts the user's containers."""

    def parent_of(self, uid: int, engine: EngineFacts) -> str:
        """Return Docker's ``CgroupParent`` for the user, without a call to the system."""
        ...

    async def hold(self, uid: int, limits: UserBounds, engine: EngineFacts) -> None:
        """Make sure that the user's cgroup exists, with these limits.

        Raises ``LimitReached`` if the user's containers have more already and the kernel keeps the old limit,
        and ``SharingUnavailable`` if there is no such wall.
        """
        ...

    async def join_files(self, uid: int, engine: EngineFacts) -> Sequence[Path]:
        """Return the files by which a process of ours joins the user's cgroup, or none without a cgroup.

        Never raises.
        """
        ...

    async def use(self, uid: int, engine: EngineFacts) -> UserUse:
        """Return the use of the user's containers; nothing if there is no such cgroup. Never raises."""
        ...
