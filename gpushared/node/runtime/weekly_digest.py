"""Send the digest of each week once it is over: of the machine, and of the projects that want one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from gpushared.domain.accounting.digest import Week, digest
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.notification import Notification, NotificationKind
from gpushared.node.runtime.loop import Loop
from gpushared.notify.outbox import NotificationOutbox
from gpushared.notify.targets import Routes
from gpushared.storage.history import SqliteHistory
from gpushared.storage.history.records import HistoryFilter

log = logging.getLogger(__name__)

LOOK_SECONDS = 300.0
DAYS = 7


class WeeklyDigest:
    """Add the digests to the outbox, which knows those that were sent before a restart."""

    def __init__(
        self,
        loop: Loop,
        outbox: NotificationOutbox,
        history: SqliteHistory,
        routes: Callable[[], Routes],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        """Take ``flush``, which writes what the history does not have yet."""
        self._loop = loop
        self._outbox = outbox
        self._history = history
        self._routes = routes
        self._flush = flush
        self._sent: set[tuple[str, datetime]] = set()

    async def run(self) -> None:
        await self._outbox.opened.wait()
        while True:
            try:
                await self.send_due()
            except GpushareError as error:
                log.info("the digest of the week waits: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def send_due(self) -> None:
        """Send the digests of the last week that were not sent yet."""
        state = self._loop.state
        end = week_of(state.day(self._loop.now()))
        names = [name for name in self._routes().digests if (name, end) not in self._sent]
        if names:
            await self._flush()
        for name in names:
            begin = end - timedelta(days=DAYS)
            query = HistoryFilter(_ms(begin), _ms(end), project=name)
            accounts, waits = await self._history.accounts(query), await self._history.waits(query)
            week = Week(f"{begin:%Y-%m-%d}", f"{end:%Y-%m-%d}")
            text, *lines = await asyncio.to_thread(digest, name, week, accounts, waits)
            event = Notification(
                NotificationKind.DIGEST,
                f"digest {name}",
                f"{begin:%Y-%m-%d}",
                end.timestamp() - state.ahead_seconds,
                text,
                project=name,
                lines=tuple(lines),
            )
            self._outbox.add([event], late=True)
            self._sent.add((name, end))


def week_of(day: float) -> datetime:
    """Return the begin of the week of a moment, by the machine's own calendar."""
    at = datetime.fromtimestamp(day)  # noqa: DTZ006 - people's weeks are local
    monday = at.date() - timedelta(days=at.weekday())
    return datetime(monday.year, monday.month, monday.day)  # noqa: DTZ001


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
