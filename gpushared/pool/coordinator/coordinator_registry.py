"""Know the coordinators of a pool: those that run now, and those whose addresses nodes received before."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import NoReturn

from gpushared.api.v1 import pool_pb2
from gpushared.domain.model.errors import GpushareError, NotFound, StateConflict
from gpushared.domain.model.units import shown
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.jobs.job_search import Write
from gpushared.ports.job_store import SharedStore

log = logging.getLogger(__name__)

COORDINATOR = "coordinator/"
"""A record below this prefix keeps the addresses of a coordinator that once ran."""
LOOK_SECONDS = 10.0


class CoordinatorRegistry:
    """Announce this coordinator, and list all. The leader keeps their addresses for nodes."""

    def __init__(self, store: SharedStore, own: Callable[[], pool_pb2.PoolCoordinator]) -> None:
        self._store = store
        self._own = own
        self._coordinators: dict[str, pool_pb2.PoolCoordinator] = {}
        self._read_at = -LOOK_SECONDS

    async def announce(self) -> None:
        """Show this coordinator to the others, and know their addresses. Raises the store's errors."""
        own, now = self._own(), asyncio.get_running_loop().time()
        await self._store.announce(own.name, _written(own))
        if now - self._read_at >= LOOK_SECONDS:  # a new leader sends them to nodes at once
            self._coordinators, self._read_at = await self._recorded(), now

    def addresses(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return all users' addresses and, in the same order, all nodes' addresses."""
        coordinators = (self._coordinators[name] for name in sorted(self._coordinators))
        complete = [each for each in coordinators if each.address and each.node_address]
        return [each.address for each in complete], [each.node_address for each in complete]

    async def all(self) -> list[pool_pb2.PoolCoordinator]:
        """Return all coordinators by their names, with what each does now. Raises the store's errors."""
        leader = await self._store.leader()
        coordinators = await self._recorded()
        for name, facts in (await self._store.announced()).items():
            coordinators[name] = _read(name, facts, runs=True)
        for coordinator in coordinators.values():
            coordinator.leads = coordinator.runs and coordinator.name == leader.name
        return [coordinators[name] for name in sorted(coordinators)]

    async def keep(self, loop: PoolLoop) -> NoReturn:
        """Keep the addresses of coordinators that appear, as long as this one leads."""
        while True:
            try:
                await self.announce()
                running = await self._store.announced()
                news = {name: facts for name, facts in running.items() if self._is_news(name, facts)}
                if news:
                    await loop.write({COORDINATOR + name: facts for name, facts in news.items()})
                    self._coordinators |= {name: _read(name, facts) for name, facts in news.items()}
            except GpushareError as error:
                log.info("the coordinators' addresses are not kept now: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def forget(self, name: str, write: Write) -> None:
        """Take a retired coordinator out of the list; nodes take over the list when they next connect.

        Raises NotFound, StateConflict for a coordinator that runs, and the store's errors.
        """
        if name not in await self._recorded():
            raise NotFound(
                f"there is no coordinator {shown(name)}", hint="`gpushare pool status` names all coordinators"
            )
        if name in await self._store.announced():
            raise StateConflict(
                f"coordinator {name} runs", hint="stop it there first: systemctl disable --now gpushared-pool"
            )
        await write({}, (COORDINATOR + name,))
        self._coordinators.pop(name, None)

    def _is_news(self, name: str, facts: bytes) -> bool:
        before, news = self._coordinators.get(name), _read(name, facts)
        return before is None or (before.address, before.node_address) != (news.address, news.node_address)

    async def _recorded(self) -> dict[str, pool_pb2.PoolCoordinator]:
        records = (await self._store.load(COORDINATOR)).records
        names = {key.removeprefix(COORDINATOR): record.value for key, record in records.items()}
        return {name: _read(name, facts) for name, facts in names.items()}


def _written(coordinator: pool_pb2.PoolCoordinator) -> bytes:
    return json.dumps(
        {
            "address": coordinator.address,
            "node_address": coordinator.node_address,
            "version": coordinator.version,
            "started_at": coordinator.started_at,
        }
    ).encode()


def _read(name: str, facts: bytes, *, runs: bool = False) -> pool_pb2.PoolCoordinator:
    """Read the facts of a coordinator. If they cannot be read, return its name alone."""
    try:
        fields = json.loads(facts)
        return pool_pb2.PoolCoordinator(
            name=name,
            address=str(fields["address"]),
            node_address=str(fields["node_address"]),
            version=str(fields["version"]),
            started_at=float(fields["started_at"]),
            runs=runs,
        )
    except (ValueError, KeyError, TypeError) as error:
        log.warning("the record of coordinator %s cannot be read: %s", name, error)
        return pool_pb2.PoolCoordinator(name=name, runs=runs)
