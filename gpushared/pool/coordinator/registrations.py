"""Read the first messages of nodes, their registrations, which can be long, also on purpose.

An attacker with a node's certificate can register without end. Each node therefore registers only a few times
at once, and in a while no more often than over a bad link. Only few long registrations are in memory at once,
and each has a time limit.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from gpushared.api.v1 import link_pb2
from gpushared.domain.jobs.coordinator_rules import MAX_REPORTED_BYTES, MAX_REPORTED_JOBS
from gpushared.domain.jobs.job import NodeName, names_bytes
from gpushared.domain.jobs.protocol import Report
from gpushared.domain.model.errors import LimitReached, RequestError, TimedOut
from gpushared.jobs import bounds
from gpushared.net.limits import Rates
from gpushared.pool.coordinator.node_stream import Context
from gpushared.pool.link import codec


@dataclass(frozen=True, slots=True)
class RegistrationBounds:
    """Bound registrations. ``message`` and ``whole`` bound the seconds for each message and for all of them.

    ``most_bytes`` bounds the bytes of the reports. Of registrations above ``long_bytes``, ``long_at_once``
    are read at a time. ``at_once`` bounds one node's registrations at a time; an older one may be half-open
    without knowing it. ``burst`` of them may come in a row, and then ``per_second``. The coordinator keeps at
    most ``specs`` job specs of a registration, with ``spec_bytes`` bytes.
    """

    message: float = 30.0
    whole: float = 60.0
    most_bytes: int = 128 << 20
    long_bytes: int = 4 << 20
    long_at_once: int = 2
    at_once: int = 3
    burst: int = 60
    per_second: float = 1.0
    specs: int = MAX_REPORTED_JOBS
    spec_bytes: int = MAX_REPORTED_BYTES


@dataclass(frozen=True, slots=True)
class RegistrationRead:
    """Hold a whole registration."""

    message: link_pb2.Hello
    reports: tuple[Report, ...]


class _Share:
    """Bound the part of a registration that is kept while the rest is read.

    No node can have more attempts under way.
    """

    def __init__(self, bounds: RegistrationBounds) -> None:
        self._bounds = bounds
        self._specs, self._bytes = 0, 0

    def bounded(self, report: Report) -> Report:
        """Return the report, without its job's spec and request once the bound is reached."""
        if report.spec is None and report.request is None:
            return report
        self._specs += 1
        self._bytes += report.spec.size_bytes if report.spec is not None else 0
        self._bytes += names_bytes(report.request) if report.request is not None else 0
        if self._specs <= self._bounds.specs and self._bytes <= self._bounds.spec_bytes:
            return report
        return replace(report, spec=None, request=None)


class Registrations:
    """Read registrations. ``now`` returns a clock that only goes forward."""

    def __init__(
        self, bounds: RegistrationBounds | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._bounds = bounds or RegistrationBounds()
        self._rates = Rates(now, burst=self._bounds.burst, per_second=self._bounds.per_second)
        self._open: Counter[NodeName] = Counter()
        self._long = asyncio.Semaphore(self._bounds.long_at_once)
        self._long_of: set[NodeName] = set()
        self._news = asyncio.Event()

    async def long_one(self, node: NodeName) -> None:
        """Wait until a registration of this node turns out to be a long one."""
        while node not in self._long_of:
            self._news.clear()
            await self._news.wait()

    @asynccontextmanager
    async def of(self, node: NodeName, context: Context) -> AsyncIterator[RegistrationRead]:
        """Read a registration, and count it as being read while the block runs.

        Raises RequestError, TimedOut, LimitReached.
        """
        self._rates.spend(f"node {node}")
        if self._open[node] >= self._bounds.at_once:
            raise LimitReached(f"node {node} has {self._bounds.at_once} registrations at a time already")
        self._open[node] += 1
        try:
            async with AsyncExitStack() as stack:
                yield await self._read(node, context, stack)
        finally:
            self._open[node] -= 1
            if not self._open[node]:
                del self._open[node]

    async def _read(self, node: NodeName, context: Context, stack: AsyncExitStack) -> RegistrationRead:
        try:
            async with asyncio.timeout(self._bounds.whole):
                message = await self._next(context)
                if message.WhichOneof("what") != "hello":
                    raise RequestError("the first message of a link is not a registration")
                return RegistrationRead(
                    message.hello, await self._reports(node, message.hello, context, stack)
                )
        except TimeoutError:
            raise TimedOut(f"a registration took longer than {self._bounds.whole:.0f} s") from None

    async def _next(self, context: Context) -> link_pb2.Up:
        """Return the next message of a registration. Raises TimedOut, RequestError."""
        try:
            async with asyncio.timeout(self._bounds.message):
                message = await context.read()
        except TimeoutError:
            raise TimedOut(f"no registration in {self._bounds.message:.0f} s") from None
        if not isinstance(message, link_pb2.Up):
            raise RequestError("the link ended within its registration")
        bounds.check_message(message)
        return message

    async def _reports(
        self, node: NodeName, registration: link_pb2.Hello, context: Context, stack: AsyncExitStack
    ) -> tuple[Report, ...]:
        """Return the registration's reports, with the reports that follow the registration."""
        share = _Share(self._bounds)
        reports = [share.bounded(codec.read_report(data)) for data in registration.reports]
        size, is_long = 0, False
        for _ in range(registration.more_reports):
            message = await self._next(context)
            size += len(message.report)
            if message.WhichOneof("what") != "report" or size > self._bounds.most_bytes:
                raise RequestError("a registration whose reports do not follow it, or are too many")
            if size > self._bounds.long_bytes and not is_long:
                await self._wait_for_room(node, stack)
                is_long = True
            reports.append(share.bounded(codec.read_report(message.report)))
        return tuple(reports)

    async def _wait_for_room(self, node: NodeName, stack: AsyncExitStack) -> None:
        """Wait for room in memory. Raises LimitReached while the node has another long registration."""
        if node in self._long_of:
            raise LimitReached(f"another long registration of node {node} is being read")
        self._long_of.add(node)
        self._news.set()
        stack.callback(self._long_of.discard, node)
        await stack.enter_async_context(self._long)
