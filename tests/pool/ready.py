"""Daemons of a pool that run as tasks of a test: the test waits until one serves."""

from __future__ import annotations

import asyncio

from gpushared.daemon.systemd import Notifier


class ReadyNotifier(Notifier):
    """Set ``is_ready`` once the daemon reports that it serves."""

    def __init__(self) -> None:
        super().__init__("")
        self.is_ready = asyncio.Event()

    def ready(self, status: str) -> None:
        self.is_ready.set()


async def until_ready(running: asyncio.Task[None], notifier: ReadyNotifier, seconds: float = 60.0) -> None:
    """Wait until the daemon serves; raise its error if the daemon ended before."""
    ready = asyncio.create_task(notifier.is_ready.wait())
    done, _ = await asyncio.wait({running, ready}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    if running in done:
        running.result()
    assert ready in done, "the daemon does not serve"
