"""Takes containers off their GPUs and brings them back: checkpoint and freeze, thaw and restore."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from gpushared.domain import messages as m
from gpushared.domain.errors import GpushareError
from gpushared.domain.lease import ContainerId, LeaseId
from gpushared.engine.signals import members
from gpushared.node.loop import Loop
from gpushared.ports import Checkpoints, Engine

log = logging.getLogger(__name__)


class Suspender:
    """Tells the core how it went, whichever way; a daemon that dies in between is asked again."""

    def __init__(self, loop: Loop, engine: Engine, checkpoints: Checkpoints) -> None:
        self._loop = loop
        self._engine = engine
        self._checkpoints = checkpoints

    async def suspend(self, lease: LeaseId, container: ContainerId) -> None:
        """The checkpoint comes before the freeze: the driver's own thread in each process does the work."""
        try:
            pids = await self._save(container)
        except GpushareError as error:
            await self._loop.send(m.SuspendFailed(lease, error.message))
            return
        try:
            await self._engine.freeze(container)
        except GpushareError as error:
            with suppress(GpushareError):
                await self._checkpoints.restore(pids)
            await self._loop.send(m.SuspendFailed(lease, error.message))
            return
        await self._loop.send(m.ContainerSuspended(lease))

    async def _save(self, container: ContainerId) -> frozenset[int]:
        """Once more where processes came meanwhile: they would keep GPU memory."""
        saved: frozenset[int] = frozenset()
        while new := await asyncio.to_thread(members, container) - saved:
            try:
                await self._checkpoints.save(new)
            except GpushareError:
                with suppress(GpushareError):
                    await self._checkpoints.restore(saved)
                raise
            saved |= new
        return saved

    async def resume(self, lease: LeaseId, container: ContainerId) -> None:
        try:
            await self._engine.thaw(container)
            await self._restore(container)
        except GpushareError as error:
            await self._loop.send(m.ResumeFailed(lease, error.message))
            return
        await self._loop.send(m.ContainerResumed(lease))

    async def _restore(self, container: ContainerId) -> None:
        pids = await asyncio.to_thread(members, container)
        try:
            await self._checkpoints.restore(pids)
        except GpushareError:
            # Its processes would wait for the GPU at their next call; frozen they cost nothing.
            with suppress(GpushareError):
                await self._engine.freeze(container)
            raise
