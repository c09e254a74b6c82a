"""The node's end of the link to its coordinator: dials, registers, and comes back when the link is lost.

Whatever state it is in, the node goes on by itself: nothing here is waited for by anything local.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random, SystemRandom

import grpc

from gpushared.api.v1 import link_pb2_grpc
from gpushared.daemon.clocks import boottime, day_at
from gpushared.daemon.tasks import TaskSet
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import Code, GpushareError, Unavailable
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.pool.member.dial import Backoff, Dial, Retry
from gpushared.pool.member.heartbeats import FIRST_SECONDS
from gpushared.pool.member.link_session import Identity, Session, Timing
from gpushared.pool.member.node_ports import Guests, NodeFacts, OrderPort, OutboxPort

log = logging.getLogger(__name__)

PART = "pool"
CLOCK_PART = "pool-clock"
AWAY_SECONDS = 15.0
"""The loss of a link for a shorter time is no trouble."""
MAX_CLOCK_DIFFERENCE_SECONDS = 120.0
"""Certificates and users' assertions tolerate this difference."""

_PASSING = {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED}
"""These failures pass by themselves; after other refusals people must act."""


@dataclass(frozen=True, slots=True)
class LinkState:
    """For people. Times are epoch seconds; ``connected_since`` None while there is no link."""

    pool: str
    address: str
    connected_since: float | None = None
    away_since: float | None = None
    heard_at: float | None = None
    """The coordinator last acknowledged a message at this time."""
    last_error: str = ""
    """The text includes the hint."""
    why: str = ""
    """The same without."""
    next_try_at: float | None = None
    epoch: int = 0
    clock_ahead_seconds: float | None = None
    """The coordinator's clock was ahead by this much at the newest welcome."""

    def text(self) -> str:
        """One line: how it stands with the pool."""
        if self.connected_since is not None:
            return f"in pool {self.pool} by {self.address} since {_clock(self.connected_since)}"
        return f"in pool {self.pool}, but {self.away}"

    @property
    def away(self) -> str:
        """Since when and why there is no link, and when it is tried again."""
        since = f" since {_clock(self.away_since)}" if self.away_since is not None else ""
        why = f" ({self.why})" if self.why else ""
        again = f"; dialled again at {_clock(self.next_try_at)}" if self.next_try_at is not None else ""
        return f"there is no link to {self.address}{since}{why}{again}"


class MemberLink:
    """Keeps one link up as long as ``run`` runs."""

    def __init__(
        self,
        identity: Identity,
        dial: Dial,
        order_handler: OrderPort,
        facts: NodeFacts,
        outbox: OutboxPort,
        troubles: Troubles,
        *,
        guests: Guests | None = None,
        before_dialling: Callable[[], Awaitable[None]] | None = None,
        retry: Retry | None = None,
        timing: Timing | None = None,
        random: Random | None = None,
    ) -> None:
        self.guests = guests or Guests()
        self.dial = dial
        self._identity = identity
        self._order_handler = order_handler
        self._facts = facts
        self._outbox = outbox
        self._troubles = troubles
        self._before_dialling = before_dialling
        self._timing = timing or Timing()
        self._random = random or SystemRandom()
        self._backoff = Backoff(retry or Retry(), self._random)
        self._session: Session | None = None
        self._undecided = TaskSet()
        self._hurry = asyncio.Event()
        self._changed = asyncio.Event()
        self._beat_seconds = FIRST_SECONDS
        # All by ``boottime``: what people are told follows the clock when that is set.
        self._away_since: float | None = boottime()
        self._connected_since: float | None = None
        self._next_try_at: float | None = None
        self._heard_at: float | None = None
        self._error: GpushareError | None = None
        self._epoch = 0
        self._clock_ahead_seconds: float | None = None

    # --- what the node says ----------------------------------------------------------------------------

    def report(self, key: AttemptKey) -> None:
        """An attempt's record changed. Without a link the next registration tells it."""
        if self._session is not None:
            self._session.report(key)

    def submit(self, job: JobId) -> None:
        """A job came into the outbox."""
        if self._session is not None:
            self._session.submit(job)

    def cancel(self, job: JobId) -> None:
        """A cancellation came into the outbox."""
        if self._session is not None:
            self._session.cancel(job)

    def client_gone(self, job: JobId) -> None:
        """Nobody waits for an interactive job any more; lost without a link, so to be said again."""
        if self._session is not None:
            self._session.client_gone(job)

    def hurry(self) -> None:
        """Dial now rather than at the time that was drawn: the certificates changed, or somebody asks."""
        self._hurry.set()

    def redial(self) -> None:
        """Dial anew, also where there is a link: the coordinator's address changed."""
        if self._session is not None:
            self._session.end(Unavailable("the coordinator's address changed"))
        self._hurry.set()

    # --- for people ------------------------------------------------------------------------------------

    @property
    def state(self) -> LinkState:
        session = self._session
        heard = session.acknowledged_at if session is not None else None
        return LinkState(
            pool=self._identity.pool,
            address=self.dial.address,
            connected_since=_day(self._connected_since),
            away_since=_day(self._away_since),
            heard_at=_day(heard or self._heard_at),
            last_error=str(self._error) if self._error is not None else "",
            why=self._error.message if self._error is not None else "",
            next_try_at=_day(self._next_try_at),
            epoch=self._epoch,
            clock_ahead_seconds=self._clock_ahead_seconds,
        )

    @property
    def connected(self) -> bool:
        """Return True if the coordinator welcomed this node and the stream is up, as far as one can know."""
        return self._connected_since is not None

    def connected_seconds(self) -> float:
        """For how long it has been so; 0 where it is not."""
        return 0.0 if self._connected_since is None else boottime() - self._connected_since

    async def changed(self, timeout_seconds: float) -> bool:
        """Wait until the link came up or was lost; False when the time is over first."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_seconds):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    # --- life ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                try:
                    await self._connect()
                except GpushareError as error:
                    # Anew, because the traceback holds the call, and a call keeps its connection dialling.
                    self._lost(type(error)(error.message, hint=error.hint))
                await self._wait()
        finally:
            await self._undecided.cancel()

    async def _connect(self) -> None:
        """One stream's life; ends by an error always."""
        # What the last stream ordered is to be in the registration: an order that is taken after it, unknown to a
        # coordinator that has lost its memory, would run beside what that coordinator places.
        await self._undecided.wait()
        if self._before_dialling is not None:
            await self._before_dialling()
        channel = await self.dial.channel()
        session: Session | None = None
        try:
            call = link_pb2_grpc.NodeLinkStub(channel).Connect()
            session = self._session = Session(
                self._identity,
                call,
                self._order_handler,
                self._facts,
                self._outbox,
                self.guests,
                self._timing,
                self._random,
            )
            await session.greet()
            self._welcomed(session)
            await session.talk()
        except grpc.aio.AioRpcError as error:
            raise self.dial.fault(error) from error
        except asyncio.InvalidStateError as error:  # grpc.aio's word for a call that is over
            raise Unavailable("the link to the coordinator ended") from error
        finally:
            self._session = None
            if session is not None:
                self._undecided = session.undecided
                self._heard_at = session.acknowledged_at or self._heard_at
            await channel.close()

    def _welcomed(self, session: Session) -> None:
        self._hurry.clear()
        self._backoff.after_success()
        self._beat_seconds = session.welcome.beat_seconds
        self._epoch = session.welcome.epoch
        self._connected_since, self._away_since = boottime(), None
        self._next_try_at = self._error = None
        self._troubles.cleared(PART)
        self._clock_ahead_seconds = session.clock_difference_seconds
        self._judge_clocks(self._clock_ahead_seconds)
        self._wake()
        log.info("pool=%s joined by=%s epoch=%d", self._identity.pool, self.dial.address, self._epoch)

    def _judge_clocks(self, ahead_seconds: float) -> None:
        if abs(ahead_seconds) <= MAX_CLOCK_DIFFERENCE_SECONDS:
            self._troubles.cleared(CLOCK_PART)
            return
        which = "ahead of" if ahead_seconds > 0 else "behind"
        self._troubles.raised(
            CLOCK_PART,
            f"the coordinator's clock is {abs(ahead_seconds):.0f} s {which} this node's: certificates and "
            f"users' jobs may be refused (synchronise both clocks)",
        )

    def _lost(self, error: GpushareError) -> None:
        if self._connected_since is not None or str(error) != str(self._error):
            log.warning("pool=%s link lost: %s", self._identity.pool, error)
        if self._connected_since is not None:
            self._connected_since, self._away_since = None, boottime()
        self._error = error
        self._wake()

    async def _wait(self) -> None:
        """Until the next try. A refusal is shown at once, silence when it lasts."""
        refused = self._error is not None and self._error.code not in _PASSING
        seconds = self._backoff.patient_seconds() if refused else self._backoff.seconds(self._beat_seconds)
        now = boottime()
        self._next_try_at = now + seconds
        if refused or (self._away_since is not None and now - self._away_since > AWAY_SECONDS):
            self._troubles.raised(PART, self._trouble())
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            return
        self._hurry.clear()
        self._backoff.after_success()

    def _trouble(self) -> str:
        """Return the trouble's text without the time of the next try, so that the log has the text once."""
        since = _clock(day_at(self._away_since)) if self._away_since is not None else "now"
        return f"pool {self._identity.pool} is not reached since {since}: {self._error}"

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _day(up: float | None) -> float | None:
    return None if up is None else day_at(up)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
