"""Keep the answers that pages watch up to date: each is made once for all pages of one user.

An answer is made by the same function as the unary call's, for the same caller, so that a page sees what its
user may see. It is made when the state or the samples have changed, and no more often than its pace allows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gpushared.daemon.tasks import TaskSet
from gpushared.domain.model.errors import GpushareError, PermissionRefused, TimedOut
from gpushared.domain.model.request import Caller
from gpushared.net.revisions import Revisions
from gpushared.net.unary_json import JsonApi
from gpushared.storage.audit.line import Origin
from gpushared.web.answers import AnswerVersions
from gpushared.web.watches import CallWatch

ANSWER_SECONDS = 60.0
"""Calls that ask other machines have bounds of their own, which are shorter."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Bound how often an answer is made, by the seconds since it was last made.

    ``state_seconds`` counts for a change of the state, ``sample_seconds`` for a sample with other figures, and
    ``poll_seconds`` for neither; None means that the answer is not made for that. ``asks_others``: the call
    waits for other machines or for files, so that its user's other answers must not wait for it.
    """

    state_seconds: float | None = 0.5
    sample_seconds: float | None = 5.0
    poll_seconds: float | None = None
    asks_others: bool = False


LOCAL = Pace()
FRESH = Pace(poll_seconds=10.0)
"""Answers that show the age of their figures."""
POLLED = Pace(None, None, 10.0, asks_others=True)
PARTLY_LOCAL = Pace(2.0, None, 10.0, asks_others=True)
"""Answers that are about this machine or another one."""
AFTER_ERROR = Pace(5.0, None, 10.0, asks_others=True)
REFUSED = Pace(None, None, 300.0, asks_others=True)
"""The audit has a line for each refused call."""
PaceOf = Callable[[CallWatch], Pace]
LONG_SECONDS = 60.0
"""Check at least this often if the answer is due, whatever its pace."""
NEXT_SAMPLE_SECONDS = 1.0
"""Check this often for a new sample once an answer is due by its pace: an idle machine takes few samples."""
REST_FACTOR = 4
"""After making an answer, rest this many times its processor time, so that one user's pages leave time for others."""
KEPT_IN_FILES = frozenset({"gpushare.v1.Audit", "gpushare.v1.History"})
WITH_AGES = frozenset({"gpushare.v1.Gpus/List", "gpushare.v1.Projects/List"})
OF_OTHERS = frozenset({"gpushare.v1.Jobs/Nodes"})


def usual_pace(watch: CallWatch) -> Pace:
    """Return the pace of a call by its name, and by its request: it may ask for the whole pool."""
    if watch.call.partition("/")[0] in KEPT_IN_FILES or watch.call in OF_OTHERS or _asks_pool(watch.request):
        return POLLED
    return FRESH if watch.call in WITH_AGES else LOCAL


def _asks_pool(request: Any) -> bool:
    return "pool" in request.DESCRIPTOR.fields_by_name and bool(request.pool)


_Key = tuple[Caller, str, bytes]


class LiveAnswer:
    """Keep one answer up to date, while pages watch it."""

    def __init__(self, watch: CallWatch) -> None:
        self.versions = AnswerVersions(watch.call, watch.request)
        self.trouble: GpushareError | None = None
        """The error that the call gives now."""
        self.pages: set[asyncio.Event] = set()
        """These are set when the answer has changed."""
        self.task: asyncio.Task[None] | None = None
        """This task keeps the answer up to date; only a bug ends it before the last page has gone."""
        self.watch = watch

    def wake_pages(self) -> None:
        for page in self.pages:
            page.set()


class LiveAnswers:
    """Hold the answers of all users that pages watch now."""

    def __init__(self, calls: JsonApi, revisions: Revisions, pace_of: PaceOf) -> None:
        self.calls = calls
        self.revisions = revisions
        self._pace_of = pace_of
        self._live: dict[_Key, LiveAnswer] = {}
        self._tasks = TaskSet("a page's answer failed")
        self._turns: dict[tuple[Caller, bool], asyncio.Lock] = {}

    def watch(self, watch: CallWatch, caller: Caller, origin: Origin, page: asyncio.Event) -> LiveAnswer:
        """Return the answer, which sets ``page`` whenever it has changed, until ``unwatch``."""
        key = _key(watch, caller)
        live = self._live.get(key)
        if live is None:
            live = self._live[key] = LiveAnswer(watch)
            live.task = self._tasks.start(self._keep(live, caller, origin), live.wake_pages)
        live.pages.add(page)
        return live

    def unwatch(self, live: LiveAnswer, caller: Caller, page: asyncio.Event) -> None:
        """Stop setting ``page``; without pages the answer is not kept up to date any more."""
        live.pages.discard(page)
        key = _key(live.watch, caller)
        if live.pages or self._live.get(key) is not live:  # a page may watch one answer by several names
            return
        del self._live[key]
        if live.task is not None:
            live.task.cancel()
        if not any(other == caller for other, _, _ in self._live):
            self._turns.pop((caller, True), None)
            self._turns.pop((caller, False), None)

    async def close(self) -> None:
        """End all work on answers."""
        await self._tasks.cancel()

    async def _keep(self, live: LiveAnswer, caller: Caller, origin: Origin) -> None:
        while True:
            seen = self.revisions.states, self.revisions.samples
            async with self._turn(live, caller):
                made_at = time.monotonic()
                if await self._make(live, caller, origin):
                    live.wake_pages()
            while (wait := self._wait_seconds(self._pace_now(live), seen, made_at)) > 0:
                await self.revisions.changed(wait)

    @asynccontextmanager
    async def _turn(self, live: LiveAnswer, caller: Caller) -> AsyncIterator[None]:
        """Make a user's answers one after the other, with a rest after each.

        Answers that ask other machines have turns of their own, because they wait for long and work little.
        """
        asks_others = self._pace_of(live.watch).asks_others
        async with self._turns.setdefault((caller, asks_others), asyncio.Lock()):
            # Count processor time: elapsed time would grow with other programs' work.
            begun = time.thread_time()
            yield
            if not asks_others:
                await asyncio.sleep(REST_FACTOR * (time.thread_time() - begun))

    async def _make(self, live: LiveAnswer, caller: Caller, origin: Origin) -> bool:
        """Make the answer; return True if it or its trouble changed, so that the pages must get it."""
        unary, revision, before = self.calls.calls[live.watch.call], str(self.revisions), live.trouble
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                message = await self.calls.make(unary, live.watch.request, caller, origin)
        except GpushareError as error:
            live.trouble = error
        except TimeoutError:
            live.trouble = TimedOut(f"no answer came in {ANSWER_SECONDS:.0f} s", hint="it is tried again")
        else:
            live.trouble = None
            return live.versions.take(message, revision) or before is not None
        return str(live.trouble) != str(before)

    def _pace_now(self, live: LiveAnswer) -> Pace:
        match live.trouble:
            case None:
                return self._pace_of(live.watch)
            case PermissionRefused():
                return REFUSED
            case _:
                return AFTER_ERROR

    def _wait_seconds(self, pace: Pace, seen: tuple[int, int], made_at: float) -> float:
        """Return the time until the answer may be due, 0 or less if it is due now.

        ``seen`` are the numbers of the state and of the sample from which it was made.
        """
        (states, samples), passed = seen, time.monotonic() - made_at
        waits = [LONG_SECONDS]
        if pace.poll_seconds is not None:
            waits.append(pace.poll_seconds - passed)
        if pace.state_seconds is not None and states != self.revisions.states:
            waits.append(pace.state_seconds - passed)
        if pace.sample_seconds is not None:
            # All users' answers fall due together, so that they share what they have in common.
            due_in = pace.sample_seconds - made_at % pace.sample_seconds - passed
            waits.append(max(due_in, 0.0 if samples != self.revisions.samples else NEXT_SAMPLE_SECONDS))
        return min(waits)


def _key(watch: CallWatch, caller: Caller) -> _Key:
    return caller, watch.call, watch.request.SerializeToString(deterministic=True)
