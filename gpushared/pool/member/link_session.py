"""Run one stream to the coordinator, from its registration to its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeVar

import grpc

from gpushared.api.v1 import link_pb2
from gpushared.daemon.clocks import boottime
from gpushared.daemon.tasks import TaskSet
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.jobs.protocol import Report, StaleEpoch
from gpushared.domain.model.errors import GpushareError, NotFound, StateConflict, TimedOut, Unavailable
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.units import shown
from gpushared.jobs import bounds
from gpushared.jobs.mailbox import Mailbox
from gpushared.pool.link import codec
from gpushared.pool.member.heartbeats import Heartbeats
from gpushared.pool.member.node_ports import MessageReceivers, NodeFacts, OrderPort, OutboxPort

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")
Call = grpc.aio.StreamStreamCall[link_pb2.Up, link_pb2.Down]

MAX_WAITING = 1 << 20
"""Bound the subjects that wait to be sent; the bound exceeds the attempts and jobs of a node."""
MAX_WAITING_TO_ADD = 1024
"""Add no more jobs of the outbox while this many subjects wait."""
ORDERS_AT_ONCE = 64
ANSWERS_AT_ONCE = 4
MAX_QUESTIONS = 64
"""Drop questions beyond this many unanswered ones; the coordinator asks again."""
MAX_MESSAGES_TO_STORE = 4096
"""Bound the messages on jobs, anchors and coordinators that wait to be stored. At the bound the session reads
nothing more from the coordinator."""
JITTER = 0.1
SLACK_SECONDS = 2.0
"""Let a heartbeat's acknowledgement take this long before another coordinator is dialled."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Name this node and its pool."""

    pool: str
    node: NodeName
    boot_id: str
    version: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Hold times in seconds.

    ``answer`` bounds each message of a registration, and its answer. The session gives a stream up after
    ``silence`` without an acknowledged heartbeat, and not before three heartbeats. ``news`` is the least time
    between two heartbeats of which the second reports changed facts; ``settle`` gathers changes before it.
    ``look`` bounds the age of the newest check of the fences when the session sends a message.

    Where another coordinator may lead, ``silence_among_others`` and two heartbeats are enough, the coordinator
    must accept the call within ``reach``, and it may hold a registration for ``hold`` until it leads.
    """

    answer: float = 30.0
    silence: float = 40.0
    silence_among_others: float = 12.0
    reach: float = 8.0
    hold: int = 10
    news: float = 0.05
    settle: float = 0.02
    look: float = 1.0

    def silence_limit(self, beat_seconds: float, *, has_others: bool) -> float:
        """Return for how many seconds a coordinator may acknowledge nothing."""
        if has_others:
            return max(self.silence_among_others, 2 * beat_seconds + SLACK_SECONDS)
        return max(self.silence, 3 * beat_seconds)


class Session:
    """Run a stream. All messages wait in its mailbox, which keeps only the newest message of each subject."""

    def __init__(
        self,
        identity: Identity,
        call: Call,
        order_handler: OrderPort,
        facts: NodeFacts,
        outbox: OutboxPort,
        receivers: MessageReceivers,
        timing: Timing,
        random: Random,
        *,
        has_others: Callable[[], bool] = lambda: False,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        """``has_others`` returns True if another coordinator may lead.

        ``answered`` is called when this one shows that it is alive.
        """
        self.welcome = link_pb2.Welcome()
        self.acknowledged_at: float | None = None
        """Hold when the newest acknowledgement came (``boottime``), for people."""
        self.clock_difference_seconds = 0.0
        """Hold by how much the coordinator's clock was ahead at its welcome, as far as the node could
        measure."""
        self._identity = identity
        self._call = call
        self._order_handler = order_handler
        self._facts = facts
        self._outbox = outbox
        self._receivers = receivers
        self._timing = timing
        self._random = random
        self._has_others = has_others
        self._note_answer = answered
        self._mailbox: Mailbox[link_pb2.Up] = Mailbox(MAX_WAITING)
        self._heartbeats = Heartbeats()
        self._messages_to_store: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue(
            MAX_MESSAGES_TO_STORE
        )
        self._slots = asyncio.Semaphore(ORDERS_AT_ONCE)
        self.undecided = TaskSet("an order was not handled")
        """Hold orders that were received and are being written; these tasks continue when the stream ends."""
        self._answers = TaskSet("a question was not answered")
        self._answer_slots = asyncio.Semaphore(ANSWERS_AT_ONCE)
        self._questions = 0
        self._acked = asyncio.Event()
        self._unacknowledged_jobs: set[JobId] = set()
        self._backlog: tuple[JobId, ...] = ()
        self._looked_at = 0.0
        self._end_reason: asyncio.Future[GpushareError] = asyncio.get_running_loop().create_future()

    # --- from registration to end -----------------------------------------------------------------------------

    async def register(self) -> None:
        """Register and receive the welcome. Raises the coordinator's refusal, StateConflict, TimedOut."""
        self._backlog = self._outbox.jobs()
        await self._look_at_fences()
        began = boottime()
        answer = await self._registration_answer()
        if not isinstance(answer, link_pb2.Down):
            raise Unavailable("the coordinator ended the link within the registration")
        _raise_refusal(answer)
        bounds.check_message(answer)
        self.welcome = answer.welcome
        if self.welcome.pool != self._identity.pool:
            raise StateConflict(
                f"this node is of the pool {self._identity.pool}, and the coordinator of "
                f"{shown(self.welcome.pool)}",
                hint="set `pool.coordinator` to the address of its own, or join the other pool",
            )
        codec.check_generation("the coordinator", self.welcome.capabilities, "")
        self._heartbeats.seconds = self.welcome.beat_seconds
        # Store the epoch before taking any order: orders of a lower epoch are void.
        await self._order_handler.contact_made(began, self.welcome.epoch, self.welcome.revision)
        self.acknowledged_at = boottime()
        self._note_answer()
        self.clock_difference_seconds = self.welcome.now - time.time()

    async def talk(self) -> None:
        """Run until the stream ends; the end is always an error of the tree or of gRPC."""
        works = (
            self._read(),
            self._write(),
            self._beat(),
            self._send_outbox(),
            self._store_messages(),
            self._store_contact(),
            self._end_when_silent(),
        )
        tasks = [asyncio.create_task(work) for work in works]
        self._mailbox.put(link_pb2.TrustSeen, self._trust_seen)
        self._messages_to_store.put_nowait(partial(self._receivers.new_coordinators, self.welcome))
        ends: list[asyncio.Future[Any]] = [*tasks, self._end_reason]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            raise self._end_reason.result() if self._end_reason.done() else _cause(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await self._answers.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # The error that ends the stream holds this frame, and the tasks hold the error: a cycle that
            # would keep the call and its connection until the garbage collector runs.
            tasks.clear()
            ends.clear()

    def end(self, why: GpushareError) -> None:
        """Close the stream from this side."""
        if not self._end_reason.done():
            self._end_reason.set_result(why)

    async def _registration_answer(self) -> object:
        """Return the answer to the registration.

        A refusal may come while the registration is still being sent.
        """
        hold_seconds = 0.0
        if self._has_others():
            # A write to a call that is being refused hides the refusal: grpc.aio then raises an internal error.
            await self._wait_until_accepted()
            hold_seconds = self._timing.hold
        reading = asyncio.ensure_future(self._call.read())
        writing = asyncio.create_task(self._send_registration())
        try:
            await asyncio.wait([reading, writing], return_when=asyncio.FIRST_COMPLETED)
            answer = await self._in_time(reading, hold_seconds)
            if isinstance(answer, link_pb2.Down) and answer.HasField("welcome"):
                # The write is done, and may say so late. grpc.aio cancels a call whose write is cancelled.
                await self._in_time(writing)
            return answer
        finally:
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            del reading, writing  # as in ``talk``

    async def _wait_until_accepted(self) -> None:
        """Wait until the coordinator accepts the call. Raises TimedOut.

        A standby that holds the call accepts it at once; a machine that is frozen accepts only connections.
        """
        try:
            async with asyncio.timeout(self._timing.reach):
                await self._call.initial_metadata()
        except TimeoutError:
            raise TimedOut(f"the coordinator gave no sign of life in {self._timing.reach:.0f} s") from None
        if not self._call.done():
            self._note_answer()

    async def _send_registration(self) -> None:
        for message in codec.registration_messages(self._registration(), self._order_handler.reports()):
            await self._in_time(self._call.write(message))

    def _registration(self) -> link_pb2.Hello:
        contact = self._order_handler.contact()
        inventory, free = self._facts.inventory(), self._facts.free()
        self._heartbeats.sent_facts = (inventory, free)
        return link_pb2.Hello(
            node=self._identity.node,
            version=self._identity.version,
            boot_id=self._identity.boot_id,
            capabilities=(*codec.CAPABILITIES, *map(codec.answers, self._receivers.answerers)),
            inventory=codec.inventory_bytes(inventory),
            free=codec.free_bytes(free),
            seen_epoch=contact.epoch,
            seen_revision=contact.revision,
            now=time.time(),
        )

    async def _in_time(self, work: Awaitable[_Answer], more_seconds: float = 0.0) -> _Answer:
        seconds = self._timing.answer + more_seconds
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            raise TimedOut(f"the coordinator did not answer in {seconds:.0f} s") from None
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            # A write that took too long was cancelled, and grpc.aio then cancelled the whole call.
            raise TimedOut(f"the coordinator did not take the registration in {seconds:.0f} s") from None
        finally:
            del work  # as in ``talk``

    # --- up --------------------------------------------------------------------------------------------

    def report(self, key: AttemptKey) -> None:
        """Queue a report on an attempt; the report is made when its turn comes."""
        self._mailbox.put((Report, key), lambda: self._report(key))

    def _report(self, key: AttemptKey) -> link_pb2.Up | None:
        report = self._order_handler.report(key)
        return None if report is None else link_pb2.Up(report=codec.report_bytes(report))

    def submit(self, job: JobId, *, old: bool = False) -> None:
        """Queue a job of the outbox. ``old`` marks a job that an earlier stream may have sent."""
        self._unacknowledged_jobs.add(job)
        self._mailbox.put((link_pb2.OutboxJob, job), lambda: self._outbox_job(job, old=old))

    def _outbox_job(self, job: JobId, *, old: bool) -> link_pb2.Up | None:
        entry = self._outbox.job(job)
        if entry is None:
            return None
        spec = codec.spec_bytes(entry.spec)
        assertion = self._outbox.vouch(job, codec.job_digest(job, spec))
        return link_pb2.Up(
            job=link_pb2.OutboxJob(
                job_id=job,
                spec=spec,
                held=entry.held,
                priority=entry.priority,
                old=old,
                assertion=assertion,
                kept_seconds=entry.kept_seconds,
            )
        )

    def cancel(self, job: JobId) -> None:
        """Queue a cancellation of the outbox. If the job itself is being sent, the job goes first."""
        if job not in self._unacknowledged_jobs:
            self._mailbox.put((link_pb2.OutboxCancel, job), lambda: self._outbox_cancel(job))

    def _outbox_cancel(self, job: JobId) -> link_pb2.Up | None:
        grace = self._outbox.cancels().get(job)
        if grace is None:
            return None
        assertion = self._outbox.vouch_cancel(job, codec.cancel_digest(job, grace))
        return link_pb2.Up(cancel=link_pb2.OutboxCancel(job_id=job, grace_seconds=grace, assertion=assertion))

    def client_gone(self, job: JobId) -> None:
        """Report that nobody waits for an interactive job any more, unless the coordinator lacks the job."""
        if job not in self._unacknowledged_jobs:
            self._mailbox.put((link_pb2.ClientGone, job), lambda: self._client_gone(job))

    def _client_gone(self, job: JobId) -> link_pb2.Up | None:
        if self._outbox.job(job) is None:
            return None
        assertion = self._outbox.vouch(job, codec.gone_digest(job))
        return link_pb2.Up(client_gone=link_pb2.ClientGone(job_id=job, assertion=assertion))

    async def _send_outbox(self) -> None:
        """Queue all jobs of the outbox from before the registration.

        ``submit`` and ``cancel`` queue later ones.
        """
        for job in self._backlog:
            await self._mailbox.wait_until_below(MAX_WAITING_TO_ADD)
            self.submit(job, old=True)
        for job in self._outbox.cancels():
            self.cancel(job)
        await asyncio.Event().wait()

    def _trust_seen(self) -> link_pb2.Up:
        return link_pb2.Up(trust_seen=link_pb2.TrustSeen(generation=self._receivers.trust_generation()))

    async def _write(self) -> None:
        while True:
            message = await self._mailbox.take()
            # A machine that slept must first end its expired attempts, before it sends anything to the
            # coordinator.
            if boottime() - self._looked_at > self._timing.look:
                await self._look_at_fences()
            await self._call.write(message)

    async def _look_at_fences(self) -> None:
        """End attempts whose time without contact is over."""
        self._looked_at = boottime()
        try:
            await self._order_handler.look()
        except GpushareError as error:
            log.warning("attempts without contact were not checked: %s", error)

    # --- heartbeats ------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Send a heartbeat when it is due, or when facts must be sent with it."""
        while True:
            seconds = self._heartbeats.seconds * (1 + self._random.uniform(-JITTER, JITTER))
            await self._pause(asyncio.get_running_loop().time() + seconds)
            self._mailbox.put(link_pb2.Beat, self._make_beat)

    async def _end_when_silent(self) -> None:
        while True:
            limit = self._timing.silence_limit(self._heartbeats.seconds, has_others=self._has_others())
            remaining_seconds = limit - self._heartbeats.silent_seconds()
            if remaining_seconds <= 0:
                raise TimedOut(f"the coordinator acknowledged nothing for {limit:.0f} s")
            await asyncio.sleep(remaining_seconds)

    async def _pause(self, until: float) -> None:
        """Wait until then, or until facts change."""
        now = asyncio.get_running_loop().time
        await asyncio.sleep(min(self._timing.news, until - now()))
        while (remaining_seconds := until - now()) > 0 and not self._heartbeats.has_news(self._facts):
            if await self._facts.changed(remaining_seconds):
                await asyncio.sleep(self._timing.settle)

    def _make_beat(self) -> link_pb2.Up:
        inventory, free = self._facts.inventory(), self._facts.free()
        sent_inventory, sent_free = self._heartbeats.sent_facts or (None, None)
        beat = link_pb2.Beat(seq=self._heartbeats.next(boottime()))
        if inventory != sent_inventory:
            beat.inventory = codec.inventory_bytes(inventory)
        if free != sent_free:
            beat.free = codec.free_bytes(free)
        self._heartbeats.sent_facts = (inventory, free)
        return link_pb2.Up(beat=beat)

    async def _store_contact(self) -> None:
        """Store the newest acknowledgement only, because writing may be slower than heartbeats."""
        while True:
            await self._acked.wait()
            self._acked.clear()
            try:
                await self._order_handler.contact_made(
                    self._heartbeats.acknowledged_sent_at, self.welcome.epoch, self._heartbeats.revision
                )
            except GpushareError as error:
                log.warning("contact with the coordinator was not noted: %s", error)

    # --- down ------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while isinstance(message := await self._call.read(), link_pb2.Down):
            await self._handle(message)
        status, details = await self._call.code(), await self._call.details()
        raise Unavailable(f"the coordinator ended the link: {status.name} {details or ''}".rstrip())

    async def _handle(self, message: link_pb2.Down) -> None:
        bounds.check_message(message)
        match message.WhichOneof("what"):
            case "beat_ack":
                self._acknowledged(message.beat_ack)
            case "order":
                await self._begin_order(message.order)
            case "outbox_ack":
                await self._messages_to_store.put(partial(self._outbox_ack, message.outbox_ack))
            case "update":
                await self._messages_to_store.put(partial(self._outbox.updated, message.update))
            case "trust":
                await self._messages_to_store.put(partial(self._trust, message.trust))
            case "tunnel":
                self._receivers.open_tunnel(message.tunnel)
            case "drain":
                self._receivers.drained(message.drain)
            case "question":
                self._begin_answer(message.question)
            case "refuse":
                _raise_refusal(message)
            case other:
                log.debug("the coordinator said %s, which this version does not know", other)

    def _acknowledged(self, ack: link_pb2.BeatAck) -> None:
        if self._heartbeats.acknowledge(ack):
            self.acknowledged_at = boottime()
            self._acked.set()

    async def _begin_order(self, data: bytes) -> None:
        await self._slots.acquire()
        self.undecided.start(_do_or_log(partial(self._order, data)), over=self._slots.release)

    async def _order(self, data: bytes) -> None:
        """Take an order and answer it.

        The coordinator repeats an unanswered order, as after a failed write.
        """
        order = codec.read_order(data)
        answer = await self._order_handler.take(order)
        if isinstance(answer, StaleEpoch):
            stale = link_pb2.Up(stale=codec.stale_bytes(answer))
            self._mailbox.put((StaleEpoch, order.key), lambda: stale)
        else:
            self.report(order.key)

    def _begin_answer(self, question: link_pb2.Question) -> None:
        if self._questions < MAX_QUESTIONS:
            self._questions += 1
            self._answers.start(self._answer(question), over=self._question_answered)

    def _question_answered(self) -> None:
        self._questions -= 1

    async def _answer(self, question: link_pb2.Question) -> None:
        answer = link_pb2.Answer(number=question.number)
        try:
            async with self._answer_slots:
                answer.body = await self._body_of(question)
        except GpushareError as error:
            answer.code, answer.message, answer.hint = error.code, error.message, error.hint
        self._mailbox.put((link_pb2.Answer, question.number), lambda: link_pb2.Up(answer=answer))

    async def _body_of(self, question: link_pb2.Question) -> bytes:
        answerer = self._receivers.answerers.get(question.what)
        if answerer is None:
            raise NotFound(f"this node does not answer {shown(question.what)}", hint="update gpushared here")
        return await answerer(question.body)

    async def _store_messages(self) -> None:
        """Store messages one after the other, because the newest message on a job must come last."""
        while True:
            await _do_or_log(await self._messages_to_store.get())

    async def _outbox_ack(self, ack: link_pb2.OutboxAck) -> None:
        job = JobId(ack.job_id)
        refusal = codec.refused(ack.code, ack.message, ack.hint) if ack.code else None
        if ack.cancel:
            await self._outbox.cancelled(job, refusal)
            return
        await self._outbox.taken(job, refusal)
        self._unacknowledged_jobs.discard(job)
        if job in self._outbox.cancels():
            self.cancel(job)

    async def _trust(self, trust: link_pb2.NewTrust) -> None:
        before = self._receivers.trust_generation()
        if await self._receivers.new_trust(trust) != before:
            self._mailbox.put(link_pb2.TrustSeen, self._trust_seen)


async def _do_or_log(work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except GpushareError as error:
        log.warning("a message of the coordinator was not applied: %s", error)


def _raise_refusal(message: link_pb2.Down) -> None:
    if message.HasField("refuse"):
        refuse = message.refuse
        raise codec.refused(refuse.code, refuse.message, refuse.hint)


def _cause(tasks: Iterable[asyncio.Task[None]]) -> BaseException:
    """Return the most informative error of the stream's tasks; the bare end of the stream comes last.

    A task counts as cancelled if grpc.aio cancelled the call under it.
    """
    ended = [task for task in tasks if task.done() and not task.cancelled()]
    errors = [error for task in ended if (error := task.exception()) is not None]
    errors.sort(key=lambda error: isinstance(error, asyncio.InvalidStateError))
    return errors[0] if errors else Unavailable("the link to the coordinator ended")
