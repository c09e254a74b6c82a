"""Limit one user's use of the daemon, give users turns, and limit how often an unknown caller may try.

The daemon is one thread and the engine behind it one process. Three things keep a user from using all of
either: bounds on open connections and requests, a few slots in which the user's requests are handled, and
turns: in each pass of the event loop one piece of a stream is handled for each user, however many wait.

All calls of a user count alike: gRPC, unary JSON and the Docker API, on any connection.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from gpushared.domain.model.errors import LimitReached
from gpushared.domain.model.request import Caller
from gpushared.storage.audit.line import NOBODY_HERE

REST_FACTOR = 8
"""Rest this many times the duration of long work; the steps after the work take about as long as it."""
STRANGERS_BURST = 20
STRANGERS_PER_SECOND = 1 / 3
MAX_PEERS = 4096


@dataclass(frozen=True, slots=True)
class UserLimits:
    """Bound one user's use at one time."""

    connections: int = 1024
    requests: int = 1024
    """Waiting requests count too: an attached client has two or three."""
    creates: int = 256
    """A create that requests a GPU counts while it waits in the queue."""
    body_bytes: int = 16 * 1024 * 1024
    """The field bounds the bytes of all bodies that are read whole before the check."""
    slots: int = 4
    """The field bounds the requests that are being handled."""
    slot_seconds: float = 0.5
    """A longer request mostly waits, for a container's end or a lease, and gives up its slot."""


class UserShare:
    """Count one user's present use. The methods that bound something raise ``LimitReached``."""

    def __init__(self, limits: UserLimits) -> None:
        self.limits = limits
        self._connections = 0
        self._requests = 0
        self._creates = 0
        self._body_bytes = 0
        self._slots = asyncio.Semaphore(limits.slots)
        self._long_work = asyncio.Lock()
        self._turns: deque[asyncio.Future[None]] = deque()
        self._turn_taken = False

    @property
    def idle(self) -> bool:
        """Return True if the user uses nothing, so that the share can be forgotten."""
        return not (self._connections or self._requests or self._creates or self._body_bytes or self._turns)

    @contextmanager
    def connection(self) -> Iterator[None]:
        self.add_connection()
        try:
            yield
        finally:
            self.drop_connection()

    def add_connection(self) -> None:
        """Count a connection until ``drop_connection``."""
        if self.is_full:
            raise LimitReached(
                f"you have {self.limits.connections} connections to the daemon already",
                hint="close some: each waiting client holds one",
            )
        self._connections += 1

    def drop_connection(self) -> None:
        self._connections -= 1

    @property
    def is_full(self) -> bool:
        """Return True if there is no room for another connection."""
        return self._connections >= self.limits.connections

    @contextmanager
    def create(self) -> Iterator[None]:
        if self._creates >= self.limits.creates:
            raise LimitReached(
                f"{self.limits.creates} containers of yours are being created already",
                hint="wait for some of them; `gpushare submit` queues work without a waiting client",
            )
        self._creates += 1
        try:
            yield
        finally:
            self._creates -= 1

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Handle one request in the block, which waits for a slot and keeps it for a limited time."""
        if self._requests >= self.limits.requests:
            raise LimitReached(
                f"you have {self.limits.requests} requests under way already",
                hint="wait for some of them, or stop some clients",
            )
        self._requests += 1
        try:
            async with self._slot():
                yield
        finally:
            self._requests -= 1

    def hold(self, size_bytes: int) -> None:
        """Count ``size_bytes`` more of a stored body, until ``drop``."""
        if self._body_bytes + size_bytes > self.limits.body_bytes:
            raise LimitReached(
                f"the bodies of your requests hold {self._body_bytes} bytes already",
                hint="send fewer at once, or shorter ones",
            )
        self._body_bytes += size_bytes

    def drop(self, size_bytes: int) -> None:
        self._body_bytes -= size_bytes

    @contextmanager
    def holding(self, size_bytes: int) -> Iterator[None]:
        """Count the bytes of a body that was read whole while the block works on it."""
        self.hold(size_bytes)
        try:
            yield
        finally:
            self.drop(size_bytes)

    @asynccontextmanager
    async def long_work(self) -> AsyncIterator[None]:
        """Do work that blocks everybody: for each user one at a time, with a rest in proportion."""
        async with self._long_work:
            begun = time.perf_counter()
            try:
                yield
            finally:
                await asyncio.sleep(REST_FACTOR * (time.perf_counter() - begun))

    async def turn(self) -> None:
        """Wait until it is this user's turn; the event loop always runs once between two turns."""
        if not self.take_turn():
            await self.queue_for_turn()

    def take_turn(self) -> bool:
        """Return True, and take the turn, if it is this user's turn now."""
        if self._turn_taken:
            return False
        self._turn_taken = True
        asyncio.get_running_loop().call_soon(self._next_turn)
        return True

    def queue_for_turn(self) -> asyncio.Future[None]:
        """Return a future that is done when it is this user's turn; cancel it to give up the turn."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append(waiting)
        return waiting

    def _next_turn(self) -> None:
        while self._turns:
            waiting = self._turns.popleft()
            if not waiting.done():
                waiting.set_result(None)
                asyncio.get_running_loop().call_soon(self._next_turn)
                return
        self._turn_taken = False

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        await self._slots.acquire()
        slot = _Slot(self._slots)
        timer = asyncio.get_running_loop().call_later(self.limits.slot_seconds, slot.leave)
        try:
            yield
        finally:
            timer.cancel()
            slot.leave()


@dataclass(slots=True)
class _Slot:
    slots: asyncio.Semaphore
    is_released: bool = False

    def leave(self) -> None:
        if not self.is_released:
            self.is_released = True
            self.slots.release()


class Shares:
    """Hold the shares of all users, by their uid; all listeners use one object."""

    def __init__(self, limits: UserLimits | None = None) -> None:
        self._limits = limits or UserLimits()
        self._shares: dict[int | str, UserShare] = {}

    @property
    def limits(self) -> UserLimits:
        return self._limits

    @limits.setter
    def limits(self, limits: UserLimits) -> None:
        """Set new limits. Use beyond them stays, and users with present use keep their number of slots."""
        self._limits = limits
        for share in self._shares.values():
            share.limits = limits

    def of(self, uid: int | str) -> UserShare:
        """Return the share of a uid, or of a person of a pool by name.

        It must be used at once: a share without any use may be forgotten.
        """
        share = self._shares.get(uid)
        if share is None:
            self._forget_idle()
            share = self._shares[uid] = UserShare(self._limits)
        return share

    def of_caller(self, caller: Caller) -> UserShare:
        """Return a caller's share. Persons of a pool have no uid on this machine, and count by their names."""
        return self.of(caller.name if caller.uid == NOBODY_HERE else caller.uid)

    def _forget_idle(self) -> None:
        for uid in [uid for uid, share in self._shares.items() if share.idle]:
            del self._shares[uid]


class Rates:
    """Hold a bucket of tries for each peer, which fills with time.

    Forget the peers that were longest away.
    """

    def __init__(
        self,
        now: Callable[[], float],
        *,
        burst: int = STRANGERS_BURST,
        per_second: float = STRANGERS_PER_SECOND,
    ) -> None:
        self._now = now
        self._burst = burst
        self._per_second = per_second
        self._tries: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By peer, the tries in its bucket at a time, and that time."""

    def spend(self, peer: str) -> None:
        """Count one try. Raises LimitReached with the seconds to wait."""
        now = self._now()
        tries, at = self._tries.pop(peer, (float(self._burst), now))
        tries = min(self._burst, tries + max(0.0, now - at) * self._per_second)
        if tries < 1:
            self._tries[peer] = (tries, now)
            seconds = (1 - tries) / self._per_second
            raise LimitReached(f"{peer} tries too often", hint=f"try again in {seconds:.0f} s")
        self._tries[peer] = (tries - 1, now)
        if len(self._tries) > MAX_PEERS:
            self._tries.popitem(last=False)


def host_of(peer: str) -> str:
    """Return ``ipv4:10.0.0.7:4711`` (grpc's peer) without the port: a host's connections count as one."""
    return peer.rpartition(":")[0] or peer
