"""Take a container's MPS clients off their servers around its end, at the right moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

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
from gpushared.domain.model.lease import ContainerId, Lease
from gpushared.engine.processes import members, read_process
from gpushared.node.runtime.loop import Loop
from gpushared.node.runtime.mps_escapees import held_by_mps
from gpushared.ports import Engine, Sharing

log = logging.getLogger(__name__)

AT_ONCE_SECONDS = 0.5
"""A container that has to end at once, as one that took too much memory, waits no longer for its MPS servers.

A container can keep the control daemon of its servers from answering.
"""


class MpsDetach:
    """Detach the MPS clients of containers that are being ended; a failure here never stops an end."""

    def __init__(self, loop: Loop, sharing: Sharing, engine: Engine) -> None:
        self._loop = loop
        self._sharing = sharing
        self._engine = engine

    @asynccontextmanager
    async def around(self, container: ContainerId, asked: AskedEnd) -> AsyncGenerator[None, None]:
        """Detach a container's clients around the block that ends it; without a lease on MPS do nothing."""
        lease = self._loop.state.of_container(container)
        order, lead = ClientStopOrder.NOT_AT_ALL, 0.0
        if lease is not None and held_by_mps(lease):
            order, lead = await self._order(container, asked)
        if lease is None or order is ClientStopOrder.NOT_AT_ALL:
            yield
            return
        if order is ClientStopOrder.CLIENTS_FIRST:
            await self._part(lease, container, AT_ONCE_SECONDS if at_once(asked) else None)
            yield
            return
        timer = asyncio.create_task(self._part_after(lead, lease, container))
        try:
            yield
        finally:
            timer.cancel()
            with suppress(asyncio.CancelledError):
                await timer

    async def _order(self, container: ContainerId, asked: AskedEnd) -> tuple[ClientStopOrder, float]:
        """Return the order of the end, and the seconds to wait if the clients come last."""
        if at_once(asked):
            return ClientStopOrder.CLIENTS_FIRST, 0.0
        try:
            facts = await self._engine.inspect(container)
        except GpushareError as error:
            log.debug("inspect before an end: %s", error)
            facts = None
        stop_signal, stop_seconds = ("", 0) if facts is None else (facts.stop_signal, facts.stop_seconds)
        ending = ending_of(asked, stop_signal, stop_seconds)
        main = await asyncio.to_thread(read_process, facts.pid) if facts is not None and facts.pid else None
        grace = ending.grace_seconds or 0.0
        return order_of(ending, main), grace - lead_seconds(grace)

    async def _part_after(self, seconds: float, lease: Lease, container: ContainerId) -> None:
        await asyncio.sleep(seconds)
        await self._part(lease, container)

    async def _part(self, lease: Lease, container: ContainerId, seconds: float | None = None) -> None:
        """Detach the clients of a lease; ``seconds`` is a limit below the sharing's own patience."""
        clients, trouble = 0, ""
        try:
            async with asyncio.timeout(seconds):
                if pids := await asyncio.to_thread(members, container):
                    clients = await self._sharing.part_clients(lease, pids)
        except TimeoutError:
            trouble = f"MPS did not let go of its clients in {seconds:g} s"
        except GpushareError as error:
            trouble = str(error)
        if trouble:
            log.warning("clients not parted lease=%s why=%s", lease.id, trouble)
        if clients or trouble:
            with suppress(GpushareError):  # the story is not worth the end
                await self._loop.send(ClientsParted(lease.id, clients, trouble))
