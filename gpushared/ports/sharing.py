"""How GPUs are shared among containers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpushared.domain.gpu import Gpu, GpuId
from gpushared.domain.lease import Lease, LeaseId
from gpushared.ports.edits import Edits
from gpushared.ports.engine import EngineFacts


@dataclass(frozen=True, slots=True)
class ServerFault:
    """An MPS server met a fatal fault: all its clients fail, and it takes no new ones until they are gone.

    ``clients``: host PIDs that were on it; ``culprit`` the one that its log names, if any.
    """

    server: int
    clients: tuple[int, ...]
    culprit: int | None = None


@dataclass(frozen=True, slots=True)
class SharingStatus:
    """How one GPU is shared now: ``mode`` is ``mps`` or ``none``; ``trouble`` a sentence or None."""

    gpu: GpuId
    mode: str
    trouble: str | None = None
    pids: tuple[int, ...] = ()
    """Host PIDs of servers of ours, whose GPU memory is nobody's lease."""
    clients: tuple[int, ...] = ()
    """Host PIDs of their clients, as the last look found them."""
    clients_at: float | None = None
    """When that look began (``time.monotonic``); None where not all of them are known."""
    faults: tuple[ServerFault, ...] = ()
    """Servers that are in a fault now."""


class Sharing(Protocol):
    """Makes leases real on GPUs. Errors: ``SharingUnavailable``, ``TimedOut``."""

    async def open(self, lease: Lease, gpus: Mapping[GpuId, Gpu], engine: EngineFacts | None = None) -> Edits:
        """Make ready what the lease's grants need; doing it again is harmless and heals what was lost.

        ``engine`` is None before the engine has answered for the first time.
        """
        ...

    async def close_lease(self, lease: LeaseId, device_name: str) -> None:
        """Take it down again; unknown leases are no error."""
        ...

    def holds(self, lease: Lease) -> bool:
        """Whether there is anything that only the lease's running container can be given."""
        ...

    async def hold(self, lease: Lease, place: str) -> None:
        """Give it that: its own cgroup exists now, at this path from the top of the tree of cgroup v2."""
        ...

    async def part_clients(self, lease: Lease, pids: Collection[int]) -> int:
        """Take a lease's processes (host PIDs) off their MPS servers, so that their end harms nobody else.

        Returns how many were clients; others are no error. Comes back when the servers have let them go, or
        within a few seconds with an error: no reason to let the processes live on.
        """
        ...

    async def tell(self, lease: Lease) -> None:
        """Put the lease's notice where its container can read it, or take it away where there is none."""
        ...

    async def sweep(self, live: Collection[str]) -> None:
        """Remove what earlier lives left behind; ``live``: device names that leases or containers use."""
        ...

    async def status(self) -> tuple[SharingStatus, ...]: ...

    async def look_soon(self, gpu: GpuId) -> None:
        """Have ``status`` show anew who shares this GPU, without waiting for it."""
        ...

    async def close(self, *, keep_running: bool) -> None:
        """End the adapter. ``keep_running`` leaves alone what running containers still use."""
        ...


class Checkpoints(Protocol):
    """Moves GPU memory of processes to the host's and back. Errors: ``SharingUnavailable``, ``TimedOut``."""

    with_mps: bool
    """Whether that works for clients of MPS too."""
    needs_host_memory: bool
    """Whether what is saved takes the host's memory."""

    async def trouble(self) -> str:
        """Why it does not work on this machine; empty where it does."""
        ...

    async def save(self, pids: Collection[int]) -> None:
        """All of these processes (host PIDs), or none; those that use no GPU are no error."""
        ...

    async def restore(self, pids: Collection[int]) -> None:
        """Those among these that were saved go on where they were."""
        ...

    async def close(self) -> None: ...
