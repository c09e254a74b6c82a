"""How many containers a user may have: counted by the engine, and those that are being created besides."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpushared.domain.errors import LimitReached
from gpushared.domain.request import Caller
from gpushared.gate.containers import own_containers
from gpushared.gate.engine import EngineSocket
from gpushared.gate.policy.site import Policy


class Room:
    """One for all creates."""

    def __init__(self, engine: EngineSocket) -> None:
        self._engine = engine
        self._under_way: Counter[int] = Counter()

    @asynccontextmanager
    async def for_one_more(self, caller: Caller, policy: Policy) -> AsyncIterator[None]:
        """Around a create, from before it is judged by its number. Raises ``LimitReached``."""
        self._under_way[caller.uid] += 1
        try:
            await self.check(caller, policy, self._under_way[caller.uid])
            yield
        finally:
            self._under_way[caller.uid] -= 1
            if not self._under_way[caller.uid]:
                del self._under_way[caller.uid]

    async def check(self, caller: Caller, policy: Policy, more: int = 1) -> None:
        """Raise ``LimitReached`` where the caller may not have so many more."""
        limit = policy.containers_per_user
        if limit and len(await own_containers(self._engine, caller)) + more > limit:
            raise LimitReached(
                f"you have the {limit} containers that a user may have here, stopped ones too",
                hint="docker container prune removes those that are stopped",
            )
