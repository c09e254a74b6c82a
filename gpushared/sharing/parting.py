"""Take processes off their MPS servers.

The end of a client that has work under way is undefined for its server, and so for all other clients there. A
client that was terminated through the control daemon first may be killed; its own CUDA calls fail from then
on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Protocol

from gpushared.domain.model.errors import SharingUnavailable
from gpushared.sharing.servers import QueriedDaemon

_LOOK_AGAIN_SECONDS = 0.05
_LET_GO_SECONDS = 1.0
"""A client may still be listed so long; no document says that a terminated client leaves the list."""
_GONE = "not found"


class ClientLister(QueriedDaemon, Protocol):
    """Describe a control daemon whose servers list their clients."""

    async def clients(self, server: int) -> tuple[int, ...] | None: ...


async def part(control: ClientLister, pids: Collection[int]) -> int:
    """Terminate the clients among these processes (host PIDs), and see them go.

    Returns how many there were. Raises ``SharingUnavailable`` if the daemon refuses, ``TimedOut`` if it does
    not answer.
    """
    parted = 0
    for server in await control.servers():
        there = await _clients_among(control, server, pids)
        for pid in there:
            await _terminate(control, server, pid)
        parted += len(there)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LET_GO_SECONDS):
                while there and await _clients_among(control, server, there):  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(_LOOK_AGAIN_SECONDS)
    return parted


async def _clients_among(control: ClientLister, server: int, pids: Collection[int]) -> list[int]:
    return sorted(set(await control.clients(server) or ()) & set(pids))


async def _terminate(control: ClientLister, server: int, pid: int) -> None:
    """Terminate one client; a process that has ended meanwhile is no client any more, which is as good."""
    answer = [line.strip() for line in await control.ask(f"terminate_client {server} {pid}")]
    refused = next((line for line in answer if line and not line.isdecimal() and _GONE not in line), None)
    if refused is not None:
        raise SharingUnavailable(f"the MPS control daemon did not let process {pid} go: {refused}")
