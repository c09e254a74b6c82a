"""Declare the link's interfaces to the node, and collect the node's facts for its coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from gpushared.api.v1 import link_pb2
from gpushared.domain.jobs.job import JobSpec
from gpushared.domain.jobs.member import HeartbeatReport, Holding, Inventory
from gpushared.domain.jobs.node_messages import Contact
from gpushared.domain.jobs.protocol import Order, Report, StaleEpoch
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.lease import AttemptKey, JobId, Lease

STRAY_STEP_BYTES = 16 * MIB
"""Report stray memory in steps, rounded up, because its size always changes."""


class OrderPort(Protocol):
    """Keep the node's log of this coordinator's orders.

    An error of the tree means that nothing was written.
    """

    async def take(self, order: Order) -> Report | StaleEpoch:
        """Take an order and return the answer, once it is durable."""
        ...

    def reports(self) -> tuple[Report, ...]:
        """Return reports on all recorded attempts, finished ones too, with their specs."""
        ...

    def report(self, key: AttemptKey) -> Report | None:
        """Return the current report on an attempt, or None for an unknown attempt."""
        ...

    def contact(self) -> Contact:
        """Return the newest contact with this coordinator: the highest epoch and revision."""
        ...

    async def contact_made(self, sent_at: float, epoch: int, revision: int) -> None:
        """Note that a message sent at ``sent_at`` (CLOCK_BOOTTIME) was acknowledged.

        The note is durable if the epoch rose.
        """
        ...

    async def look(self) -> None:
        """End attempts that must not run any longer because contact was lost for too long."""
        ...


class NodeFacts(Protocol):
    """Provide the facts about the node and its equipment."""

    def inventory(self) -> Inventory: ...

    def free(self) -> HeartbeatReport: ...

    async def changed(self, timeout_seconds: float) -> bool:
        """Wait until either may have changed; return False if the time ends first."""
        ...


@dataclass(frozen=True, slots=True)
class OutboxJob:
    """Hold a job of the outbox: it was submitted here, and no coordinator has reported its end.

    ``kept_seconds`` is how long ago it was submitted.
    """

    spec: JobSpec
    held: bool = False
    priority: int = 0
    kept_seconds: float = 0.0


class OutboxPort(Protocol):
    """Hold jobs for the pool that were submitted on this node, and their users' requests on them."""

    def jobs(self) -> tuple[JobId, ...]:
        """Return the jobs in the order of their submission."""
        ...

    def job(self, job: JobId) -> OutboxJob | None: ...

    def cancels(self) -> Mapping[JobId, int]:
        """Return the grace seconds of the cancellations that no coordinator has acknowledged."""
        ...

    def vouch(self, job: JobId, digest: bytes) -> bytes:
        """Sign the node's assertion of the user who submits the job."""
        ...

    def vouch_cancel(self, job: JobId, digest: bytes) -> bytes:
        """Sign the node's assertion of the user who cancels the job."""
        ...

    async def taken(self, job: JobId, refusal: GpushareError | None) -> None:
        """Record that the coordinator accepted the job, or refused it."""
        ...

    async def cancelled(self, job: JobId, refusal: GpushareError | None) -> None:
        """Record that the coordinator accepted the cancellation, or refused it."""
        ...

    async def updated(self, update: link_pb2.JobUpdate) -> None:
        """Record the job's state as the pool reports it."""
        ...


Answerer = Callable[[bytes], Awaitable[bytes]]
"""Answer one kind of the coordinator's questions. Raises errors of the tree, which the coordinator is told."""


async def _no_trust(_: link_pb2.NewTrust) -> int:
    return 0


async def _no_coordinators(_: link_pb2.Welcome) -> None:
    return


@dataclass(slots=True)
class MessageReceivers:
    """Hold the other receivers of the coordinator's messages; each may be set later."""

    open_tunnel: Callable[[link_pb2.OpenTunnel], None] = lambda _: None
    drained: Callable[[link_pb2.DrainNotice], None] = lambda _: None
    fell_silent: Callable[[], None] = lambda: None
    """End what still waits for an answer of the coordinator that fell silent."""
    new_trust: Callable[[link_pb2.NewTrust], Awaitable[int]] = _no_trust
    """Apply new anchors, and return the generation that is trusted now."""
    trust_generation: Callable[[], int] = lambda: 0
    new_coordinators: Callable[[link_pb2.Welcome], Awaitable[None]] = _no_coordinators
    """Keep the addresses of all coordinators, which each welcome names."""
    answerers: Mapping[str, Answerer] = field(default_factory=dict)
    """Answer the coordinator's questions, by kind; each kind is announced as a capability."""


def inventory_of(state: NodeState, *, address: str, version: str, simulated: bool) -> Inventory:
    """Return the inventory: all GPUs, healthy or not. Their troubles change; heartbeats report them."""
    return Inventory(
        gpus=tuple(replace(gpu, trouble=None) for gpu in state.gpus.values()),
        cpu_milli=state.host.cpu_milli or 0,
        memory_bytes=state.host.memory_bytes or 0,
        address=address,
        version=version,
        simulated=simulated,
    )


def free_of(state: NodeState, coordinator: str) -> HeartbeatReport:
    """Return the holdings of all leases, also of the node's own users, and the state of the GPUs.

    The report names only attempts of ``coordinator``.
    """
    troubles = [(gpu.id, gpu.trouble) for gpu in state.effective_gpus()]
    strays = [(gpu, _in_steps(size)) for gpu, size in sorted(state.stray_bytes.items()) if size > 0]
    return HeartbeatReport(
        holdings=tuple(_holding(lease, coordinator) for lease in state.holders()),
        stray_bytes=tuple(strays),
        troubles=tuple((gpu, trouble) for gpu, trouble in troubles if trouble is not None),
        waiting=len(state.waiting()),
    )


def _holding(lease: Lease, coordinator: str) -> Holding:
    return Holding(
        lease=lease.id,
        grants=lease.grants,
        owner=lease.owner_name,
        project=lease.payer,
        exclusive=lease.request.wants_whole_gpus,
        attempt=lease.attempt if lease.coordinator == coordinator else None,
    )


def _in_steps(size: int) -> int:
    return -(-size // STRAY_STEP_BYTES) * STRAY_STEP_BYTES
