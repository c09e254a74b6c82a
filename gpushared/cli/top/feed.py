"""Ask the daemon again and again in a thread, so that no key waits for an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gpushared.cli.top.answers import Scope, UseByMinute, ask
from gpushared.cli.top.view import News
from gpushared.client import Client
from gpushared.domain.model.backoff import backoff_seconds
from gpushared.domain.model.errors import GpushareError
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from gpushared.api.v1.history_messages import RecentUse

RECENT_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 15.0
POOL_HAS_NO_HOUR = "the last hour is shown for one machine: gpushare top without --pool"


class Feed:
    """Keep the newest answers. ``tell`` is called in the thread, after each change of ``news``."""

    def __init__(
        self, client: Client, scope: Scope, interval_seconds: float, tell: Callable[[], None]
    ) -> None:
        self.news = News()
        self.wants_hour = False
        """Set while the hour is on the screen: it is asked for again each minute."""
        self._client = client
        self._scope = scope
        self._interval_seconds = interval_seconds
        self._tell = tell
        self._uses = UseByMinute()
        self._recent: RecentUse | None = None
        self._recent_trouble = POOL_HAS_NO_HOUR if scope.pool else ""
        self._recent_at: float | None = None
        self._wake = threading.Event()
        self._failures = 0

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name="feed").start()

    def refresh(self) -> None:
        """Ask now."""
        self._wake.set()

    def once(self) -> News:
        """Ask for all there is. Raises the errors of ``Client``."""
        answers = ask(self._client, self._scope, time.time())
        self._ask_recent()
        self._uses.take(answers)
        return News(answers._replace(trends=self._uses.trends(answers.at)))

    def _run(self) -> None:
        while True:
            self._ask()
            self._wake.wait(self._pause_seconds())
            self._wake.clear()

    def _pause_seconds(self) -> float:
        pause = backoff_seconds(self._failures, first=self._interval_seconds, longest=LONGEST_PAUSE_SECONDS)
        return max(self._interval_seconds, pause)

    def _ask(self) -> None:
        try:
            answers = ask(self._client, self._scope, time.time())
        except GpushareError as error:
            self._failures += 1
            self.news = self.news._replace(trouble=error.message)
            self._tell()
            return
        self._failures = 0
        self._uses.take(answers)
        self._publish(answers.at, News(answers))
        if self._ask_recent():
            self._publish(answers.at, self.news)

    def _publish(self, now: float, news: News) -> None:
        assert news.answers is not None, "there is something to publish"
        self.news = News(
            news.answers._replace(
                trends=self._uses.trends(now), recent=self._recent, recent_trouble=self._recent_trouble
            )
        )
        self._tell()

    def _ask_recent(self) -> bool:
        """Ask for the last hour if that is due, and return True if it was."""
        is_due = self._recent_at is None or (
            self.wants_hour and time.monotonic() - self._recent_at >= RECENT_SECONDS
        )
        if self._scope.pool or not is_due:
            return False
        self._recent_at = time.monotonic()
        try:
            self._recent = self._client.recent(since=time.time() - 70 * 60)
            self._recent_trouble = ""
        except GpushareError as error:
            self._recent_trouble = error.message
            return True
        self._uses.take_history(self._recent)
        return True
