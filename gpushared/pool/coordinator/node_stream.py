"""Hold one node's live stream on the coordinator: handle its messages, and queue messages to the node."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import grpc

from gpushared.api.v1 import link_pb2
from gpushared.daemon.tasks import TaskSet
from gpushared.domain.jobs.coordinator_events import (
    AttemptReported,
    CancelAsked,
    ClientGone,
    JobSubmitted,
    NodeHeartbeat,
    PoolEvent,
)
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import Job, NodeName, Owner, cut_short
from gpushared.domain.jobs.liveness import beat_seconds
from gpushared.domain.jobs.member import Member
from gpushared.domain.model.errors import GpushareError, LimitReached, RequestError, TimedOut, Unavailable
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.units import shown
from gpushared.jobs import bounds
from gpushared.jobs.coordinator_loop import send_until_taken
from gpushared.jobs.job_requests import is_own_id
from gpushared.jobs.mailbox import Mailbox
from gpushared.net.call_audit import Asker, CallAudit
from gpushared.pool.link import codec
from gpushared.storage.audit.line import NOBODY_HERE

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[link_pb2.Up, link_pb2.Down]

MAX_WAITING = 32_768
"""Bound the subjects that wait to be sent to one node."""
MAX_WAITING_TO_READ = 1024
"""Read nothing more from a node while this many subjects wait for it."""
MESSAGES_AT_ONCE = 32
"""Handle at most this many of a node's messages at a time."""
_JOB_ID = re.compile(r"[0-9a-z]{1,32}(_[0-9]{1,7})?")
LINGER_SECONDS = 5.0
"""Wait this long for a write under way before a refusal, and for the node to hang up after the refusal."""
SILENCE_SECONDS = 40.0
"""Give up a stream after this silence, though its connection lives, but not before three heartbeats: the
node's gRPC answers pings also if its daemon hangs."""
SILENCE_CHECKS = 4
"""Check this often within the silence, so that a pause of this process does not count as the node's silence."""
MAX_GRACE_SECONDS = 24 * 3600


class StreamState(Protocol):
    """Give links the part of the loop's state that they read."""

    @property
    def members(self) -> Mapping[NodeName, Member]: ...
    @property
    def epoch(self) -> int: ...


class StreamLoop(Protocol):
    """Provide the coordinator's loop."""

    @property
    def state(self) -> StreamState: ...
    @property
    def revision(self) -> int:
        """Return the revision of the newest change in the store."""
        ...

    async def send(self, event: PoolEvent) -> Job | None:
        """Apply the event, and return when its changes are durable. Raises errors of the tree."""
        ...


class LinkGuardPort(Protocol):
    """Identify the node at the other end, and the users that the node may assert."""

    @property
    def pool(self) -> str: ...

    def node_of(self, auth: Mapping[str, Iterable[bytes]]) -> NodeName:
        """Return the node of this certificate (gRPC's ``auth_context``).

        Raises PermissionRefused for a certificate of another pool, a revoked one, or one that is no node's.
        """
        ...

    def owner_of(self, node: NodeName, assertion: bytes, digest: bytes) -> Owner:
        """Return the user whom a node asserts. Raises PermissionRefused."""
        ...

    def owner_named(self, principal: str) -> Owner:
        """Return the owner that a principal names, never an admin.

        Raises RequestError if it can be nobody.
        """
        ...

    def newer_trust(self, node: NodeName, generation: int) -> link_pb2.NewTrust | None:
        """Return the anchors that a node must trust from now on, or None if the node has the newest."""
        ...


class Origins(Protocol):
    """Find jobs for the nodes through which they were submitted."""

    def origin_of(self, job: JobId) -> NodeName:
        """Return the node through which the job was submitted, or HERE."""
        ...

    def update_of(self, job: JobId) -> link_pb2.JobUpdate | None:
        """Return the job's current state, or None if the job is no longer known."""
        ...


def usual_beat(nodes: int) -> float:
    """Return the seconds between heartbeats for this many nodes, by the rules without configuration."""
    return beat_seconds(nodes, PoolRules())


class NodeStream:
    """Hold a node's stream. ``talk`` runs from the welcome to the stream's end."""

    def __init__(
        self,
        node: NodeName,
        registration: link_pb2.Hello,
        loop: StreamLoop,
        guard: LinkGuardPort,
        origins: Origins,
        beat: Callable[[int], float] = usual_beat,
        audit: CallAudit | None = None,
    ) -> None:
        self.node = node
        self._audit = audit or CallAudit()
        self.capabilities = frozenset(registration.capabilities)
        self.mailbox: Mailbox[link_pb2.Down] = Mailbox(MAX_WAITING)
        self._loop = loop
        self._guard = guard
        self._origins = origins
        self._beat_seconds = beat
        self._end_reason: asyncio.Future[GpushareError] = asyncio.get_running_loop().create_future()
        self._no_write_under_way = asyncio.Event()
        self._no_write_under_way.set()
        self._heartbeat_reader = codec.HeartbeatReader()
        self._sent_trust: tuple[int, bool] | None = None
        self._messages_read = 0
        self._is_reading = False
        self._slots = asyncio.Semaphore(MESSAGES_AT_ONCE)
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future[bytes]] = {}
        self._work = TaskSet(f"node={node} a message was not handled")

    def end(self, reason: GpushareError) -> None:
        """Close the stream from this side, and send the node the reason."""
        if not self._end_reason.done():
            self._end_reason.set_result(reason)

    @property
    def end_reason(self) -> GpushareError | None:
        """Return why this side closed the stream, or None if it did not."""
        return self._end_reason.result() if self._end_reason.done() else None

    def put(self, subject: object, make: Callable[[], link_pb2.Down | None]) -> None:
        """Queue a message.

        If the node reads too slowly, end the stream: the next registration repeats all.
        """
        if not self.mailbox.put(subject, make):
            self.end(LimitReached(f"node {self.node} reads too slowly: {MAX_WAITING} things wait for it"))

    async def talk(self, context: Context) -> GpushareError | None:
        """Read and write until either side ends the stream.

        If this side ended it, send the node the reason, and return the reason.
        """
        works = (self._read(context), self._write(context), self._watch())
        tasks = [asyncio.create_task(work) for work in works]
        ends: list[asyncio.Future[Any]] = [*tasks, self._end_reason]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._end_reason.done():
                await self._part(context, self._end_reason.result())
                return self._end_reason.result()
            for task in tasks:
                if task.done() and (error := task.exception()) is not None:
                    log.info("node=%s its stream broke: %s", self.node, error)
            return None
        finally:
            for task in tasks:
                task.cancel()
            await self._work.cancel()
            self._drop_questions()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _part(self, context: Context, why: GpushareError) -> None:
        """Send the refusal once no other write is under way.

        A node that does not read blocks a write for ever.
        """
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await self._no_write_under_way.wait()
        except TimeoutError:
            return
        await refuse(context, why)

    # --- down ------------------------------------------------------------------------------------------

    async def _write(self, context: Context) -> None:
        while not self._end_reason.done():
            message = await self.mailbox.take()
            self._no_write_under_way.clear()
            await context.write(message)
            self._no_write_under_way.set()

    async def ask(self, kind: str, body: bytes, timeout_seconds: float) -> bytes:
        """Ask the node, and return the body of its answer.

        Raises TimedOut, Unavailable if the stream ends, and the error that the node answers.
        """
        number = next(self._numbers)
        question = link_pb2.Down(question=link_pb2.Question(number=number, what=kind, body=body))
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        try:
            self.put((link_pb2.Question, number), lambda: question if number in self._questions else None)
            async with asyncio.timeout(timeout_seconds):
                return await answer
        except TimeoutError:
            raise TimedOut(
                f"node {self.node} did not answer in {timeout_seconds:.0f} s",
                hint="`gpushare nodes` tells whether it is connected",
            ) from None
        finally:
            self._questions.pop(number, None)

    def _drop_questions(self) -> None:
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(Unavailable(f"the link of node {self.node} ended"))

    def _take_answer(self, message: link_pb2.Answer) -> None:
        """Pass an answer to the caller of ``ask``; drop the answer to a question that was given up."""
        answer = self._questions.get(message.number)
        if answer is None or answer.done():
            return
        if message.code:
            answer.set_exception(
                codec.refused(message.code, cut_short(message.message), cut_short(message.hint))
            )
        else:
            answer.set_result(message.body)

    def update(self, job: JobId) -> None:
        """Queue the state of a job that was submitted through this node."""
        self.put((link_pb2.JobUpdate, job), lambda: self._update(job))

    def _update(self, job: JobId) -> link_pb2.Down | None:
        update = self._origins.update_of(job)
        return None if update is None else link_pb2.Down(update=update)

    # --- up --------------------------------------------------------------------------------------------

    async def _read(self, context: Context) -> None:
        while isinstance(message := await self._next(context), link_pb2.Up):
            await self.mailbox.wait_until_below(MAX_WAITING_TO_READ)
            await self._slots.acquire()
            self._work.start(self._handle_or_log(message), over=self._slots.release)

    async def _next(self, context: Context) -> object:
        self._is_reading = True
        try:
            return await context.read()
        finally:
            self._is_reading = False
            self._messages_read += 1

    async def _watch(self) -> None:
        """End the stream once nothing came for too long while this process was reading."""
        missed, silence = 0, SILENCE_SECONDS
        while missed < SILENCE_CHECKS:
            silence = max(SILENCE_SECONDS, 3 * self._beat_seconds(len(self._loop.state.members)))
            before = self._messages_read
            await asyncio.sleep(silence / SILENCE_CHECKS)
            missed = missed + 1 if self._is_reading and self._messages_read == before else 0
        self.end(TimedOut(f"node {self.node} said nothing for {silence:.0f} s"))

    async def _handle_or_log(self, message: link_pb2.Up) -> None:
        try:
            await self._handle(message)
        except GpushareError as error:
            log.warning("node=%s a message was refused: %s", self.node, error)

    async def _handle(self, message: link_pb2.Up) -> None:
        bounds.check_message(message)
        match message.WhichOneof("what"):
            case "beat":
                await self._beat(message.beat)
            case "report":
                # Only a registration may introduce unknown jobs and their owners.
                report = replace(codec.read_report(message.report), spec=None, request=None)
                await self._deliver(AttemptReported(self.node, report))
            case "stale":
                stale = codec.read_stale(message.stale)
                codec.check_epoch(stale.epoch, self._loop.state.epoch)
                await self._deliver(AttemptReported(self.node, stale))
            case "job":
                await self._job(message.job)
            case "cancel":
                await self._cancel(message.cancel)
            case "client_gone":
                await self._client_gone(message.client_gone)
            case "answer":
                self._take_answer(message.answer)
            case "trust_seen":
                self._trust_seen(message.trust_seen)
            case other:
                log.debug("node=%s said %s, which this version does not know", self.node, other)

    async def _beat(self, beat: link_pb2.Beat) -> None:
        """Acknowledge a heartbeat only once the loop has applied it: the node relies on that."""
        inventory = codec.read_inventory(beat.inventory) if beat.inventory else None
        free = self._heartbeat_reader.read(beat.free) if beat.free else None
        await self._loop.send(NodeHeartbeat(self.node, inventory, free))
        self.put(link_pb2.BeatAck, lambda: self._beat_ack(beat.seq))

    def _beat_ack(self, seq: int) -> link_pb2.Down:
        seconds = self._beat_seconds(len(self._loop.state.members))
        return link_pb2.Down(
            beat_ack=link_pb2.BeatAck(seq=seq, revision=self._loop.revision, beat_seconds=seconds)
        )

    async def _deliver(self, event: PoolEvent) -> None:
        """Send the event until the store has it: a node sends it only once in a stream."""
        await send_until_taken(self._loop.send, event, f"node {self.node}")

    async def _job(self, message: link_pb2.OutboxJob) -> None:
        job = JobId(message.job_id)
        try:
            await self._deliver(self._submitted(job, message))
        except GpushareError as error:
            self._audit.refused("Jobs/Submit", message, self._asker(None), error)
            self._acknowledge(job, error, cancel=False)
        else:
            self._acknowledge(job, None, cancel=False)
            self.update(job)

    def _submitted(self, job: JobId, message: link_pb2.OutboxJob) -> JobSubmitted:
        if _JOB_ID.fullmatch(job) is None:
            raise RequestError(f"{shown(job)} is no name of a job")
        spec = codec.read_spec(message.spec)
        owner = self._guard.owner_of(self.node, message.assertion, codec.job_digest(job, message.spec))
        spec = replace(spec, owner=owner, origin=self.node)
        if not is_own_id(job, spec):
            raise RequestError(
                f"{shown(job)} is not the id of a job of {owner.principal}",
                hint="gpushared of the node gives jobs their ids; is it of this version (`gpushare nodes`)?",
            )
        return JobSubmitted(
            job,
            spec,
            held=message.held,
            priority=message.priority,
            old=message.old,
            kept_seconds=message.kept_seconds,
        )

    async def _cancel(self, message: link_pb2.OutboxCancel) -> None:
        job, owner = JobId(message.job_id), None
        try:
            grace = min(max(0, message.grace_seconds), MAX_GRACE_SECONDS)
            digest = codec.cancel_digest(job, message.grace_seconds)
            owner = self._guard.owner_of(self.node, message.assertion, digest)
            await self._deliver(CancelAsked(job, owner, grace))
        except GpushareError as error:
            self._audit.refused("Jobs/Cancel", message, self._asker(owner), error)
            self._acknowledge(job, error, cancel=True)
        else:
            self._audit.answered("Jobs/Cancel", message, self._asker(owner))
            self._acknowledge(job, None, cancel=True)

    async def _client_gone(self, message: link_pb2.ClientGone) -> None:
        job = JobId(message.job_id)
        owner = self._guard.owner_of(self.node, message.assertion, codec.gone_digest(job))
        await self._loop.send(ClientGone(job, owner))

    def _asker(self, owner: Owner | None) -> Asker:
        """Return the name for the audit. ``owner`` is None if the node may not assert the user."""
        user = f"node {self.node}" if owner is None else owner.principal
        return Asker(NOBODY_HERE, user, note=f"by node {self.node}")

    def _acknowledge(self, job: JobId, error: GpushareError | None, *, cancel: bool) -> None:
        ack = link_pb2.OutboxAck(job_id=job, cancel=cancel)
        if error is not None:
            log.info("node=%s job=%s refused: %s", self.node, shown(job), error)
            ack.code, ack.message, ack.hint = error.code, error.message, error.hint
        self.put((link_pb2.OutboxAck, job, cancel), lambda: link_pb2.Down(outbox_ack=ack))

    def _trust_seen(self, seen: link_pb2.TrustSeen) -> None:
        trust = self._guard.newer_trust(self.node, seen.generation)
        if trust is not None:
            self.send_trust(trust)

    def send_trust(self, trust: link_pb2.NewTrust) -> None:
        """Queue the anchors, each state once: a node stays behind until it has renewed its certificate."""
        if self._sent_trust != (trust.generation, trust.renew_now):
            self._sent_trust = (trust.generation, trust.renew_now)
            self.put(link_pb2.NewTrust, lambda: link_pb2.Down(trust=trust))


async def refuse(context: Context, why: GpushareError) -> None:
    """Send the reason for the end of the call, and give the node a moment to hang up.

    A call that ends while its client still writes shows the client only the end, without the last message.
    """
    await context.write(link_pb2.Down(refuse=codec.refusal(why)))
    await asyncio.sleep(LINGER_SECONDS)
