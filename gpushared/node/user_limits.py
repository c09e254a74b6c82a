"""Keep users' common limits in force in the kernel: from the start, when the engine answers, at a reload."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from gpushared.ports import EngineFacts, UserBounds
from gpushared.sharing.user_cgroups import UserCgroups

USERS_NAME = "users.json"


class UserLimits:
    """``bounds``: what is in force. ``facts``: None before the engine has answered."""

    def __init__(
        self,
        name: str,
        state_dir: Path,
        bounds: Callable[[], UserBounds],
        facts: Callable[[], EngineFacts | None],
    ) -> None:
        self.cgroups = UserCgroups(name, state_dir / USERS_NAME)
        self._bounds = bounds
        self._facts = facts
        self._due = asyncio.Event()

    @property
    def trouble(self) -> str:
        return self.cgroups.trouble

    async def restore(self) -> None:
        """Set the limits at the daemon's start, before the engine starts containers by itself."""
        await self.cgroups.restore(self._bounds())

    def changed(self) -> None:
        """Set the limits again because the engine answers (again), or the bounds changed."""
        self._due.set()

    async def run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            if (facts := self._facts()) is not None:
                await self.cgroups.reached(self._bounds(), facts)
