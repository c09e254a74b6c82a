"""Keep the node's end of the link to its coordinator: dial, register, and dial again when the link is lost.

The node continues without the link: nothing local waits for this module.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random, SystemRandom

import grpc

from gpushared.api.v1 import link_pb2_grpc
from gpushared.daemon.clocks import boottime, day_at
from gpushared.daemon.tasks import TaskSet, within
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import Code, GpushareError, TimedOut, Unavailable, WrongCoordinator
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.net.call_checks import hint_of, leader_epoch_of
from gpushared.pool.member.dial import Backoff, Dial, Retry, fault
from gpushared.pool.member.heartbeats import FIRST_SECONDS
from gpushared.pool.member.leader_search import LeaderSearch
from gpushared.pool.member.link_session import Identity, Session, Timing
from gpushared.pool.member.node_ports import MessageReceivers, NodeFacts, OrderPort, OutboxPort
from gpushared.pool.trust.certificates import offset_words

log = logging.getLogger(__name__)

PART = "pool"
CLOCK_PART = "pool-clock"
AWAY_SECONDS = 15.0
"""Raise a trouble only if the link is lost for longer."""
MAX_CLOCK_DIFFERENCE_SECONDS = 120.0
"""Certificates and users' assertions tolerate this difference."""

MAX_LOGGED = 64
SPREAD = 0.1
"""Spread the nodes that lost a coordinator at the same time over this part of a heartbeat's interval."""

_PASSING = {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED}
"""These failures pass by themselves; after other refusals people must act."""


@dataclass(frozen=True, slots=True)
class LinkState:
    """Describe the link for people. Times are epoch seconds; ``connected_since`` is None without a link."""

    pool: str
    address: str
    coordinators: int = 1
    connected_since: float | None = None
    away_since: float | None = None
    heard_at: float | None = None
    """The coordinator last acknowledged a message at this time."""
    last_error: str = ""
    """The text includes the hint."""
    why: str = ""
    """The text leaves out the hint."""
    hint: str = ""
    """The hint of a refusal that does not pass by itself."""
    next_try_at: float | None = None
    epoch: int = 0
    clock_ahead_seconds: float | None = None
    """The coordinator's clock was ahead by this much at the newest welcome."""

    def text(self) -> str:
        """Return one line on the state of the link to the pool."""
        if self.connected_since is not None:
            several = f"{self.coordinators} coordinators, linked " if self.coordinators > 1 else ""
            return f"in pool {self.pool}, {several}by {self.address} since {_clock(self.connected_since)}"
        return f"in pool {self.pool}, but {self.away}"

    @property
    def away(self) -> str:
        """Return since when and why the link is lost, and when the node dials again."""
        since = f" since {_clock(self.away_since)}" if self.away_since is not None else ""
        why = f" ({self.why})" if self.why else ""
        again = f"; dialled again at {_clock(self.next_try_at)}" if self.next_try_at is not None else ""
        where = f"any of {self.coordinators} coordinators" if self.coordinators > 1 else self.address
        return f"there is no link to {where}{since}{why}{again}"


class MemberLink:
    """Keep one link up while ``run`` runs."""

    def __init__(
        self,
        identity: Identity,
        dial: Dial,
        order_handler: OrderPort,
        facts: NodeFacts,
        outbox: OutboxPort,
        troubles: Troubles,
        *,
        receivers: MessageReceivers | None = None,
        before_dialling: Callable[[], Awaitable[None]] | None = None,
        retry: Retry | None = None,
        timing: Timing | None = None,
        random: Random | None = None,
    ) -> None:
        self.receivers = receivers or MessageReceivers()
        self.dial = dial
        self._identity = identity
        self._order_handler = order_handler
        self._facts = facts
        self._outbox = outbox
        self._troubles = troubles
        self._before_dialling = before_dialling
        self._timing = timing or Timing()
        self._random = random or SystemRandom()
        self._retry = retry or Retry()
        self._backoff = Backoff(self._retry, self._random)
        self._search = LeaderSearch(dial.addresses)
        self._logged: set[str] = set()
        self._was_up = False
        self._session: Session | None = None
        self._undecided = TaskSet()
        self._hurry = asyncio.Event()
        self._changed = asyncio.Event()
        self._beat_seconds = FIRST_SECONDS
        # These times use ``boottime``; the times shown to people follow the wall clock when it is set.
        self._lost_since: float | None = boottime()
        self._connected_since: float | None = None
        self._next_try_at: float | None = None
        self._heard_at: float | None = None
        self._error: GpushareError | None = None
        self._coordinators = 0
        self._clock_ahead_seconds: float | None = None

    # --- what the node says ----------------------------------------------------------------------------

    def report(self, key: AttemptKey) -> None:
        """Report the changed record of an attempt. Without a link the next registration sends the record."""
        if self._session is not None:
            self._session.report(key)

    def submit(self, job: JobId) -> None:
        """Send a job that was added to the outbox."""
        if self._session is not None:
            self._session.submit(job)

    def cancel(self, job: JobId) -> None:
        """Send a cancellation that was added to the outbox."""
        if self._session is not None:
            self._session.cancel(job)

    def client_gone(self, job: JobId) -> None:
        """Report that nobody waits for an interactive job any more.

        Without a link the message is lost, so that the caller must repeat it.
        """
        if self._session is not None:
            self._session.client_gone(job)

    def hurry(self) -> None:
        """Dial now rather than at the drawn time: the certificates changed, or a user requests it."""
        self._hurry.set()

    def redial(self) -> None:
        """Dial again, also while a link is up: the coordinator's address changed."""
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
            coordinators=self._coordinators or len(self.dial.addresses.all),
            connected_since=_day(self._connected_since),
            away_since=_day(self._lost_since),
            heard_at=_day(heard or self._heard_at),
            last_error=str(self._error) if self._error is not None else "",
            why=self._error.message if self._error is not None else "",
            hint=self._error.hint if self._error is not None and self._is_refused else "",
            next_try_at=_day(self._next_try_at),
            epoch=self._search.linked_epoch,
            clock_ahead_seconds=self._clock_ahead_seconds,
        )

    @property
    def connected(self) -> bool:
        """Return True if the node was welcomed and, as far as the node knows, the stream is up."""
        return self._connected_since is not None

    def connected_seconds(self) -> float:
        """Return for how long the link has been up, or 0 if it is down."""
        return 0.0 if self._connected_since is None else boottime() - self._connected_since

    async def changed(self, timeout_seconds: float) -> bool:
        """Wait until the link comes up or is lost; return False if the time ends first."""
        return await within(self._changed, timeout_seconds)

    # --- life ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                try:
                    await self._connect()
                except GpushareError as error:
                    # Make a new error, because the traceback holds the call, and a call keeps its connection
                    # dialling.
                    self._lost(type(error)(self._with_address(error.message), hint=error.hint))
                await self._wait()
        finally:
            await self._undecided.cancel()

    async def _connect(self) -> None:
        """Run one stream from dial to end; the end is always an error."""
        # The registration must include all orders of the last stream. A coordinator that has lost its memory
        # does not know an order that is accepted after the registration, and the order would run beside the
        # jobs that the coordinator places.
        await self._undecided.wait()
        if self._before_dialling is not None:
            await self._before_dialling()
        addresses, address = self.dial.addresses, self._search.next_address()
        channel = await self.dial.channel(address)
        session: Session | None = None
        try:
            metadata = self._search.wait_metadata(self._timing.hold)
            call = link_pb2_grpc.NodeLinkStub(channel).Connect(metadata=metadata)
            session = self._session = Session(
                self._identity,
                call,
                self._order_handler,
                self._facts,
                self._outbox,
                self.receivers,
                self._timing,
                self._random,
                has_others=lambda: addresses.has_others,
                answered=partial(addresses.answered, address),
            )
            await session.register()
            self._welcomed(session)
            await session.talk()
        except grpc.aio.AioRpcError as error:
            if hint_of(error):
                addresses.answered(address)
                self._search.refused(leader_epoch_of(error))
            raise fault(address, error) from error
        except asyncio.InvalidStateError as error:  # grpc.aio raises this for a call that ended
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
        self._search.found(session.welcome.epoch)
        self._logged.clear()
        self._coordinators = len(session.welcome.node_addresses) or self._coordinators
        self._beat_seconds = session.welcome.beat_seconds
        self._connected_since, self._lost_since = boottime(), None
        self._next_try_at = self._error = None
        self._troubles.cleared(PART)
        self._clock_ahead_seconds = session.clock_difference_seconds
        self._judge_clocks(self._clock_ahead_seconds)
        self._wake()
        log.info(
            "pool=%s joined by=%s epoch=%d", self._identity.pool, self.dial.address, session.welcome.epoch
        )

    def _judge_clocks(self, ahead_seconds: float) -> None:
        if abs(ahead_seconds) <= MAX_CLOCK_DIFFERENCE_SECONDS:
            self._troubles.cleared(CLOCK_PART)
            return
        self._troubles.raised(
            CLOCK_PART,
            f"the coordinator's clock is {offset_words(ahead_seconds)} this node's: certificates and "
            f"users' jobs may be refused (synchronise both clocks)",
        )

    def _with_address(self, message: str) -> str:
        """Return the message with the address, if there are several and the message names none."""
        dialled = self._search.dialled
        is_clear = dialled in message or not self.dial.addresses.has_others
        return message if is_clear else f"{dialled}: {message}"

    def _lost(self, error: GpushareError) -> None:
        """Note why there is no link. Each reason is logged once, until there is a link again."""
        if self._connected_since is not None or str(error) not in self._logged:
            log.warning("pool=%s link lost: %s", self._identity.pool, error)
        if len(self._logged) < MAX_LOGGED:
            self._logged.add(str(error))
        self._was_up = self._connected_since is not None
        if self._was_up:
            is_silent = isinstance(error, TimedOut)
            self._search.lost(is_silent=is_silent)
            self._connected_since, self._lost_since = None, boottime()
            if is_silent:
                self.receivers.fell_silent()
        self._error = error
        self._wake()

    async def _wait(self) -> None:
        """Wait until the next try. Show a refusal at once, and a lost link once it lasts."""
        refused, seconds = self._pause()
        now = boottime()
        self._next_try_at = now + seconds
        if refused or self._away_seconds() > AWAY_SECONDS:
            self._troubles.raised(PART, self._trouble())
        if await within(self._hurry, seconds):
            self._hurry.clear()
            self._backoff.after_success()

    def _pause(self) -> tuple[bool, float]:
        """Return True if only people can change the refusal, and the seconds to wait.

        With several coordinators the next one is dialled before any wait. A program that is no coordinator of
        the pool is no reason to wait either, as long as another address may be good.
        """
        refused = self._is_refused
        if self.dial.addresses.has_others and not (refused and not isinstance(self._error, WrongCoordinator)):
            if not self._search.failed(may_recover=not refused):
                return False, self._random.uniform(0.0, SPREAD * self._beat_seconds) if self._was_up else 0.0
            refused = not self._search.end_round()
            if not refused and self._away_seconds() < self._retry.brisk:
                return False, self._backoff.brisk_seconds(self._beat_seconds / 2)
        seconds = self._backoff.patient_seconds() if refused else self._backoff.seconds(self._beat_seconds)
        return refused, seconds

    @property
    def _is_refused(self) -> bool:
        return self._error is not None and self._error.code not in _PASSING

    def _away_seconds(self) -> float:
        return 0.0 if self._lost_since is None else boottime() - self._lost_since

    def _trouble(self) -> str:
        """Return the trouble's text without the time of the next try, so that the log has the text once."""
        since = _clock(day_at(self._lost_since)) if self._lost_since is not None else "now"
        return f"pool {self._identity.pool} is not reached since {since}: {self._error}"

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _day(up: float | None) -> float | None:
    return None if up is None else day_at(up)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
