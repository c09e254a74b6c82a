"""A fake lease service: grants what is asked, records the gate's calls, fails where a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gpushared.domain.leases.stop_order import AskedEnd
from gpushared.domain.model.errors import GpushareError, NotFound
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import ComputeCap, ContainerId, Grant, LeaseId, MemoryWall, Walls
from gpushared.domain.model.request import Caller
from gpushared.domain.model.request_spec import RequestSpec
from gpushared.gate.containers.lease_port import Claim
from gpushared.ports import DeviceMechanism, EditMount, Edits, EngineFacts

GPU = GpuId("GPU-00000000-1111-2222-3333-444444444444")
WALLS = Walls(MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)


def facts(
    *, lease_devices: bool = False, gpu_mechanism: DeviceMechanism = DeviceMechanism.PLAIN
) -> EngineFacts:
    return EngineFacts("20.10.24", "1.41", lease_devices, gpu_mechanism, 1)


def edits(*mounts: EditMount, **env: str) -> Edits:
    given = {"NVIDIA_VISIBLE_DEVICES": GPU, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25", **env}
    return Edits(
        (GPU,), WALLS, env=given, env_defaults={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.25"}, mounts=mounts
    )


@dataclass
class FakeLeaseService:
    """Grant without a node: nothing is placed, journalled or enforced."""

    facts: EngineFacts = field(default_factory=facts)
    edits: Edits = field(default_factory=edits)
    owners: dict[str, int] = field(default_factory=lambda: {"l-mine": 0})
    calls: list[tuple[object, ...]] = field(default_factory=list)
    refuse: dict[str, GpushareError] = field(default_factory=dict)
    has_capacity: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    left_queue: asyncio.Event = field(default_factory=asyncio.Event)
    stays: dict[str, bool] = field(default_factory=dict)
    words: str | None = None
    gangs: set[str] = field(default_factory=set)
    """Leases and containers of jobs on several nodes."""

    def __post_init__(self) -> None:
        self.has_capacity.set()

    def engine_facts(self) -> EngineFacts:
        return self.facts

    async def gpu_count(self) -> int:
        return 4

    async def claim(self, lease: LeaseId, caller: Caller) -> Claim:
        self._record("claim", lease, caller.uid)
        if self.owners.get(lease) != caller.uid:
            raise NotFound(f"there is no lease {lease}", hint="`gpushare ps` lists yours")
        return self._claim(lease)

    def in_gang(self, lease: LeaseId, caller: Caller) -> bool:
        return lease in self.gangs and self.owners.get(lease) == caller.uid

    def has_gang(self, container: ContainerId) -> bool:
        return container in self.gangs

    async def unclaim(self, lease: LeaseId) -> None:
        self._record("unclaim", lease)

    async def acquire(self, gpu_request: RequestSpec, caller: Caller, name: str, image: str) -> Claim:
        self._record("acquire", gpu_request, caller.uid)
        self.waiting.set()
        try:
            await self.has_capacity.wait()
        except asyncio.CancelledError:
            self._record("left the queue", gpu_request)
            self.left_queue.set()
            raise
        return self._claim(LeaseId("l-asked"))

    async def release(self, lease: LeaseId) -> None:
        self._record("release", lease)

    async def created(
        self, lease: LeaseId, container: ContainerId, name: str, image: str, *, stays: bool
    ) -> None:
        self.stays[lease] = stays
        if lease in self.gangs:
            self.gangs.add(container)
        self._record("created", lease, name, image)

    async def before_start(self, container: ContainerId, caller: Caller) -> None:
        self._record("before_start", caller.uid)

    async def start_failed(self, container: ContainerId) -> None:
        self._record("start_failed")

    async def before_restart(self, container: ContainerId, caller: Caller) -> None:
        self._record("before_restart", caller.uid)

    async def after_restart(self, container: ContainerId) -> None:
        self._record("after_restart")

    def before_unpause(self, container: ContainerId) -> None:
        self._record("before_unpause")

    @asynccontextmanager
    async def ending(self, container: ContainerId, asked: AskedEnd) -> AsyncGenerator[None, None]:
        self._record("ending", asked)
        yield
        self._record("ended")

    def last_words(self, container: str) -> Callable[[], str] | None:
        del container
        return None if self.words is None else lambda: self.words or ""

    async def lease_env(self, container: ContainerId) -> Mapping[str, str]:
        return self.edits.env

    def _claim(self, lease: LeaseId) -> Claim:
        return Claim(lease, str(lease), self.edits, (Grant(GPU, 1 << 30, 250),))

    def _record(self, call: str, *more: object) -> None:
        self.calls.append((call, *more))
        if call in self.refuse:
            raise self.refuse[call]

    @property
    def call_names(self) -> list[object]:
        """Return the calls' names, without those around ends, which a test's own tidying brings."""
        return [call[0] for call in self.calls if call not in self.end_calls]

    @property
    def end_calls(self) -> list[tuple[object, ...]]:
        """Return the calls around ends."""
        return [call for call in self.calls if call[0] in {"ending", "ended"}]
