"""Limit a user's containers and ports: the listed containers count, and the creates under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpushared.domain.model.errors import LimitReached
from gpushared.domain.model.request import Caller
from gpushared.gate.api.published_ports import counted
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.containers.ownership import own_containers
from gpushared.net.http_client import EngineSocket


class CreatesUnderWay:
    """Count the creates under way; all creates share one object."""

    def __init__(self, engine: EngineSocket) -> None:
        self._engine = engine
        self._under_way: Counter[int] = Counter()
        self._ports: Counter[int] = Counter()
        """The ports of each user's creates under way."""

    @asynccontextmanager
    async def for_one_more(self, caller: Caller, policy: SitePolicy, ports: int = 0) -> AsyncIterator[None]:
        """Count a create and check the limits, then keep it counted while the block runs.

        Raises ``LimitReached``.
        """
        self._under_way[caller.uid] += 1
        self._ports[caller.uid] += ports
        try:
            more = self._ports[caller.uid] if ports else 0
            await self.check(caller, policy, self._under_way[caller.uid], more)
            yield
        finally:
            self._ports[caller.uid] -= ports
            self._under_way[caller.uid] -= 1
            if not self._under_way[caller.uid]:
                del self._under_way[caller.uid], self._ports[caller.uid]

    async def check(self, caller: Caller, policy: SitePolicy, more: int = 1, ports: int = 0) -> None:
        """Raise ``LimitReached`` if the caller may not have so many more containers, or ports."""
        limit, most = policy.containers_per_user, policy.ports_per_user if ports else 0
        if most and ports > most:
            raise _too_many_ports(ports, most)
        if not limit and not most:
            return
        own = await own_containers(self._engine, caller)
        if limit and len(own) + more > limit:
            raise LimitReached(
                f"you have the {limit} containers that a user may have here, stopped ones too",
                hint="docker container prune removes those that are stopped",
            )
        if most and (had := sum(counted(each.get("Labels") or {}) for each in own)) + ports > most:
            raise _too_many_ports(had + ports, most)


def _too_many_ports(wanted: int, most: int) -> LimitReached:
    return LimitReached(
        f"your containers would publish {wanted} ports, and a user may publish {most} here",
        hint="publish those that are needed, by -p; stopped containers' count until they are removed",
    )
