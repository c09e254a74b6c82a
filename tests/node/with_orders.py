"""A daemon with a socket by which tests are its coordinators: a line of JSON in, a line of JSON out.

It can also kill itself: at a named point of making a job's container, once, or with ``every write`` before
and after each kind of write of an attempt's record. ``GPUSHARED_DIES`` says which.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from gpushared.config.model import Config
from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.protocol import Order, Report, StaleEpoch
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.net.http_server import Routes
from gpushared.node.jobs.job_containers import JobContainers
from gpushared.node.jobs.job_host import JobHost
from gpushared.node.main import main
from gpushared.node.parts import Parts, real_parts
from gpushared.ports import Journal, JournalWrite
from gpushared.storage.records import from_json, to_json

ANSWER = Report | StaleEpoch
WAIT_SECONDS = 20.0
EVERY_WRITE = "every write"


class OrderSocket:
    """Answers one line after the other."""

    def __init__(self, jobs: JobHost) -> None:
        self._order_handler = jobs.order_handler

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            try:
                answer = await self._answer(json.loads(line))
            except GpushareError as error:
                answer = {"error": str(error)}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _answer(self, asked: dict[str, Any]) -> object:
        coordinator = asked["coordinator"]
        match asked["ask"]:
            case "take":
                answer = await self._order_handler.take(from_json(Order, asked["order"]), coordinator)
                return to_json(ANSWER, answer)
            case "report":
                return await self._report(coordinator, asked)
            case "contact":
                await self._order_handler.contact(
                    coordinator, asked["sent_at"], epoch=1, revision=asked["revision"]
                )
                return None
            case _:
                return [to_json(ANSWER, report) for report in self._order_handler.reports(coordinator)]

    async def _report(self, coordinator: str, asked: dict[str, Any]) -> str | None:
        """How it stands once its revision is above ``above``, or after a while."""
        key = AttemptKey(JobId(asked["job"]), asked["number"])
        changed = asyncio.Event()
        unsubscribe = self._order_handler.subscribe(coordinator, lambda _: changed.set())
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while (report := self._order_handler.report(coordinator, key)) and report.revision <= asked[
                    "above"
                ]:
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            pass
        finally:
            unsubscribe()
        return None if report is None else to_json(ANSWER, report)


class DyingJournal:
    """The ``Journal`` port over another one; what it died at is noted, so that the next life gets past it."""

    def __init__(self, inner: Journal, notes: Path) -> None:
        self._inner = inner
        self._notes = notes
        self.load, self.story, self.lease = inner.load, inner.story, inner.lease
        self.ended, self.past, self.close = inner.ended, inner.past, inner.close
        self.spans, self.forget_spans, self.identity = inner.spans, inner.forget_spans, inner.identity

    async def commit(self, writes: Sequence[JournalWrite]) -> None:
        marks = [_mark(one) for write in writes for one in write.attempts]
        self._die_at("before", marks)
        await self._inner.commit(writes)
        self._die_at("after", marks)

    def _die_at(self, when: str, marks: Sequence[str]) -> None:
        known = set(self._notes.read_text().splitlines()) if self._notes.exists() else set()
        new = sorted({f"{when} {mark}" for mark in marks} - known)
        if new:
            with self._notes.open("a") as notes:
                notes.writelines(f"{mark}\n" for mark in new)
            os.kill(os.getpid(), signal.SIGKILL)


def _mark(attempt: Attempt) -> str:
    return f"{attempt.state}{' to be cancelled' if attempt.cancelled_by else ''}"


def die_at(point: str, notes: Path) -> None:
    """Kill this process before or after a step of making containers, at the first of all lives."""
    when, _, name = point.partition(" ")
    step: Callable[..., Awaitable[Any]] = getattr(JobContainers, name)

    async def dying(self: JobContainers, *args: Any) -> Any:
        if when == "before":
            _die_once(notes)
        result = await step(self, *args)
        _die_once(notes)
        return result

    setattr(JobContainers, name, dying)


def _die_once(notes: Path) -> None:
    if not notes.exists():
        notes.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def parts_with_orders(config: Config) -> Parts:
    point, notes = os.environ.get("GPUSHARED_DIES", ""), Path(config.node.state_dir).with_name("died")
    parts = real_parts(config)
    open_order_socket(notes.with_name("orders"))
    if point == EVERY_WRITE:
        return replace(parts, journal=DyingJournal(parts.journal, notes))
    if point:
        die_at(point, notes)
    return parts


def open_order_socket(path: Path) -> None:
    """Serve the orders beside the jobs."""
    serve = JobHost.serve

    async def serve_with_orders(self: JobHost, routes: Routes, stack: AsyncExitStack) -> None:
        server = await asyncio.start_unix_server(OrderSocket(self).converse, path)
        stack.callback(server.close)
        await serve(self, routes, stack)

    JobHost.serve = serve_with_orders  # type: ignore[method-assign]  # the socket is the point


if __name__ == "__main__":
    with mock.patch("gpushared.node.main.real_parts", parts_with_orders):
        main()
