"""Fake the sharing of GPUs, and checkpoints, by taking notes only."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import (
    ComputeCap,
    Lease,
    LeaseId,
    MemoryWall,
    Notice,
    Walls,
)
from gpushared.ports import Edits, EngineFacts, SharingStatus
from gpushared.testing.fake_clock import Failing

WHOLE = Walls(MemoryWall.WHOLE_GPU, ComputeCap.WHOLE_GPU)
LIMITED = Walls(MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)


class FakeSharing(Failing):
    """Hand out plausible edits and remember the leases that got them: a fake ``Sharing``.

    ``opened`` holds the edits of leases that are open now; ``history`` every call in order, as ``("open", id,
    device name)`` and ``("close", id, device name)``. GPUs named in ``troubles`` show that trouble in
    ``status``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.opened: dict[LeaseId, Edits] = {}
        self.history: list[tuple[str, LeaseId, str]] = []
        self.troubles: dict[GpuId, str] = {}
        self.engine: EngineFacts | None = None
        """The engine's facts when a lease was opened last."""
        self.holding = False
        """True if running containers have settings to get."""
        self.held: dict[LeaseId, str] = {}
        """The cgroups of leases whose containers run."""
        self.clients: dict[GpuId, tuple[int, ...]] = {}
        """The MPS clients on a GPU, known as of now; GPUs that are not here do not tell."""
        self.looks: list[GpuId] = []
        """The GPUs that were to be looked at soon, call by call."""
        self.notices: dict[LeaseId, Notice | None] = {}
        """The notices of the end that the leases' containers can read."""
        self.parted: list[frozenset[int]] = []
        """The processes taken off their servers, call by call."""
        self.swept: frozenset[str] | None = None
        """None until swept, then the device names that were live."""
        self.closed_keeping: bool | None = None
        """None until closed, then the value of ``keep_running``."""
        self._shared: dict[LeaseId, frozenset[GpuId]] = {}
        self._opened_gpus: set[GpuId] = set()

    async def open(self, lease: Lease, gpus: Mapping[GpuId, Gpu], engine: EngineFacts | None = None) -> Edits:
        self._may_fail()
        self.engine = engine
        ids = tuple(grant.gpu for grant in lease.grants)
        whole = lease.request.wants_whole_gpus
        edits = Edits(
            gpus=ids,
            walls=WHOLE if whole else LIMITED,
            env={"GPUSHARE_LEASE": lease.id, "NVIDIA_VISIBLE_DEVICES": ",".join(ids)},
        )
        self.opened[lease.id] = edits
        self._shared[lease.id] = frozenset() if whole else frozenset(ids)
        self._opened_gpus |= gpus.keys()
        self.history.append(("open", lease.id, lease.device_name))
        return edits

    async def close_lease(self, lease: LeaseId, device_name: str) -> None:
        self._may_fail()
        self.opened.pop(lease, None)
        self._shared.pop(lease, None)
        self.history.append(("close", lease, device_name))

    def holds(self, lease: Lease) -> bool:
        return self.holding and lease.id in self.opened

    async def hold(self, lease: Lease, cgroup: str) -> None:
        self._may_fail()
        self.held[lease.id] = cgroup

    async def detach_clients(self, lease: Lease, pids: Collection[int]) -> int:
        self._may_fail()
        del lease
        self.parted.append(frozenset(pids))
        return len({pid for clients in self.clients.values() for pid in clients} & set(pids))

    async def tell(self, lease: Lease) -> None:
        self._may_fail()
        self.notices[lease.id] = lease.notice

    async def sweep(self, live: Collection[str]) -> None:
        self._may_fail()
        self.swept = frozenset(live)

    async def status(self) -> tuple[SharingStatus, ...]:
        self._may_fail()
        shared = frozenset[GpuId]().union(*self._shared.values())
        return tuple(
            SharingStatus(
                gpu,
                "mps" if gpu in shared else "none",
                self.troubles.get(gpu),
                clients=self.clients.get(gpu, ()),
                clients_at=time.monotonic() if gpu in self.clients else None,
            )
            for gpu in sorted(self._opened_gpus | self.troubles.keys())
        )

    async def look_soon(self, gpu: GpuId) -> None:
        self.looks.append(gpu)

    async def close(self, *, keep_running: bool) -> None:
        self.closed_keeping = keep_running


class FakeCheckpoints(Failing):
    """Remember which processes are off their GPUs: a fake ``Checkpoints``."""

    with_mps = True
    needs_host_memory = False

    def __init__(self, trouble: str = "") -> None:
        super().__init__()
        self._trouble = trouble
        self.saved: set[int] = set()

    async def trouble(self) -> str:
        return self._trouble

    async def save(self, pids: Collection[int]) -> None:
        self._may_fail()
        self.saved |= set(pids)

    async def restore(self, pids: Collection[int]) -> None:
        self._may_fail()
        self.saved -= set(pids)

    async def close(self) -> None:
        """Do nothing, since nothing is open."""
