"""Keep notifications until their receivers have them, and deliver each at least once.

A notification is written right after the step that it reports. Each receiver has its own task, which delivers
one notification after the other, so that a slow or absent receiver delays no other. Deliveries to receivers
that users named for their runs are bounded at a time, in all and for each user.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from gpushared.config.notify import NotifyConfig
from gpushared.daemon.tasks import TaskSet, within
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.backoff import backoff_seconds
from gpushared.domain.model.errors import ConfigError, GpushareError, OutboxUnavailable, TimedOut
from gpushared.domain.model.notification import Notification
from gpushared.notify import sendmail, user_command, webhook
from gpushared.notify.attempt import Attempt, Delivered, GivenUp, TryAgain
from gpushared.notify.payload import Origin, for_receiver, payload_of, to_text
from gpushared.notify.targets import Routes, Target, Way, read_target
from gpushared.ports import Clock
from gpushared.storage.notification_file import (
    Delivery,
    DroppedByTarget,
    NewEvent,
    OutboxContents,
    SqliteNotifications,
)

log = logging.getLogger(__name__)

PART = "notifications"
MAX_BUFFERED = 2000
"""Let this many notifications wait in memory while the file cannot be written; further ones are lost."""
BATCH = 200
DELIVERIES_AT_ONCE = 16
DELIVERIES_AT_ONCE_OF_A_USER = 2
PRUNE_SECONDS = 60.0
RECENT_SECONDS = 86400.0
"""After a restart, send no event that is older than this."""


@dataclass(frozen=True, slots=True)
class DeliveryTiming:
    """Hold the seconds to wait after failed attempts, and before the file is tried again."""

    first_seconds: float = 2.0
    longest_seconds: float = 600.0
    file_seconds: float = 5.0


class NotificationOutbox:
    """Take notifications by ``add``, write them and deliver them by ``run`` as long as the daemon runs."""

    def __init__(
        self,
        file: SqliteNotifications,
        troubles: Troubles,
        routes: Callable[[], Routes],
        clock: Clock,
        origin: Origin,
        timing: DeliveryTiming | None = None,
    ) -> None:
        self._file = file
        self._troubles = troubles
        self._routes = routes
        self._clock = clock
        self._origin = origin
        self._timing = timing or DeliveryTiming()
        self._buffer: deque[NewEvent] = deque()
        self._configured_since: dict[str, float] = {}
        """Map each configured target to the time since when it is configured."""
        self._wake = asyncio.Event()
        self.opened = asyncio.Event()
        """This event is set once the file has been read."""
        self._tasks = TaskSet("the delivery of notifications failed")
        self._delivery_tasks: dict[str, asyncio.Task[None]] = {}
        self._at_once = asyncio.Semaphore(DELIVERIES_AT_ONCE)
        self._of_users: dict[str, asyncio.Semaphore] = {}
        self._failures: dict[str, str] = {}
        self._lost: dict[str, int] = {}
        self._file_trouble = ""
        self._configuration_problems: list[str] = []
        self.live: Callable[[], Collection[str]] = list
        """Return the subjects whose events must stay known, because they are not over."""
        self.joining: Callable[[int], Awaitable[Iterable[str]]] = _no_cgroups
        """Return the files by which a command joins its user's cgroups, empty without such cgroups."""

    async def open(self) -> OutboxContents:
        """Return what the file remembers, once it can be read. A trouble says why it cannot."""
        while True:
            try:
                now = self._clock.now()
                await self._file.keep_targets(self._routes().configured, now)
                contents = await self._file.contents(now)
            except (OutboxUnavailable, TimedOut, ConfigError) as error:
                self._file_failed(error)
                await asyncio.sleep(self._timing.file_seconds)
                continue
            self._file_works()
            self._configured_since = dict(contents.targets)
            for target in contents.waiting:
                self._start_deliveries(target)
            self._wake.set()
            self.opened.set()
            return contents

    def add(self, events: Iterable[Notification], *, late: bool = False) -> None:
        """Take events. With ``late`` they happened before a restart, and targets configured since do not get them."""
        routes = self._routes()
        for event in events:
            targets = [
                target
                for target in routes.targets_of(event)
                if not late or self._was_configured_at(target, event.at)
            ]
            if not targets:
                continue
            body = to_text(payload_of(event, self._origin))
            names = tuple(dict.fromkeys(map(str, targets)))
            if len(self._buffer) >= MAX_BUFFERED:
                self._count_lost(dict.fromkeys(names, 1))
                continue
            self._buffer.append(NewEvent(event.subject, event.kind, event.occasion, body, event.owner, names))
            self._wake.set()

    def _was_configured_at(self, target: Target, at: float) -> bool:
        return target.is_of_run or self._configured_since.get(target.configured, self._clock.now()) <= at

    def reload(self) -> None:
        """Follow a changed configuration."""
        now = self._clock.now()
        configured = self._routes().configured
        hosts = {read_target(name).shown for name in configured if name.count(" ") > 1}
        for by_target in (self._failures, self._lost):
            for name in by_target.keys() - hosts:
                del by_target[name]
        self._report_troubles()
        self._configured_since = {name: self._configured_since.get(name, now) for name in configured}
        self._tasks.start(self._keep_targets(configured, now))
        self._check_configuration()

    async def _keep_targets(self, names: Collection[str], now: float) -> None:
        try:
            await self._file.keep_targets(names, now)
        except (OutboxUnavailable, TimedOut, ConfigError) as error:
            log.info("targets of notifications are not written yet: %s", error)

    async def run(self) -> None:
        """Write added notifications at once, and every ``PRUNE_SECONDS`` forget old ones."""
        prune_at = 0.0
        while True:
            await within(self._wake, PRUNE_SECONDS)
            self._wake.clear()
            try:
                await self._flush()
                if self._file_trouble or time.monotonic() >= prune_at:
                    prune_at = time.monotonic() + PRUNE_SECONDS
                    await self._prune()
            except (OutboxUnavailable, TimedOut, ConfigError) as error:
                self._file_failed(error)
                await asyncio.sleep(self._timing.file_seconds)
                self._wake.set()

    async def close(self) -> None:
        """Write what still waits in memory; deliveries go on after the next start."""
        with contextlib.suppress(OutboxUnavailable, TimedOut, ConfigError):
            await self._flush()
        await self._tasks.cancel()
        await self._file.close()

    # --- the file --------------------------------------------------------------------------------------

    async def _flush(self) -> None:
        while self._buffer:
            batch = list(self._buffer)[:BATCH]
            most = self._routes().site.max_waiting
            self._count_lost(await self._file.add(batch, self._clock.now(), most))
            for _ in batch:
                self._buffer.popleft()
            for target in {name for event in batch for name in event.targets}:
                self._start_deliveries(target)

    async def _prune(self) -> None:
        self._check_configuration()
        now = self._clock.now()
        oldest = now - self._routes().site.keep_seconds
        self._count_lost(await self._file.prune(now, oldest, frozenset(self.live())))
        self._file_works()

    def _file_failed(self, error: GpushareError) -> None:
        self._file_trouble = f"{error}; {len(self._buffer)} notifications wait"
        self._report_troubles()

    def _file_works(self) -> None:
        if self._file_trouble:
            self._file_trouble = ""
            self._report_troubles()

    # --- delivery --------------------------------------------------------------------------------------

    def _start_deliveries(self, name: str) -> None:
        """Start the task of a target, unless it runs."""
        task = self._delivery_tasks.get(name)
        if task is None or task.done():
            self._delivery_tasks[name] = self._tasks.start(self._deliver_all(name))

    async def _deliver_all(self, name: str) -> None:
        """Deliver what waits for a target, one after the other."""
        target, failures = read_target(name), 0
        while True:
            try:
                delivery = await self._file.next_of(name)
                if delivery is None:
                    del self._delivery_tasks[name]  # before any wait: a later notification needs a new task
                    return
                attempt = await self._attempted(target, delivery)
            except (OutboxUnavailable, TimedOut, ConfigError) as error:
                await self._wait_for_file(error)
                continue
            failures = failures + 1 if isinstance(attempt, TryAgain) else 0
            await self._write_result(target, delivery, attempt)
            timing = self._timing
            await asyncio.sleep(
                backoff_seconds(failures, first=timing.first_seconds, longest=timing.longest_seconds)
            )

    async def _attempted(self, target: Target, delivery: Delivery) -> Attempt:
        if not self._routes().is_wanted(target):
            return GivenUp("it is not a target any more")
        async with self._turn(target):
            return await self._attempt(target, delivery)

    async def _attempt(self, target: Target, delivery: Delivery) -> Attempt:
        routes = self._routes()
        fields = for_receiver(delivery.body, is_owner=target.is_owner)
        match target.way:
            case Way.WEBHOOK:
                at = int(self._origin.day(self._clock.now()))
                secret = routes.secret_file(target)
                return await webhook.post(target.address, to_text(fields), fields["id"], at, secret)
            case Way.MAIL:
                program = sendmail.find_sendmail(routes.site.sendmail)
                if program is None:
                    return TryAgain("there is no program sendmail")
                mail = sendmail.message_of(fields, target.address, routes.site.mail_from)
                return await sendmail.send(program, mail, target.address)
            case Way.COMMAND:
                assert isinstance(routes.site, NotifyConfig), "only nodes run commands"
                seconds = float(routes.site.command_seconds)
                uid, text = int(target.address), to_text(fields)
                cgroups = await self.joining(uid)
                return await user_command.run(routes.command, uid, text, seconds=seconds, cgroups=cgroups)

    async def _write_result(self, target: Target, delivery: Delivery, attempt: Attempt) -> None:
        """Write the result, however long the file takes: what was delivered is not delivered again."""
        match attempt:
            case TryAgain(why):
                self._note_failure(target, why)
                write = self._file.failed
            case GivenUp(why):
                self._note_failure(target, f"{why}; the notification is dropped")
                write = self._file.remove
            case Delivered():
                self._note_success(target)
                write = self._file.remove
            case unreachable:
                assert_never(unreachable)
        while True:
            try:
                await write(delivery.number)
            except (OutboxUnavailable, TimedOut, ConfigError) as error:
                await self._wait_for_file(error)
            else:
                return

    async def _wait_for_file(self, error: GpushareError) -> None:
        self._file_failed(error)
        self._wake.set()  # ``run`` finds out when the file works again
        await asyncio.sleep(self._timing.file_seconds)

    @asynccontextmanager
    async def _turn(self, target: Target) -> AsyncIterator[None]:
        """Wait for a turn. The receivers of the site and of projects are few, and need no turn."""
        if not target.is_owner:
            yield
            return
        user = target.address if target.way is Way.COMMAND else target.scope
        own = self._of_users.setdefault(user, asyncio.Semaphore(DELIVERIES_AT_ONCE_OF_A_USER))
        async with own, self._at_once:
            yield

    # --- troubles --------------------------------------------------------------------------------------

    def _note_success(self, target: Target) -> None:
        had = self._failures.pop(target.shown, None), self._lost.pop(target.shown, None)
        if self._configuration_problems:
            self._check_configuration()
        if had != (None, None):
            self._report_troubles()

    def _note_failure(self, target: Target, why: str) -> None:
        """Log a failed delivery. If the target is a configured one, show the failure as a trouble too."""
        log.info("notification target=%s failed: %s", target.shown, why)
        if not target.is_owner and self._routes().is_wanted(target):
            self._failures[target.shown] = why
            self._report_troubles()

    def _count_lost(self, dropped: DroppedByTarget) -> None:
        for name, count in dropped.items():
            target = read_target(name)
            log.warning("notifications dropped target=%s count=%d", target.shown, count)
            if not target.is_owner:
                self._lost[target.shown] = self._lost.get(target.shown, 0) + count
        if dropped:
            self._report_troubles()

    def _check_configuration(self) -> None:
        """Find configured targets that this machine cannot reach, before an event needs them."""
        routes, problems = self._routes(), []
        mailed = any(f" {Way.MAIL} " in name for name in routes.configured)
        if mailed and sendmail.find_sendmail(routes.site.sendmail) is None:
            problems.append("mail is configured, and there is no program sendmail")
        for path in sorted(routes.secret_files):
            try:
                webhook.read_key(Path(path))
            except ConfigError as error:
                problems.append(f"webhooks cannot be signed: {error.message}")
        if problems != self._configuration_problems:
            self._configuration_problems = problems
            self._report_troubles()

    def _report_troubles(self) -> None:
        texts = [*self._configuration_problems, *([self._file_trouble] if self._file_trouble else [])]
        for shown in sorted({*self._failures, *self._lost}):
            lost = self._lost.get(shown, 0)
            parts = [self._failures[shown]] if shown in self._failures else []
            parts += [f"{lost} notifications were dropped"] if lost else []
            texts.append(f"notifications to {shown}: {', and '.join(parts)}")
        if texts:
            self._troubles.raised(PART, "; ".join(texts))
        else:
            self._troubles.cleared(PART)


async def _no_cgroups(_: int) -> Iterable[str]:
    return ()
