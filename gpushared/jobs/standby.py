"""Hold who leads while a coordinator stands by, and how old its answers are; wake callers when it leads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from gpushared.domain.model.errors import NotLeader

MAX_HOLD_SECONDS = 20.0
OLD_SECONDS = 15.0
"""After this time without an answer of etcd, the leader's lease may have ended unnoticed. While etcd answers, the
age stays below half of this."""


class Standby:
    """Make the answers of a coordinator that stands by, or that led and may lead no more."""

    def __init__(self, name: str, age_seconds: Callable[[], float], *, is_deposed: bool = False) -> None:
        """``age_seconds`` returns how old this coordinator's view of the store is.

        With ``is_deposed`` it has led, and another one may lead by now.
        """
        self.name = name
        self.is_deposed = is_deposed
        self.leader = ""
        """The name of the coordinator that leads; empty if none does."""
        self.epoch = 0
        """The epoch of the newest leader: one that was started anew has its old name, and a new epoch."""
        self.age_seconds = age_seconds
        self._changed = asyncio.Event()
        self._over = False

    def led_by(self, leader: str, epoch: int) -> None:
        if (leader, epoch) != (self.leader, self.epoch):
            self.leader, self.epoch = leader, epoch
            self._wake()

    def end(self) -> None:
        """Let the callers that wait go on: this coordinator leads now."""
        self._over = True
        self._wake()

    def refusal(self) -> NotLeader:
        if self.is_deposed:
            return NotLeader(
                f"the coordinator {self.name} does not know if it still leads: {self._silence()}",
                hint="try again in a moment",
            )
        if self.age_seconds() > OLD_SECONDS:
            return NotLeader(
                f"the coordinator {self.name} stands by, and does not know who leads: {self._silence()}",
                hint="ask another coordinator; `gpushare pool status` here shows which members of etcd answer",
            )
        if self.leader:
            return NotLeader(
                f"the coordinator {self.name} stands by, and {self.leader} leads",
                hint=f"ask {self.leader}; programs and nodes name all coordinators: HOST:PORT,HOST:PORT",
                leader=self.leader,
                epoch=self.epoch,
            )
        return NotLeader(
            f"no coordinator of the pool leads now, and {self.name} stands by", hint="try again in a moment"
        )

    def notice(self) -> str:
        """Return the sentence for readers of an answer."""
        if self.is_deposed:
            return f"the coordinator {self.name} may not lead any more: {self._silence()}"
        leads = f"{self.leader} leads" if self.leader else "no coordinator leads now"
        if self.age_seconds() > OLD_SECONDS:
            leads = "it does not know who leads"
        return (
            f"the coordinator {self.name} stands by ({leads}); this is as it was "
            f"{self.age_seconds():.1f} s ago, and nodes are not heard here"
        )

    def _silence(self) -> str:
        return f"etcd has not answered it for {self.age_seconds():.0f} s"

    async def until_leading(self, seconds: float, lost_epoch: int) -> None:
        """Wait until this coordinator leads, at most for ``seconds``.

        ``lost_epoch`` is the epoch of the leader that the caller does not reach. Raises NotLeader once another
        coordinator leads with a higher epoch, when the time is over, and at once for a deposed coordinator,
        because its process ends before it leads again.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, MAX_HOLD_SECONDS)):
                while not (self._over or self.is_deposed or (self.leader and self.epoch > lost_epoch)):
                    await self._changed.wait()
        if not self._over:
            raise self.refusal()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
