"""Detach MPS clients at a container's end, and find processes that use a GPU outside of MPS."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from gpushared.domain.leases.events import ClientsParted
from gpushared.domain.leases.stop_order import (
    AskedEnd,
    ClientStopOrder,
    at_once,
    ending_of,
    lead_seconds,
    order_of,
)
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import ComputeCap, ContainerId, Lease, LeaseId, MemoryWall
from gpushared.engine.processes import members, read_process
from gpushared.node.runtime.loop import Loop
from gpushared.ports import Engine, GpuProcess, Sharing, SharingStatus

log = logging.getLogger(__name__)

AT_ONCE_SECONDS = 0.5
"""A container that has to end at once, such as one that took too much memory, waits no longer for its MPS
servers.

A container can keep the control daemon of its servers from answering.
"""
_HELD_BY_MPS = (MemoryWall.MPS_CLIENT, MemoryWall.MPS_SERVER)


class MpsDetach:
    """Detach the MPS clients of containers that are being ended; a failure here never stops an end."""

    def __init__(self, loop: Loop, sharing: Sharing, engine: Engine) -> None:
        self._loop = loop
        self._sharing = sharing
        self._engine = engine

    @asynccontextmanager
    async def around(self, container: ContainerId, end: AskedEnd) -> AsyncGenerator[None, None]:
        """Detach a container's clients around the block that ends it; without a lease on MPS do nothing."""
        lease = self._loop.state.of_container(container)
        order, lead = ClientStopOrder.NOT_AT_ALL, 0.0
        if lease is not None and held_by_mps(lease):
            order, lead = await self._order(container, end)
        if lease is None or order is ClientStopOrder.NOT_AT_ALL:
            yield
            return
        if order is ClientStopOrder.CLIENTS_FIRST:
            await self._detach(lease, container, AT_ONCE_SECONDS if at_once(end) else None)
            yield
            return
        timer = asyncio.create_task(self._detach_after(lead, lease, container))
        try:
            yield
        finally:
            timer.cancel()
            with suppress(asyncio.CancelledError):
                await timer

    async def _order(self, container: ContainerId, end: AskedEnd) -> tuple[ClientStopOrder, float]:
        """Return the order of the end, and the seconds to wait if the clients come last."""
        if at_once(end):
            return ClientStopOrder.CLIENTS_FIRST, 0.0
        try:
            facts = await self._engine.inspect(container)
        except GpushareError as error:
            log.debug("inspect before an end: %s", error)
            facts = None
        stop_signal, stop_seconds = ("", 0) if facts is None else (facts.stop_signal, facts.stop_seconds)
        ending = ending_of(end, stop_signal, stop_seconds)
        main = await asyncio.to_thread(read_process, facts.pid) if facts is not None and facts.pid else None
        grace = ending.grace_seconds or 0.0
        return order_of(ending, main), grace - lead_seconds(grace)

    async def _detach_after(self, seconds: float, lease: Lease, container: ContainerId) -> None:
        await asyncio.sleep(seconds)
        await self._detach(lease, container)

    async def _detach(self, lease: Lease, container: ContainerId, seconds: float | None = None) -> None:
        """Detach the clients of a lease; ``seconds`` is a limit below the sharing's own patience."""
        clients, trouble = 0, ""
        try:
            async with asyncio.timeout(seconds):
                if pids := await asyncio.to_thread(members, container):
                    clients = await self._sharing.detach_clients(lease, pids)
        except TimeoutError:
            trouble = f"MPS did not let go of its clients in {seconds:g} s"
        except GpushareError as error:
            trouble = str(error)
        if trouble:
            log.warning("clients not detached lease=%s why=%s", lease.id, trouble)
        if clients or trouble:
            with suppress(GpushareError):  # the end matters more than its line in the story
                await self._loop.send(ClientsParted(lease.id, clients, trouble))


@dataclass(frozen=True, slots=True)
class Sighting:
    """Record a process of a lease on a GPU."""

    gpu: GpuId
    lease: LeaseId
    process: GpuProcess


@dataclass(frozen=True, slots=True)
class MpsEscapees:
    """Hold the findings about processes outside of MPS.

    ``outside`` has a process (host PID) for each lease that left MPS; ``undecided`` has the GPUs to query.
    """

    outside: Mapping[LeaseId, tuple[GpuId, int]] = field(default_factory=dict)
    undecided: frozenset[GpuId] = frozenset()


class _ProcessRecord:
    """Hold the facts about a process on a GPU since it was first seen there."""

    def __init__(self, seen_at: float) -> None:
        """Take ``seen_at``, a time of ``time.monotonic``."""
        self._seen_at = seen_at
        self._was_client = False
        self._outside = False

    def judge(self, process: GpuProcess, status: SharingStatus | None) -> bool | None:
        """Return True if the process uses the GPU outside MPS, None if that is unknown: worth a query."""
        named = status is not None and process.pid in status.clients
        self._was_client = self._was_client or named or process.mps_client is True
        if self._was_client or process.mps_client is None:
            self._outside = False
            return False
        asked_at = None if status is None else status.clients_at
        # A control daemon that does not answer any more does not change the finding.
        self._outside = self._outside or (asked_at is not None and asked_at > self._seen_at)
        return self._outside or None


def held_by_mps(lease: Lease) -> bool:
    """Return True if the lease's processes must be clients of MPS so that its walls hold."""
    walls = lease.walls
    return walls is not None and (
        walls.memory_wall in _HELD_BY_MPS or walls.compute_cap is ComputeCap.MPS_PERCENTAGE
    )


class MpsEscapeDetector:
    """Remember the processes of the last samples, and find the processes outside of MPS that MPS should hold.

    A program without the right pipe directory silently becomes an ordinary CUDA program (NVIDIA's MPS
    documentation). A wrong finding would end a user's work, so two witnesses are needed: the driver lists the
    process and not as an MPS client, and the control daemons, queried after the process was first seen, do
    not name it either. A witness that does not answer counts for nothing, and a process that was once a
    client has not left MPS.
    """

    def __init__(self) -> None:
        self._records: dict[tuple[GpuId, LeaseId, int], _ProcessRecord] = {}

    def judge(
        self,
        sightings: Iterable[Sighting],
        readable: Collection[GpuId],
        status: Mapping[GpuId, SharingStatus],
    ) -> MpsEscapees:
        """Judge the processes in a sample that was taken just now, of the leases that MPS must hold.

        ``readable`` holds the GPUs that answered; on other GPUs it is unknown which processes are gone.
        """
        now = time.monotonic()
        records = {key: record for key, record in self._records.items() if key[0] not in readable}
        outside: dict[LeaseId, tuple[GpuId, int]] = {}
        undecided = set()
        for sighting in sorted(sightings, key=lambda sighting: (sighting.gpu, sighting.process.pid)):
            key = (sighting.gpu, sighting.lease, sighting.process.pid)
            record = records[key] = self._records.get(key) or _ProcessRecord(now)
            is_outside = record.judge(sighting.process, status.get(sighting.gpu))
            if is_outside:
                outside.setdefault(sighting.lease, (sighting.gpu, sighting.process.pid))
            elif is_outside is None:
                undecided.add(sighting.gpu)
        self._records = records
        return MpsEscapees(outside, frozenset(undecided))
