"""Serve the stream of a page: server-sent events with the watched answers, whole at first, then changes.

Each stream holds only the versions of the answers that its page has, and compares them with the newest ones
when it writes. A slow reader therefore costs no memory: it gets fewer and larger changes, and after a while
nothing. ``docs/reference/stream.md`` describes the events.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, assert_never

from gpushared.daemon.tasks import TaskSet
from gpushared.domain.model.errors import GpushareError, RequestError
from gpushared.domain.model.request import Caller
from gpushared.net.http_server import ClientGoneError, Exchange
from gpushared.net.revisions import Revisions
from gpushared.net.unary_json import JsonApi
from gpushared.web.answers import Answer
from gpushared.web.live_answers import LiveAnswer, LiveAnswers, PaceOf, usual_pace
from gpushared.web.log_feed import FIRST_LINES, LogFeed, LogSource
from gpushared.web.watches import CallWatch, LogWatch, read_query

HEARTBEAT_SECONDS = 15.0
SLOW_READER_SECONDS = 30.0
GATHER_SECONDS = 0.02
"""Wait this long after the first change, so that changes of one cause go out in one write."""
RETRY = b"retry: 2000\n\n"
HEARTBEAT = b":\n\n"
HEADERS = (
    (b"Content-Type", b"text/event-stream"),
    (b"Cache-Control", b"no-store"),
    # A proxy that gathers an answer before it passes it on would hold back the events (nginx, oauth2-proxy).
    (b"X-Accel-Buffering", b"no"),
)
MARK = re.compile(r"[0-9a-f.]{1,64}~([0-9a-f,]{0,256})")


class EventStreams:
    """Serve all streams of a daemon."""

    def __init__(
        self,
        calls: JsonApi,
        revisions: Revisions,
        pace_of: PaceOf = usual_pace,
        logs: LogSource | None = None,
    ) -> None:
        self.live = LiveAnswers(calls, revisions, pace_of)
        self._logs = logs

    async def serve(self, exchange: Exchange, caller: Caller, query: str) -> None:
        """Answer one ``GET stream``, until the client goes away. Raises errors of the tree before it starts."""
        stream_query = read_query(query, self.live.calls.calls)
        for watch in stream_query.watches:
            if isinstance(watch, LogWatch) and (
                self._logs is None or _call_behind(watch)[0] not in self.live.calls.calls
            ):
                raise RequestError("this daemon has no such log", hint="a lease's log is on its node")
        mark = (exchange.header(b"last-event-id") or b"").decode("latin-1") or stream_query.mark
        stream = _Stream(exchange, caller, self.live, self._logs)
        try:
            stream.watch(stream_query.watches, mark)
            await stream.run()
        finally:
            await stream.close()

    async def close(self) -> None:
        """End the work for all streams; their connections end by themselves."""
        await self.live.close()


class _Stream:
    """Write the events of one stream."""

    def __init__(self, exchange: Exchange, caller: Caller, live: LiveAnswers, logs: LogSource | None) -> None:
        self._exchange = exchange
        self._caller = caller
        self._live = live
        self._logs = logs
        self._wake = asyncio.Event()
        self._parts: list[_AnswerPart | _LogPart] = []
        self._tasks = TaskSet("a page's log failed")

    def watch(self, watches: Sequence[CallWatch | LogWatch], mark: str) -> None:
        """Begin to watch. ``mark`` is the mark of the last event that the page got, if any."""
        match = MARK.fullmatch(mark)
        digests = match[1].split(",") if match else []
        if len(digests) != len(watches):
            digests = [""] * len(watches)
        for watch, digest in zip(watches, digests, strict=True):
            match watch:
                case CallWatch():
                    live = self._live.watch(watch, self._caller, self._exchange.origin, self._wake)
                    self._parts.append(_AnswerPart(watch.name, live, digest))
                case LogWatch():
                    self._parts.append(self._log(watch))
                case _:
                    assert_never(watch)

    def _log(self, watch: LogWatch) -> _LogPart:
        logs, calls = self._logs, self._live.calls
        assert logs is not None, "serve refuses this watch without logs"
        call, request = _call_behind(watch)
        unary = calls.calls[call]

        async def newest_token() -> str:
            message = unary.request(**request)
            answer: Any = await calls.make(unary, message, self._caller, self._exchange.origin)
            return str(answer.token)

        feed = LogFeed(
            lambda: logs(watch, self._caller, FIRST_LINES),
            newest_token,
            self._live.revisions.changed,
            self._wake.set,
        )
        return _LogPart(watch.name, feed, self._tasks.start(feed.run(), self._wake.set))

    async def run(self) -> None:
        """Write until a bug ends the work on a part. Raises ClientGoneError."""
        await self._exchange.start(HTTPStatus.OK, HEADERS, RETRY)
        written_at = time.monotonic()
        while not self._is_broken:
            is_silent = time.monotonic() >= written_at + HEARTBEAT_SECONDS
            if data := self._news() or (HEARTBEAT if is_silent else b""):
                await self._write(data)
                written_at = time.monotonic()
            await self._woken(written_at + HEARTBEAT_SECONDS - time.monotonic())
        await self._exchange.finish()

    async def close(self) -> None:
        """Stop watching."""
        for part in self._parts:
            if isinstance(part, _AnswerPart):
                self._live.unwatch(part.live, self._caller, self._wake)
        await self._tasks.cancel()

    @property
    def _is_broken(self) -> bool:
        """Return True if a bug ended the work on a part; the page may open the stream again."""
        return any(part.task is not None and part.task.done() for part in self._parts)

    def _news(self) -> bytes:
        """Return all events that the page lacks, each with a mark of all that the page has after it."""
        written = []
        for part in self._parts:
            for event, members in part.news():
                revision = part.revision or str(self._live.revisions)
                mark = f"{revision}~{','.join(each.digest for each in self._parts)}"
                about = f'"name": {json.dumps(part.name)}, "revision": "{revision}"'
                data = f"{about}, {members}" if members else about
                written.append(f"id: {mark}\nevent: {event}\ndata: {{{data}}}\n\n")
        return "".join(written).encode()

    async def _write(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(SLOW_READER_SECONDS):
                await self._exchange.send(data)
        except TimeoutError:
            self._exchange.abort()
            raise ClientGoneError("the page does not read") from None

    async def _woken(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
                await asyncio.sleep(GATHER_SECONDS)
        self._wake.clear()


class _AnswerPart:
    """Hold which version of an answer the page has."""

    def __init__(self, name: str, live: LiveAnswer, digest: str) -> None:
        self.name = name
        self.live = live
        self.digest = digest
        self._has: Answer | None = None
        self._sent_trouble = ""

    @property
    def task(self) -> asyncio.Task[None] | None:
        return self.live.task

    @property
    def revision(self) -> str:
        return self._has.revision if self._has is not None else ""

    def news(self) -> Iterator[tuple[str, str]]:
        """Yield each event, and its members as JSON without braces."""
        newest, trouble = self.live.versions.newest, _trouble_members(self.live.trouble)
        is_over = bool(self._sent_trouble) and not trouble
        if newest is not None and newest.digest != self.digest:
            change = newest.change_members(self.digest, self._has)
            self._has, self.digest, is_over = newest, newest.digest, False
            yield ("state", newest.state_members) if change is None else ("change", change)
        if is_over:
            yield "change", ""
        if trouble and trouble != self._sent_trouble:
            yield "trouble", trouble
        self._sent_trouble = trouble


class _LogPart:
    """Hold what the page got of a log. A log has no digest: a page that comes back gets the last lines again."""

    digest = revision = ""

    def __init__(self, name: str, feed: LogFeed, task: asyncio.Task[None]) -> None:
        self.name = name
        self.task = task
        self._feed = feed
        self._sent_trouble = ""

    def news(self) -> Iterator[tuple[str, str]]:
        if news := self._feed.news():
            yield "log", json.dumps(news)[1:-1]
        trouble = _trouble_members(self._feed.trouble)
        if trouble and trouble != self._sent_trouble:
            yield "trouble", trouble
        self._sent_trouble = trouble


def _call_behind(watch: LogWatch) -> tuple[str, dict[str, str]]:
    """Return the call, with its request, whose answer changes when the log may begin again."""
    if watch.lease_id:
        return "gpushare.v1.Leases/Get", {"lease_id": watch.lease_id}
    return "gpushare.v1.Jobs/Get", {"job_id": watch.job_id}


def _trouble_members(error: GpushareError | None) -> str:
    if error is None:
        return ""
    return json.dumps({"code": error.code, "message": error.message, "hint": error.hint})[1:-1]
