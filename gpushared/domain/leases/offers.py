"""Offer a request: the rules themselves decide on it in a copy of the state, so the real state stays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpushared.domain.leases.events import RequestSubmitted
from gpushared.domain.leases.explain import Waiting, nearest_permille, waiting
from gpushared.domain.leases.forecast import in_order_of_start, starts
from gpushared.domain.leases.granting import decisions
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.leases.requeue import PreemptionStep, step_of
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.gpu import WHOLE_PERMILLE
from gpushared.domain.model.instances import wants_instances
from gpushared.domain.model.lease import Grant, Lease, Reserved
from gpushared.domain.model.request import Caller, Isolation, Request
from gpushared.domain.model.units import format_share


@dataclass(frozen=True, slots=True)
class WouldGiveWay:
    """Name a lease that would give way, and how."""

    lease: Lease
    step: PreemptionStep


@dataclass(frozen=True, slots=True)
class Offer:
    """Describe the answer that a request would get. Times are epoch seconds, None = unknown.

    Attributes:
        project: The project whose quota the lease would count against.
        starts_now: The request would be granted at once, on ``grants``.
        grants: The GPUs on which the lease would start, as far as known.
        start_to: The latest start, if every lease uses its whole time limit.
        gives_way: The leases that would have to leave.
        why: The reason why they would have to.
        waiting: The explanation of the wait.
        fits_now: A sentence on what would be granted at once instead; empty for nothing.
    """

    project: str
    starts_now: bool
    grants: tuple[Grant, ...] = ()
    start_to: float | None = None
    gives_way: tuple[WouldGiveWay, ...] = ()
    why: str = ""
    waiting: Waiting | None = None
    fits_now: str = ""


def offer(state: NodeState, request: Request, caller: Caller, now: float) -> Offer:
    """Return the answer that ``request`` would get now; raises the errors that asking would raise."""
    after, lease = _submitted(state, request, caller, now)
    if isinstance(lease.state, Reserved):
        return Offer(lease.payer, starts_now=True, grants=lease.grants, start_to=now)
    queue = decisions(after, now)
    expected_starts = starts(after, now, queue)
    decision = next(d for d in in_order_of_start(queue, expected_starts) if d.lease == lease.id)
    start = expected_starts.get(lease.id)
    promised = lease.preemption.promised
    victims = promised.victims if promised else ()
    return Offer(
        lease.payer,
        starts_now=False,
        grants=start.grants if start else promised.grants if promised else (),
        start_to=start.at if start else None,
        gives_way=tuple(
            WouldGiveWay(state.leases[victim], step_of(state.leases[victim], state)) for victim in victims
        ),
        why=promised.why if promised else "",
        waiting=waiting(decision, after, len(queue), now, expected_starts),
        fits_now=fits_now(state, request, caller, now),
    )


def fits_instead(state: NodeState, lease: Lease, now: float) -> str:
    """Return a sentence on what would be granted at once instead of a waiting lease; empty for nothing."""
    others = {name: other for name, other in state.leases.items() if name != lease.id}
    caller = Caller(lease.owner_uid, lease.owner_uid, lease.owner_name)
    return fits_now(replace(state, leases=others), lease.request, caller, now)


def fits_now(state: NodeState, request: Request, caller: Caller, now: float) -> str:
    """Return the largest of a few smaller requests that would be granted at once, as a sentence."""
    if wants_instances(request) or request.gpus or request.begin_at is not None or request.after:
        return ""
    for text, smaller in _smaller(state, request):
        try:
            _, lease = _submitted(state, smaller, caller, now)
        except GpushareError:
            continue
        if isinstance(lease.state, Reserved):
            gpus = ", ".join(state.gpus[grant.gpu].label for grant in lease.grants)
            return f"{text} would fit on GPU {gpus} now"
    return ""


def _submitted(state: NodeState, request: Request, caller: Caller, now: float) -> tuple[NodeState, Lease]:
    step = handle(state, RequestSubmitted(request, caller), now)
    assert step.lease is not None, "a request is answered with its lease"
    return step.state, step.lease


def _smaller(state: NodeState, request: Request) -> Iterable[tuple[str, Request]]:
    """Yield requests for fewer GPUs, then one for the largest part of one GPU that has room."""
    least = replace(
        request,
        max_gpu_count=None,
        max_compute_permille=None,
        max_memory_bytes=None,
        max_memory_permille=None,
        compute_limit_permille=None,
    )
    share = request.compute_permille if request.compute_permille == request.memory_permille else None
    for count in range(min(request.gpu_count - 1, len(state.gpus)), 0, -1):
        if share is not None:
            size = f"{count}x{format_share(share)}" if share < WHOLE_PERMILLE else str(count)
            yield f"--gpu {size.removeprefix('1x')}", replace(least, gpu_count=count)
    part = nearest_permille(state)
    if part and (share is None or part < share):
        isolation = Isolation.SHARED if request.wants_whole_gpus else request.isolation
        sized = replace(least, gpu_count=1, memory_bytes=None, compute_permille=part, memory_permille=part)
        yield f"--gpu {format_share(part)}", replace(sized, isolation=isolation)
