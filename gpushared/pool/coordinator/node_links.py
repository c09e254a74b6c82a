"""Serve the coordinator's end of the nodes' links: admit nodes, keep one stream a node, send messages.

A stream keeps nothing durable by itself. Messages to a node may be lost, and the next registration repeats
them. The coordinator answers a node's message only after the message's effect is durable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, assert_never

import grpc

from gpushared.api.v1 import link_pb2, link_pb2_grpc
from gpushared.daemon.tasks import TaskSet
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.coordinator_events import (
    NodeDisconnected,
    NodeRegistered,
    PoolInstruction,
    Send,
    TellOrigin,
)
from gpushared.domain.jobs.job import HERE, NodeName
from gpushared.domain.jobs.protocol import GiveBack, Order, Report
from gpushared.domain.jobs.staleness_claims import ClaimRefused
from gpushared.domain.model.errors import (
    GpushareError,
    LimitReached,
    NotLeader,
    PermissionRefused,
    RequestError,
    StateConflict,
    TimedOut,
    Unavailable,
)
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.units import shown
from gpushared.jobs.job_requests import is_own_id
from gpushared.jobs.standby import Standby
from gpushared.net.call_audit import Asker, CallAudit
from gpushared.net.call_checks import abort, whole_number
from gpushared.net.intake import CallsUnderWay
from gpushared.net.limits import host_of
from gpushared.pool.coordinator.node_stream import (
    Context,
    LinkGuardPort,
    NodeStream,
    Origins,
    StreamLoop,
    refuse,
    usual_beat,
)
from gpushared.pool.coordinator.registrations import RegistrationRead, Registrations
from gpushared.pool.link import codec
from gpushared.pool.tunnels.tunnel_frames import Data
from gpushared.storage.audit.line import NOBODY_HERE

log = logging.getLogger(__name__)

DISCONNECT_RETRY_SECONDS = 1.0
MAX_WAITS_OF_A_NODE = 4
"""Bound the calls with which one node waits at a standby: older calls may be half-open for a while."""
MAX_REFUSED_KEPT = 1024
"""Remember the refusals of this many callers, so that the log shows each only once."""

TunnelContext = grpc.aio.ServicerContext[Data, Data]


class TunnelStreams(Protocol):
    """Serve the streams that nodes open after OpenTunnel."""

    async def serve(self, node: NodeName, context: TunnelContext) -> None: ...


class LinkService(link_pb2_grpc.NodeLinkServicer):
    """Serve NodeLink. ``tunnels`` may be set later; until then nodes receive a refusal."""

    def __init__(
        self,
        loop: StreamLoop,
        guard: LinkGuardPort,
        origins: Origins,
        tunnels: TunnelStreams | None = None,
        beat: Callable[[int], float] = usual_beat,
        *,
        troubles: Troubles | None = None,
        registrations: Registrations | None = None,
        audit: CallAudit | None = None,
    ) -> None:
        """``beat`` returns the seconds between a node's heartbeats for this many nodes."""
        self.tunnels = tunnels
        self._loop = loop
        self._guard = guard
        self._origins = origins
        self._beat_seconds = beat
        self._streams: dict[NodeName, NodeStream] = {}
        self._disconnect_tasks = TaskSet()
        self._refused: dict[str, str] = {}
        self._troubles = troubles or Troubles()
        self.registrations = registrations or Registrations()
        self._audit = audit or CallAudit()
        self._closed = False
        self._waiting = CallsUnderWay(MAX_WAITS_OF_A_NODE)
        self.standby: Callable[[], Standby | None] = lambda: None
        """Return how the coordinator stands by, or None while it leads."""
        self.addresses: Callable[[], tuple[Sequence[str], Sequence[str]]] = lambda: ((), ())
        """Return the addresses of all coordinators: for users, and in the same order for nodes."""

    # --- messages to nodes -----------------------------------------------------------------------------

    def perform(self, instruction: PoolInstruction) -> None:
        """Carry out the loop's instruction, after its cause is durable."""
        match instruction:
            case Send(node, order):
                self.send_order(node, order)
            case TellOrigin(job):
                self.send_job_update(job)
            case _:
                assert_never(instruction)

    def send_order(self, node: NodeName, order: Order) -> None:
        """Queue an order in place of an equal one that waits. Drop the order if the node is not connected."""
        stream = self._streams.get(node)
        if isinstance(order, GiveBack) and stream is not None and codec.GIVE_BACK not in stream.capabilities:
            return  # an older node ends the job when the time to claim it is over
        if stream is not None:
            stream.put((type(order), order.key), lambda: link_pb2.Down(order=codec.order_bytes(order)))

    def send_job_update(self, job: JobId) -> None:
        """Send the job's state to the node through which the job was submitted."""
        origin = self._origins.origin_of(job)
        if origin != HERE and (stream := self._streams.get(origin)) is not None:
            stream.update(job)

    def send_drain(self, node: NodeName) -> None:
        """Send the node's drain state and its reason to the node."""
        if (stream := self._streams.get(node)) is not None:
            stream.put(link_pb2.DrainNotice, lambda: self._drain_notice(node))

    def send_trust(self, trust: link_pb2.NewTrust) -> None:
        """Send the anchors to trust from now on to all connected nodes.

        The other nodes receive the anchors at their next registration.
        """
        for stream in self._streams.values():
            if codec.TRUST in stream.capabilities:
                stream.send_trust(trust)

    def open_tunnel(self, node: NodeName, tunnel: link_pb2.OpenTunnel) -> None:
        """Request a node to call ``Serve``.

        Raises Unavailable if the node is not connected, StateConflict if its version has no tunnels.
        """
        stream = self._connected_stream(node)
        if codec.TUNNEL not in stream.capabilities:
            raise StateConflict(f"node {node} cannot open tunnels", hint="update gpushared there")
        subject = (link_pb2.OpenTunnel, tunnel.tunnel_id)
        stream.put(subject, lambda: link_pb2.Down(tunnel=tunnel))

    async def ask(self, node: NodeName, kind: str, body: bytes, timeout_seconds: float) -> bytes:
        """Ask a node, and return the body of its answer.

        Raises Unavailable, StateConflict for a node that cannot answer, TimedOut, and the node's own error.
        """
        stream = self._connected_stream(node)
        if codec.answers(kind) not in stream.capabilities:
            raise StateConflict(f"node {node} cannot tell its {kind}", hint="update gpushared there")
        return await stream.ask(kind, body, timeout_seconds)

    def _connected_stream(self, node: NodeName) -> NodeStream:
        """Return the node's stream. Raises Unavailable if the node is not connected."""
        stream = self._streams.get(node)
        if stream is None:
            raise Unavailable(
                f"node {node} is not connected to the coordinator",
                hint="`gpushare nodes` tells since when; it reconnects by itself",
            )
        return stream

    def answering(self, kind: str) -> frozenset[NodeName]:
        """Return the connected nodes that answer questions of this kind."""
        capability = codec.answers(kind)
        return frozenset(node for node, stream in self._streams.items() if capability in stream.capabilities)

    def drop(self, node: NodeName, why: GpushareError) -> None:
        """End the stream of a node that was forgotten or whose certificate was revoked."""
        self._troubles.cleared(_claim_of(node))
        if (stream := self._streams.get(node)) is not None:
            stream.end(why)

    def renew(self) -> None:
        """End all streams because the epoch rose; each node receives it at its next registration."""
        for stream in self._streams.values():
            stream.end(Unavailable("this coordinator leads with a new epoch", hint="dialled again by itself"))

    def connected(self) -> frozenset[NodeName]:
        return frozenset(self._streams)

    async def close(self) -> None:
        """End all streams because this coordinator ends; the nodes dial again by themselves."""
        self._closed = True
        for stream in self._streams.values():
            stream.end(Unavailable("the coordinator is ending", hint="it is dialled again by itself"))
        await self._disconnect_tasks.cancel()

    # --- streams ---------------------------------------------------------------------------------------

    async def Connect(  # type: ignore[override]  # noqa: N802 - gRPC's name
        self, _requests: object, context: Context
    ) -> None:
        """Serve a link. The stubs know only generators; a stream also offers ``context.write``."""
        node = NodeName("")
        try:
            node = self._guard.node_of(context.auth_context())
            if await self._until_leading(node, context):
                self._guard.node_of(context.auth_context())  # the certificate may be revoked by now
            self._check_member(node)
            await accept(context)
            await self._serve(await self._register(node, context), context)
        except NotLeader as error:
            await abort(context, error)
        except GpushareError as error:
            self._note_refusal(node, error, context)
            await refuse(context, error)

    async def Serve(  # type: ignore[override]  # noqa: N802 - gRPC's name
        self, _requests: object, context: TunnelContext
    ) -> None:
        """Serve a tunnel's bytes; every node that may connect may open one."""
        try:
            node = self._guard.node_of(context.auth_context())
            self._check_member(node)
            if self.tunnels is None:
                raise Unavailable("this coordinator has no tunnels")
            await self.tunnels.serve(node, context)
        except GpushareError as error:
            await abort(context, error)

    async def _until_leading(self, node: NodeName, context: Context) -> bool:
        """Return True if the node had to wait. Raises NotLeader while this coordinator stands by, LimitReached.

        A node that has asked all coordinators in vain may wait here until one leads; so it need not ask again
        and again.
        """
        standby = self.standby()
        if standby is None:
            return False
        metadata = dict(context.invocation_metadata() or ())
        seconds = whole_number(metadata.get(codec.WAIT_METADATA))
        if not seconds:
            raise standby.refusal()
        await accept(context)
        with self._waiting.of(f"node {node}"):
            await standby.until_leading(seconds, whole_number(metadata.get(codec.LOST_METADATA)))
        return True

    def _check_member(self, node: NodeName) -> None:
        """Raises PermissionRefused if the node is no member."""
        member = self._loop.state.members.get(node)
        if member is None or member.forgotten_at is not None:
            relation = "was forgotten by" if member is not None else "is not enrolled in"
            raise PermissionRefused(
                f"node {node} {relation} the pool {self._guard.pool} as this coordinator knows it",
                hint="join again: `gpushare pool token` there, then `gpushare node join` here; if the node "
                "was not to be here at all, is this another coordinator of the same name, or an old copy?",
            )

    async def _register(self, node: NodeName, context: Context) -> NodeStream:
        """Read a node's registration, apply it, and return the stream that replaces the node's older one.

        Raises RequestError, StateConflict, PermissionRefused, TimedOut, LimitReached.
        """
        async with self.registrations.of(node, context) as registration:
            event = self._registration_event(node, registration)
            stream = self._stream(node, registration.message)
            self._replace(stream, context)
            try:
                await self._apply_registration(event, stream)
                self._send_free_allowance(registration.message, stream)
            except BaseException:
                self._remove(stream)
                raise
            log.info("node=%s connected from=%s reports=%d", node, context.peer(), len(registration.reports))
        return stream

    async def _apply_registration(self, event: NodeRegistered, stream: NodeStream) -> None:
        """Send the registration to the loop. Raises the stream's end reason if the registration ended it.

        Orders that it causes wait in the mailbox until the welcome is sent.
        """
        await self._loop.send(event)
        if stream.end_reason is not None:
            # The welcome must not carry the epoch that just rose for this registration. The node would name
            # that epoch in its next registration, as an epoch of another coordinator, and so on for ever.
            raise stream.end_reason

    def _send_free_allowance(self, registration: link_pb2.Hello, stream: NodeStream) -> None:
        if (allowance := codec.without_shares(registration.free)) is not None:
            stream.put(link_pb2.Allowance, lambda: link_pb2.Down(allowance=allowance))

    def _registration_event(self, node: NodeName, read: RegistrationRead) -> NodeRegistered:
        """Return the loop's event for a registration.

        Raises RequestError, StateConflict or PermissionRefused.
        """
        registration = read.message
        if registration.node != node:
            raise PermissionRefused(
                f"a node says that it is {shown(registration.node)}, and its certificate that it is {node}",
                hint="the name is that with which it joined; to change it, join again",
            )
        codec.check_generation(f"node {node}", registration.capabilities, registration.version)
        self._check_epoch(node, registration)
        return NodeRegistered(
            node,
            inventory=codec.read_inventory(registration.inventory),
            free=codec.read_free(registration.free),
            reports=tuple(self._with_pool_owner(report) for report in read.reports),
            seen_epoch=registration.seen_epoch,
            seen_revision=registration.seen_revision,
        )

    def _check_epoch(self, node: NodeName, registration: link_pb2.Hello) -> None:
        """Check the epoch, and log a node that has seen a newer one: the pool then recovers.

        Raises RequestError.
        """
        epoch, revision = self._loop.state.epoch, self._loop.revision
        codec.check_epoch(registration.seen_epoch, epoch)
        if registration.seen_epoch > epoch or registration.seen_revision > revision:
            log.warning(
                "node=%s has seen more of the pool: epoch %d revision %d, and ours are %d and %d",
                node, registration.seen_epoch, registration.seen_revision, epoch, revision,
            )  # fmt: skip

    def _with_pool_owner(self, report: Report) -> Report:
        """Replace the owner in a report's spec by the pool's person of that name.

        If no person can have the name, keep only the fact that the attempt exists.
        """
        if report.spec is None:
            return report
        try:
            owner = self._guard.owner_named(report.spec.owner.principal)
        except RequestError as error:
            log.warning("attempt=%s its job cannot have this owner: %s", report.key, error)
            return replace(report, spec=None)
        spec = replace(report.spec, owner=owner)
        if not is_own_id(report.key.job, spec):
            log.warning("attempt=%s it cannot be of a job of %s", report.key, owner.principal)
            return replace(report, spec=None)
        return replace(report, spec=spec)

    def _stream(self, node: NodeName, registration: link_pb2.Hello) -> NodeStream:
        return NodeStream(
            node, registration, self._loop, self._guard, self._origins, self._beat_seconds, self._audit
        )

    async def _serve(self, stream: NodeStream, context: Context) -> None:
        try:
            self._refused.pop(stream.node, None)
            self._troubles.cleared(_claim_of(stream.node))
            await context.write(link_pb2.Down(welcome=self._welcome()))
            self._send_present_drain(stream.node)
            why = await stream.talk(context)
            if why is not None:
                self._note_refusal(stream.node, why, context)
        finally:
            self._remove(stream)

    def _remove(self, stream: NodeStream) -> None:
        if self._streams.get(stream.node) is stream:
            del self._streams[stream.node]
            self._report_disconnect(stream.node)

    def _replace(self, stream: NodeStream, context: Context) -> None:
        """Replace the older stream, which may be a half-open remainder without a reader."""
        older = self._streams.get(stream.node)
        self._streams[stream.node] = stream
        if older is not None:
            older.end(
                StateConflict(
                    f"another stream of node {stream.node} took over, from {context.peer()}",
                    hint="does a copy of this machine run, with the same certificate?",
                )
            )

    def _welcome(self) -> link_pb2.Welcome:
        users, nodes = self.addresses()
        return link_pb2.Welcome(
            pool=self._guard.pool,
            epoch=self._loop.state.epoch,
            revision=self._loop.revision,
            beat_seconds=self._beat_seconds(len(self._loop.state.members)),
            now=time.time(),
            capabilities=codec.CAPABILITIES,
            addresses=users,
            node_addresses=nodes,
        )

    def _send_present_drain(self, node: NodeName) -> None:
        member = self._loop.state.members.get(node)
        if member is not None and member.drained_by:
            self.send_drain(node)

    def _drain_notice(self, node: NodeName) -> link_pb2.Down | None:
        member = self._loop.state.members.get(node)
        if member is None:
            return None
        return link_pb2.Down(drain=link_pb2.DrainNotice(reason=member.drain_reason, by=member.drained_by))

    def _report_disconnect(self, node: NodeName) -> None:
        """Report the end of the stream in a separate task, because the call that ends is being cancelled."""
        if self._closed:
            return
        self._disconnect_tasks.start(self._disconnected(node))

    async def _disconnected(self, node: NodeName) -> None:
        while node not in self._streams:
            try:
                await self._loop.send(NodeDisconnected(node))
            except (Unavailable, TimedOut, LimitReached):
                await asyncio.sleep(DISCONNECT_RETRY_SECONDS)
            except GpushareError as error:
                log.warning("node=%s its disconnection was not stored: %s", node, error)
                return
            else:
                log.info("node=%s disconnected", node)
                return

    def _note_refusal(self, node: NodeName, error: GpushareError, context: Context) -> None:
        """Audit the refusal of a node, and log it once until its reason changes: nodes dial again and again."""
        if isinstance(error, ClaimRefused):
            self._troubles.raised(_claim_of(node), str(error))
        host = host_of(context.peer())
        caller = node or host
        asker = Asker(NOBODY_HERE, f"node {node}" if node else host, note=f"from {host}")
        self._audit.refused("NodeLink/Connect", None, asker, error)
        if self._refused.get(caller) != str(error):
            log.warning("node=%s from=%s refused: %s", node or "?", context.peer(), error)
        if caller in self._refused or len(self._refused) < MAX_REFUSED_KEPT:
            self._refused[caller] = str(error)


def _claim_of(node: NodeName) -> str:
    """Return the part for the trouble of a node that claims too often to have seen a newer pool."""
    return f"claim-{node}"


async def accept(context: Context) -> None:
    """Show the node that this coordinator is alive, before the registration is read.

    A second call does nothing.
    """
    with suppress(grpc.aio.UsageError):
        await context.send_initial_metadata(())
