"""Keep the node's link to its pool, handle its messages, and report clients that ended."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Protocol

import grpc

import gpushared
from gpushared.config.model import Config
from gpushared.daemon.tasks import within
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.jobs.member import HeartbeatReport, Inventory
from gpushared.domain.jobs.node_messages import Contact
from gpushared.domain.jobs.protocol import Order, Report, StaleEpoch
from gpushared.domain.model.coordinator_addresses import divided
from gpushared.domain.model.errors import GpushareError, StateConflict, Unavailable
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.node.jobs.order_handler import OrderHandler
from gpushared.node.pool.order_audit import OrderAudit
from gpushared.node.runtime.client_presence_checks import Processes
from gpushared.node.runtime.loop import Loop
from gpushared.pool.member.coordinator_link import PART, LinkState, MemberLink
from gpushared.pool.member.dial import Dial
from gpushared.pool.member.enrolment import Enrolment
from gpushared.pool.member.link_session import Identity
from gpushared.pool.member.membership_file import Membership
from gpushared.pool.member.node_ports import Answerer, MessageReceivers, OutboxPort, free_of, inventory_of
from gpushared.pool.member.outbox import Outbox, OutboxRecord

NAME_SERVICE_SECONDS = 5.0
NOT_DIALLED = "this node's daemon has just begun, or is ending, and has no link to the coordinator"
LOOK_SECONDS = 2.0
"""At this interval the link repeats that a client is gone, because no message acknowledges that.

The repetition stops when the job ends or its container runs.
"""
_HAS_CONTAINER = frozenset({"running", "paused"})


def in_no_pool() -> StateConflict:
    return StateConflict("this node is in no pool", hint="gpushare node join HOST --token-file FILE")


class PoolOrders:
    """Pass the orders of one pool to the order handler."""

    def __init__(self, order_handler: OrderHandler, pool: str, audit: OrderAudit) -> None:
        self._order_handler = order_handler
        self._pool = pool
        self._audit = audit

    async def take(self, order: Order) -> Report | StaleEpoch:
        before = self.report(order.key)
        try:
            answer = await self._order_handler.take(order, self._pool)
        except GpushareError as error:
            self._audit.refused(order, error)
            raise
        self._audit.answered(order, before, answer)
        return answer

    def reports(self) -> tuple[Report, ...]:
        return self._order_handler.reports(self._pool)

    def report(self, key: AttemptKey) -> Report | None:
        return self._order_handler.report(self._pool, key)

    def contact(self) -> Contact:
        return self._order_handler.newest_contact(self._pool)

    async def contact_made(self, sent_at: float, epoch: int, revision: int) -> None:
        await self._order_handler.contact(self._pool, sent_at, epoch=epoch, revision=revision)

    async def look(self) -> None:
        await self._order_handler.check_fences()


class LinkFacts:
    """Give the node's state for the coordinator."""

    def __init__(self, loop: Loop, pool: str, *, simulated: bool) -> None:
        self.address = ""
        """Containers of other nodes reach this node's containers at this address."""
        self._loop = loop
        self._pool = pool
        self._simulated = simulated

    def inventory(self) -> Inventory:
        return inventory_of(
            self._loop.state,
            address=self.address,
            version=gpushared.__version__,
            simulated=self._simulated,
        )

    def free(self) -> HeartbeatReport:
        return free_of(self._loop.state, self._pool)

    async def changed(self, timeout_seconds: float) -> bool:
        return await self._loop.changed(timeout_seconds)


class PoolLink:
    """Keep the link up while the node is in a pool, over joining and leaving.

    ``link`` is None while the node is in no pool. ``receivers`` outlive links.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        enrolment: Enrolment,
        order_handler: OrderHandler,
        loop: Loop,
        outbox: OutboxPort,
        troubles: Troubles,
        audit: OrderAudit,
        *,
        simulated: bool,
        answerers: Mapping[str, Answerer] | None = None,
    ) -> None:
        self.link: MemberLink | None = None
        self.receivers = MessageReceivers(
            drained=audit.drained,
            new_trust=audit.trusting(enrolment.take_trust, enrolment.trust_generation),
            trust_generation=enrolment.trust_generation,
            new_coordinators=enrolment.take_coordinators,
            answerers=answerers or {},
        )
        self._audit = audit
        self._config = config
        self._enrolment = enrolment
        self._order_handler = order_handler
        self._loop = loop
        self._outbox = outbox
        self._troubles = troubles
        self._simulated = simulated
        self._dialled = ""
        self._changed = asyncio.Event()

    @property
    def state(self) -> LinkState | None:
        """Return the link's state for people; None if the node is in no pool."""
        return None if self.link is None else self.link.state

    @property
    def connected(self) -> bool:
        """Return True if the pool's coordinator answers."""
        return self.link is not None and self.link.connected

    def connected_seconds(self) -> float:
        """Return for how long the coordinator has answered; 0 if it does not."""
        return 0.0 if self.link is None else self.link.connected_seconds()

    def away(self) -> str:
        """Explain in a sentence since when and why the coordinator does not answer.

        Empty while it answers.
        """
        if self.link is not None:
            return "" if self.link.connected else self.link.state.away
        return "this node is in no pool" if self._enrolment.membership is None else NOT_DIALLED

    def submit(self, job: JobId) -> None:
        """Send a job that came into the outbox; without a link the job waits there."""
        if self.link is not None:
            self.link.submit(job)

    def cancel(self, job: JobId) -> None:
        """Send a cancellation that came into the outbox; without a link it waits there."""
        if self.link is not None:
            self.link.cancel(job)

    def client_gone(self, job: JobId) -> None:
        """Report that an interactive job has no client any more; lost without a link, so repeat the call."""
        if self.link is not None:
            self.link.client_gone(job)

    def reload(self) -> None:
        """Connect again if the configuration names other coordinators now."""
        if self.link is not None and self._dialled not in self.link.dial.addresses.all:
            self.link.redial()

    async def changed(self, timeout_seconds: float) -> bool:
        """Wait until the node is in a pool, or in none any more; return False if the time is over first."""
        return await within(self._changed, timeout_seconds)

    async def channel(self) -> grpc.aio.Channel:
        """Return a channel to the coordinator for calls beside the stream; the caller must not close it.

        Raises StateConflict if the node is in no pool, Unavailable while the daemon begins or ends.
        """
        if self.link is None:
            if self._enrolment.membership is not None:
                raise Unavailable(f"the pool does not answer: {NOT_DIALLED}", hint="try again in a moment")
            raise in_no_pool()
        return await self.link.dial.shared_channel()

    def _addresses(self, membership: Membership) -> tuple[str, ...]:
        """Return the coordinators' addresses for nodes: the configured ones, else all that the pool has named."""
        newest = self._enrolment.membership or membership
        return divided(self._config().pool.coordinator) or newest.all_node_addresses

    async def run(self) -> None:
        """Keep the link while there is a membership, for ever."""
        while True:
            version, membership = self._enrolment.version, self._enrolment.membership
            if membership is None:
                await self._enrolment.changed(version)
            else:
                await self._keep_link(membership)

    async def _keep_link(self, membership: Membership) -> None:
        """Keep the link until the membership is in another pool or none.

        A renewed certificate only makes a lost link connect at once.
        """
        link = self._make_link(membership)
        self._set_link(link)
        unsubscribe = self._order_handler.subscribe(membership.pool, link.report)
        task = asyncio.create_task(link.run())
        watch = asyncio.create_task(self._until_other(membership, link))
        try:
            await asyncio.wait([task, watch], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            self._set_link(None)
            unsubscribe()
            for unfinished in (task, watch):
                unfinished.cancel()
            await asyncio.gather(task, watch, return_exceptions=True)
            await link.dial.close()
            self._troubles.cleared(PART)

    def _set_link(self, link: MemberLink | None) -> None:
        self.link = link
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until_other(self, membership: Membership, link: MemberLink) -> None:
        version = -1
        while _is_same_membership(self._enrolment.membership, membership):
            version = await self._enrolment.changed(version)
            link.hurry()

    def _make_link(self, membership: Membership) -> MemberLink:
        facts = LinkFacts(self._loop, membership.pool, simulated=self._simulated)
        dial = Dial(
            lambda: self._addresses(membership),
            self._enrolment.credentials,
            self._enrolment.server_name(),
            lambda: self._enrolment.version,
        )

        async def note_own_address() -> None:
            self._dialled = dial.address
            facts.address = await local_address(self._dialled)

        return MemberLink(
            Identity(
                membership.pool, NodeName(membership.node), self._loop.state.boot_id, gpushared.__version__
            ),
            dial,
            PoolOrders(self._order_handler, membership.pool, self._audit),
            facts,
            self._outbox,
            self._troubles,
            receivers=self.receivers,
            before_dialling=note_own_address,
        )


def _is_same_membership(now: Membership | None, before: Membership) -> bool:
    return now is not None and (now.pool, now.node, now.joined_at) == (
        before.pool,
        before.node,
        before.joined_at,
    )


async def local_address(coordinator: str) -> str:
    """Return the address by which this machine reaches the coordinator, so that other nodes may reach it.

    Return the host's name if the address is unknown.
    """
    host, _, port = coordinator.rpartition(":")
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(NAME_SERVICE_SECONDS):
            return await asyncio.to_thread(_route_to, host.strip("[]"), int(port))
    return socket.gethostname()


def _route_to(host: str, port: int) -> str:
    """Return the source address that the kernel would choose; connecting a datagram socket sends nothing."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, proto) as probe:
        probe.connect(address)
        name: str = probe.getsockname()[0]
        return name


class ClientEndsLink(Protocol):
    """Describe the stream to the coordinator."""

    def client_gone(self, job: JobId) -> None: ...


class PoolClients:
    """Watch the processes that wait for jobs in the outbox."""

    def __init__(self, outbox: Outbox, link: ClientEndsLink) -> None:
        self._outbox = outbox
        self._link = link

    async def run(self) -> None:
        """Watch the clients of interactive jobs, for ever."""
        processes = Processes()
        try:
            while True:
                self._look(processes)
                await within(processes.ended, LOOK_SECONDS)
                processes.ended.clear()
        finally:
            processes.close()

    def _look(self, processes: Processes) -> None:
        waiting = [record for record in self._outbox.attended() if not _has_container(record)]
        holders = {record.job: record.holder for record in waiting if record.holder is not None}
        processes.watch_only(holders.values())
        for job, holder in holders.items():
            if processes.has_ended(holder):
                self._link.client_gone(job)


def _has_container(record: OutboxRecord) -> bool:
    """Return True if the pool's last report shows a container; the job's node knows better, and decides."""
    view = record.mirrored()
    return view is not None and view.state in _HAS_CONTAINER
