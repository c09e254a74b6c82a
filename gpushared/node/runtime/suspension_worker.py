"""Take containers off their GPUs and bring them back: checkpoint and freeze, thaw and restore."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import psutil

from gpushared.domain.leases import events as m
from gpushared.domain.leases.surroundings import lack_of_memory
from gpushared.domain.model.errors import GpushareError, SharingUnavailable
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import ContainerId, LeaseId
from gpushared.domain.model.units import format_memory
from gpushared.engine.processes import members
from gpushared.node.runtime.container_reconciler import event_of
from gpushared.node.runtime.loop import Loop
from gpushared.ports import Checkpoints, ContainerStatus, Engine

log = logging.getLogger(__name__)

USABLE_PART = 0.8
"""Saved GPU memory may take this part of the host's free memory; the rest is for other programs."""


class Suspender:
    """Move containers off their GPUs and back, and report each move's result to the core.

    After a restart the core asks again. One call at a time for each container.
    """

    def __init__(
        self,
        loop: Loop,
        engine: Engine,
        checkpoints: Checkpoints,
        free_bytes: Callable[[GpuId], int | None],
    ) -> None:
        """Take ``free_bytes``, which returns the unused memory of a GPU now, None if it is unknown."""
        self._loop = loop
        self._engine = engine
        self._checkpoints = checkpoints
        self._free_bytes = free_bytes

    async def suspend(self, lease: LeaseId, container: ContainerId) -> None:
        """Save the container's GPU memory, then freeze the container.

        The checkpoint comes before the freeze, because the driver's own thread in each process does the work.
        Raises the errors of an engine that is away, as ``resume`` does.
        """
        if trouble := await self._lack_of_memory(lease, container):
            await self._loop.send(m.SuspendFailed(lease, trouble, lasting=False))
            return
        try:
            self._check_host_memory(lease)
            pids = await self._save(container)
        except GpushareError as error:
            await self._loop.send(m.SuspendFailed(lease, error.message))
            return
        try:
            await self._engine.freeze(container)
        except GpushareError as error:
            with suppress(GpushareError):
                await self._checkpoints.restore(pids)
            lasting = await self._answers(container)
            await self._loop.send(m.SuspendFailed(lease, error.message, lasting=lasting))
            return
        await self._loop.send(m.ContainerSuspended(lease))

    async def freeze_again(self, lease: LeaseId, container: ContainerId) -> None:
        """Save what a thawed container's new processes put on GPUs, then freeze the container.

        Processes that are saved already cannot use a GPU. Raises the errors of an engine that is away; the
        core asks again at the next sight of the container.
        """
        facts = await self._engine.inspect(container)
        if facts is None or facts.status is not ContainerStatus.RUNNING:
            return
        try:
            await self._save(container, undo=False)
            await self._engine.freeze(container)
        except GpushareError as error:
            if not await self._answers(container):
                raise
            await self._loop.send(m.SuspendFailed(lease, error.message))

    async def _lack_of_memory(self, lease_id: LeaseId, container: ContainerId) -> str:
        """Return why the container's own limit leaves no room for its GPU memory, else an empty text.

        The core gets the container's newest facts first.
        """
        facts = await self._engine.inspect(container)
        if facts is not None:
            await self._loop.send(event_of(facts))
        lease = self._loop.state.leases.get(lease_id)
        return "" if lease is None else lack_of_memory(lease, self._loop.state)

    def _check_host_memory(self, lease: LeaseId) -> None:
        """Raise SharingUnavailable if the host has too little free memory.

        A container that does not fit would be ended for want of memory, and others with it.
        """
        used = sum(self._loop.state.use.used_bytes.get(lease, {}).values())
        free = psutil.virtual_memory().available
        if used > free * USABLE_PART and self._checkpoints.needs_host_memory:
            raise SharingUnavailable(
                f"it uses {format_memory(used)} on its GPUs, and the host has {format_memory(free)} free"
            )

    async def _save(self, container: ContainerId, *, undo: bool = True) -> frozenset[int]:
        """Save all processes, also those that began during the save, which would keep GPU memory.

        ``undo``: after a failure, restore those that were saved; not where the GPUs are leased to others.
        """
        saved: frozenset[int] = frozenset()
        while new := await asyncio.to_thread(members, container) - saved:
            try:
                await self._checkpoints.save(new)
            except GpushareError:
                if undo:
                    with suppress(GpushareError):
                        await self._checkpoints.restore(saved)
                raise
            saved |= new
        return saved

    async def resume(self, lease: LeaseId, container: ContainerId) -> None:
        """Thaw the container and restore its GPU memory.

        Raises the errors of an engine that is away. The core gets no report of these, and asks again.
        """
        if trouble := self._lack_of_gpu_memory(lease):
            await self._loop.send(m.ResumeFailed(lease, trouble))
            return
        try:
            await self._engine.thaw(container)
            await self._restore(container)
        except GpushareError as error:
            if not await self._answers(container):
                raise
            await self._loop.send(m.ResumeFailed(lease, error.message))
            return
        await self._loop.send(m.ContainerResumed(lease))

    def _lack_of_gpu_memory(self, lease_id: LeaseId) -> str:
        """Return which GPU lacks the memory that the lease holds there, else an empty text.

        Other leases may use more than they hold. The driver (580.159 on an H200) answers such a restore with
        CUDA_ERROR_OUT_OF_MEMORY, every later one with CUDA_ERROR_OPERATING_SYSTEM, and the process hangs.
        """
        lease = self._loop.state.leases.get(lease_id)
        for grant in lease.grants if lease is not None else ():
            free = self._free_bytes(grant.gpu)
            if free is not None and free < grant.memory_bytes:
                index = self._loop.state.gpus[grant.gpu].index
                needed = format_memory(grant.memory_bytes)
                return f"GPU {index} has {format_memory(max(0, free))} of memory free, and it holds {needed} there"
        return ""

    async def _answers(self, container: ContainerId) -> bool:
        """Return True if the engine answers at all; if not, its error proves nothing about the container."""
        try:
            await self._engine.inspect(container)
        except GpushareError:
            return False
        return True

    async def _restore(self, container: ContainerId) -> None:
        pids = await asyncio.to_thread(members, container)
        try:
            await self._checkpoints.restore(pids)
        except GpushareError:
            # The container's processes would wait for the GPU at their next call; frozen they cost nothing.
            with suppress(GpushareError):
                await self._engine.freeze(container)
            raise
