"""Tell how a coordinator stands by: who leads, how old its answers are, and when that changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from gpushared.domain.model.errors import NotLeader

MAX_HOLD_SECONDS = 20.0


class Standby:
    """Hold what a coordinator that does not lead tells its callers."""

    def __init__(self, name: str, age_seconds: Callable[[], float]) -> None:
        """Take the coordinator's name, and the function that returns how old its view of the store is."""
        self.name = name
        self.leader = ""
        """The name of the coordinator that leads; empty if none does."""
        self.age_seconds = age_seconds
        self._changed = asyncio.Event()
        self._over = False

    def led_by(self, leader: str) -> None:
        if leader != self.leader:
            self.leader = leader
            self._wake()

    def end(self) -> None:
        """Let the callers that wait go on: this coordinator leads now."""
        self._over = True
        self._wake()

    def refusal(self) -> NotLeader:
        if self.leader:
            return NotLeader(
                f"the coordinator {self.name} stands by, and {self.leader} leads",
                hint="name all coordinators of the pool: HOST:PORT,HOST:PORT,HOST:PORT",
            )
        return NotLeader(
            f"no coordinator of the pool leads now, and {self.name} stands by", hint="try again in a moment"
        )

    def notice(self) -> str:
        """Return the sentence for readers of an answer."""
        leads = f"{self.leader} leads" if self.leader else "no coordinator leads now"
        return (
            f"the coordinator {self.name} stands by ({leads}); this is as it was "
            f"{self.age_seconds():.1f} s ago, and nodes are not heard here"
        )

    async def until_leading(self, seconds: float) -> None:
        """Wait until this coordinator leads. Raises NotLeader when another one does, or the time is over."""
        before = self.leader
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, MAX_HOLD_SECONDS)):
                while not self._over and self.leader in {before, ""}:
                    await self._changed.wait()
                    before = before if self.leader else ""  # one that has ended may lead again
        if not self._over:
            raise self.refusal()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
