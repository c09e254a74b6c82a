"""Count the changes of a daemon's answers, and wake the tasks that wait for a change."""

from __future__ import annotations

import asyncio
import secrets

from gpushared.daemon.tasks import within

RUN_ID_BYTES = 3


class Revisions:
    """Count changes of the state, and samples. Two answers with one revision are of one state and one sample.

    States and samples count apart, because a machine takes samples several times a second, and people want to
    see a lease's change at once and a temperature's soon.
    """

    def __init__(self) -> None:
        self.states = 0
        self.samples = 0
        # A daemon that starts again counts from the beginning.
        self._run_id = secrets.token_hex(RUN_ID_BYTES)
        self._changed = asyncio.Event()

    def __str__(self) -> str:
        return f"{self._run_id}.{self.states}.{self.samples}"

    def state_changed(self) -> None:
        self.states += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def sampled(self) -> None:
        self.samples += 1

    async def changed(self, timeout_seconds: float) -> bool:
        """Wait for the next change of the state; return False if the time is over first."""
        return await within(self._changed, timeout_seconds)
