"""Derive a coordinator's order to a node about a part of an attempt from the job as it stands now.

An order follows from the job alone, so that sending it again after a silence, a restart or a lost message is
the same as sending it first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from zlib import crc32

from gpushared.domain.jobs.coordinator_events import Send
from gpushared.domain.jobs.coordinator_state import (
    PoolDraft,
    Wake,
    is_gang,
    is_over,
)
from gpushared.domain.jobs.job import (
    HERE,
    AttemptState,
    Cancelling,
    Job,
    NodeName,
    Part,
    Placing,
    Queued,
    Running,
)
from gpushared.domain.jobs.protocol import CancelPart, Commit, Gang, Order, Place, Query
from gpushared.domain.model.lease import AttemptKey
from gpushared.domain.model.request import Request

PORTS = range(20_000, 30_000)
"""The port of a gang's first node is taken from this range, below those that Linux gives to connections."""


def order_for(job: Job, part: Part, draft: PoolDraft) -> Order | None:
    """Return the order to a part's node, or None if the node's report must come first."""
    epoch = draft.state.epoch
    match job.state:
        case Cancelling(attempt, by=by, grace_seconds=grace) if not is_over(part):
            return CancelPart(AttemptKey(job.id, attempt), epoch, grace, by)
        case Placing(attempt) if part.state is None:
            return _place(job, AttemptKey(job.id, attempt), part, draft)
        case Placing(attempt, committed=True) | Running(attempt) if (
            part.state is AttemptState.RESERVED and is_gang(job.spec) and knows_ranks(job)
        ):
            return Commit(AttemptKey(job.id, attempt), epoch, _facts(job, part))
    return None


def send(job: Job, draft: PoolDraft) -> None:
    """Send the orders to each of a job's nodes, and set an alarm to send them again."""
    waits = False
    for part in job.parts:
        order = order_for(job, part, draft)
        if order is not None:
            draft.do(Send(part.node, order))
            waits = True
    if waits:
        draft.wake(draft.now + draft.rules.resend_seconds, Wake.RESEND, job.id)


def resend(job: Job, draft: PoolDraft) -> None:
    """Send the job's orders again to the connected nodes; other nodes get them when they reconnect."""
    waits = False
    if isinstance(job.state, Queued) and job.presumed is not None:
        _ask_how_it_ended(job, job.presumed, draft)
    for part in job.parts:
        member, order = draft.state.members.get(part.node), order_for(job, part, draft)
        if order is not None and member is not None and member.connected:
            draft.do(Send(part.node, order))
            waits = True
    if waits:
        draft.wake(draft.now + draft.rules.resend_seconds, Wake.RESEND, job.id)


def send_end(node: NodeName, key: AttemptKey, draft: PoolDraft) -> None:
    """Order a node to end an attempt that does not belong to its job any more."""
    order = CancelPart(key, draft.state.epoch, draft.rules.stop_grace_seconds, "the coordinator")
    draft.do(Send(node, order))


def send_ends(job: Job, draft: PoolDraft, *, spared: NodeName | None = None) -> None:
    """Order the nodes of the job's present attempt to end it, except on the node that is spared."""
    if isinstance(job.state, Placing | Running | Cancelling):
        key = AttemptKey(job.id, job.state.attempt)
        for part in job.state.parts:
            if part.node != spared and not is_over(part):
                send_end(part.node, key, draft)


def _ask_how_it_ended(job: Job, part: Part, draft: PoolDraft) -> None:
    """Ask the node of a presumed end for the true end; until it has answered, the job does not go there."""
    member = draft.state.members.get(part.node)
    if member is not None and member.connected:
        draft.do(Send(part.node, Query(AttemptKey(job.id, job.attempts), draft.state.epoch)))
    draft.wake(draft.now + draft.rules.resend_seconds, Wake.RESEND, job.id)


def port_for(key: AttemptKey, used_ports: Collection[int] = ()) -> int:
    """Return the port where a gang's attempt meets.

    Each attempt gets another port, in case the first is in use.
    """
    first = crc32(str(key).encode()) % len(PORTS)
    ports = (PORTS[(first + step) % len(PORTS)] for step in range(len(PORTS)))
    return next((port for port in ports if port not in used_ports), PORTS[first])


def knows_ranks(job: Job) -> bool:
    """Return True if the rank of each part of a gang is known.

    The ranks are unknown if nodes reported the gang to a coordinator that had forgotten it: some parts of the
    gang may already have received their ranks.
    """
    return any(part.port for part in job.parts)


def name_of(node: NodeName) -> str:
    """Return ``node b``, or ``this node`` among a node's own jobs."""
    return "this node" if node == HERE else f"node {node}"


def _place(job: Job, key: AttemptKey, part: Part, draft: PoolDraft) -> Place:
    here = draft.rules.here
    return Place(
        key,
        draft.state.epoch,
        job.spec,
        part.request if here else for_node(part.request),
        wait=here and not job.spec.immediate,
        gang=is_gang(job.spec) and not here,
        reserve_seconds=draft.rules.reserve_seconds,
    )


def for_node(request: Request) -> Request:
    """Return the request without its relations to other jobs, which the node does not know."""
    if not (request.near or request.away_from or request.after or request.begin_at):
        return request
    return replace(request, near=(), away_from=(), after=(), begin_at=None)


def _facts(job: Job, part: Part) -> Gang:
    parts = sorted(job.parts, key=lambda part: part.rank)
    return Gang(
        hosts=tuple(part.address or part.node for part in parts),
        rank=part.rank,
        port=parts[0].port,
        gpus=tuple(part.request.gpu_count for part in parts),
    )
