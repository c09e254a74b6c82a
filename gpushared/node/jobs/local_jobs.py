"""Coordinate the node's own jobs: the only member is the node itself, reached by a call and not a stream.

The rules are a pool's, with a store of their own beside the journal. Every order is answered from the node's
journal, so that killing the daemon at any point loses no job and starts none twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from gpushared.daemon.process import no_collection
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.coordinator_events import AttemptReported, NodeRegistered, PoolInstruction, Send
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import HERE, AttemptState, Ending, EndKind
from gpushared.domain.jobs.member import HeartbeatReport, Inventory
from gpushared.domain.jobs.protocol import CancelPart, Order, Report, StaleEpoch
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.lease import AttemptKey
from gpushared.jobs.coordinator_loop import PoolLoop, send_until_taken
from gpushared.jobs.job_search import Archive
from gpushared.jobs.mailbox import Mailbox
from gpushared.jobs.restore import restored
from gpushared.node.jobs.order_handler import OrderHandler
from gpushared.ports import Clock
from gpushared.ports.job_store import JobStore

log = logging.getLogger(__name__)

OWN = ""
"""The coordinator's name in orders of the node's own jobs."""
MAX_WAITING = 1 << 16
"""This many subjects may wait for the node or for the job store; a subject that finds no room is sent again
later."""
WORKERS = 8
PRUNE_SECONDS = 3600.0
KEPT_SECONDS = 30 * 24 * 3600.0
"""A finished job is remembered this long."""
MAX_KEPT = 100_000
"""Remember at most this many finished jobs."""

_Work = Callable[[], Awaitable[None]]


class LocalJobs:
    """Own the loop of the node's own jobs. No job is known before ``running``."""

    def __init__(
        self, store: JobStore, rules: PoolRules, order_handler: OrderHandler, clock: Clock, troubles: Troubles
    ) -> None:
        self.archive = Archive(store)
        self._store = store
        self._rules = rules
        self._order_handler = order_handler
        self._clock = clock
        self._troubles = troubles
        self._loop: PoolLoop | None = None
        self._mailbox: Mailbox[_Work] = Mailbox(MAX_WAITING)

    @property
    def loop(self) -> PoolLoop:
        assert self._loop is not None, "only while running"
        return self._loop

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load the jobs from the store, and run the loop as long as the block runs.

        Raises ConfigError, StoreUnavailable, TimedOut, Deposed.
        """
        epoch = await self._store.lead()
        with no_collection():
            now, ahead = self._clock.now(), self._clock.ahead()
            state = await restored(self._store, self._rules, epoch=epoch, now=now, ahead_seconds=ahead)
        log.info("jobs loaded waiting_or_running=%d over=%d", len(state.jobs), len(state.ended))
        loop = self._loop = PoolLoop(state, self._store, self._clock, self._troubles)
        loop.subscribe(self._perform)
        loop.on_new_epoch(self._queue_registration)
        async with loop.running():
            stop_listening = self._order_handler.subscribe(OWN, self._report)
            self._queue_registration()
            tasks = [asyncio.create_task(self._work_off()) for _ in range(WORKERS)]
            tasks += [asyncio.create_task(self._prune()), asyncio.create_task(loop.ended())]
            for task in tasks:
                task.add_done_callback(self._ended)
            try:
                yield
            finally:
                stop_listening()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report a task's end as a trouble: no task ends by itself.

        Leases and their containers go on without it.
        """
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the job store is in trouble", exc_info=error)
            self._troubles.raised("jobs", f"jobs are not looked after any more: {error}; restart gpushared")

    # --- between node and job store ------------------------------------------------------------------------

    def _perform(self, instruction: PoolInstruction) -> None:
        if isinstance(instruction, Send):
            order = instruction.order
            self._put((type(order), order.key), lambda: self._order(order))

    def _report(self, key: AttemptKey) -> None:
        self._put((AttemptReported, key), lambda: self._report_attempt(key))

    def _queue_registration(self) -> None:
        """Register with all that the node knows, as at the beginning of a stream."""
        self._put((NodeRegistered,), self._register)

    def _put(self, subject: object, work: _Work) -> None:
        if not self._mailbox.put(subject, lambda: work):
            log.warning("%d orders and reports of jobs wait already", MAX_WAITING)

    async def _work_off(self) -> None:
        while True:
            work = await self._mailbox.take()
            await work()

    async def _order(self, order: Order) -> None:
        """Give an order to the node; if no answer comes, the rules themselves give the order again."""
        try:
            report = await self._order_handler.take(order, OWN)
        except GpushareError as error:
            log.info("order for attempt %s not taken: %s", order.key, error)
            return
        await self._send_report(report)

    async def _report_attempt(self, key: AttemptKey) -> None:
        report = self._order_handler.report(OWN, key)
        if report is not None:
            await self._send_report(report)

    async def _register(self) -> None:
        """Send all reports in one event, or each by itself if one of them cannot be kept."""
        contact, reports = self._order_handler.newest_contact(OWN), self._order_handler.reports(OWN)
        registration = NodeRegistered(
            HERE, Inventory(()), HeartbeatReport(), reports, contact.epoch, contact.revision
        )
        try:
            await send_until_taken(self.loop.send, registration, "this node")
        except GpushareError as error:
            log.warning("the job store does not take all that the node says: %s", error)
            await send_until_taken(self.loop.send, replace(registration, reports=()), "this node")
            for report in reports:
                await self._send_report(report)

    async def _send_report(self, report: Report | StaleEpoch) -> None:
        try:
            await send_until_taken(self.loop.send, AttemptReported(HERE, report), "this node")
        except GpushareError as error:
            log.warning("attempt=%s cannot be kept: %s", report.key, error)
            if isinstance(report, Report):
                await self._give_up(report, error)

    async def _give_up(self, report: Report, why: GpushareError) -> None:
        """End the attempt, and report why: otherwise its job would never change again."""
        if not report.state.is_final:
            grace = self._rules.stop_grace_seconds
            with contextlib.suppress(GpushareError):  # whatever this order does, the attempt's job is over
                await self._order_handler.take(
                    CancelPart(report.key, self.loop.epoch, grace, "the job store"), OWN
                )
        reason = f"what became of it cannot be written down: {why.message}"
        ending = Ending(EndKind.FAILED, reason, hint=why.hint)
        over = Report(report.key, AttemptState.ENDED, report.revision, ending=ending)
        try:
            await send_until_taken(self.loop.send, AttemptReported(HERE, over), "this node")
        except GpushareError as error:
            self._troubles.raised("jobs", f"job {report.key.job} cannot be ended: {error}")

    async def _prune(self) -> None:
        while True:
            with contextlib.suppress(GpushareError):  # the store's trouble is shown by the loop
                now = self._clock.now()
                await self.archive.prune(self._write, keep=MAX_KEPT, ended_before=now - KEPT_SECONDS, now=now)
            await asyncio.sleep(PRUNE_SECONDS)

    async def _write(self, puts: dict[str, bytes], deletes: tuple[str, ...]) -> int:
        return await self.loop.write(puts, deletes)
