"""Explain why a request waits: its place, its expected start, and a size that would fit instead."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpushared.domain.leases.forecast import NO_START, POSITIONS, Start
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.leases.requeue import placement_request
from gpushared.domain.leases.surroundings import capacities_for, check_host, total_of_host
from gpushared.domain.model.elastic import is_elastic, least, most
from gpushared.domain.model.errors import NeverFits
from gpushared.domain.model.gpu import (
    MIB,
    WHOLE_PERMILLE,
    Gpu,
    check_any,
)
from gpushared.domain.model.instances import (
    could_do,
    describe_instances,
    never_fits_hint,
    of_kind,
    wants_instances,
    wrong_kind,
)
from gpushared.domain.model.lease import Grant, LeaseId
from gpushared.domain.model.request import Isolation, Request
from gpushared.domain.model.request_spec import describe
from gpushared.domain.model.units import (
    SMALLEST_PERMILLE,
    format_duration,
    format_memory,
    format_share,
)
from gpushared.domain.scheduling.outcome import Decision
from gpushared.domain.scheduling.pass_records import NEVER
from gpushared.domain.scheduling.placement.free_capacity import (
    FreeCapacity,
    Reason,
    Refusal,
    free_capacities,
    is_grant,
    need_on,
    place,
    refuse,
)

_NOT_FOR_LEASES = (Reason.GPU_UNHEALTHY, Reason.UNMANAGED_USE, Reason.OTHER_GPU)
"""Requests with these reasons do not wait for leases to end, so time limits predict no start."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Hold the answer to a user whose request waits. Times are epoch seconds, None = unknown."""

    position: int
    queue_length: int
    reason: Reason
    text: str
    start_from: float | None
    """The request does not start before this time; None = it may start at any moment."""
    start_to: float | None
    refusals: tuple[tuple[Reason, int, str], ...]


def waiting(
    decision: Decision,
    state: NodeState,
    queue_length: int,
    now: float,
    starts: Mapping[LeaseId, Start] | None = None,
) -> Waiting:
    """Return the explanation of one decision that granted nothing.

    ``starts`` is the result of ``forecast.starts``; without it only the head of the queue is given a time.
    """
    lease = state.leases[decision.lease]
    # A lease that gave way can be bound to the GPUs that it left.
    request = placement_request(lease, state)
    start = _start(decision, now, starts)
    text = refusal_sentence(request, decision, state, now=now)
    if start is None and (starts is not None or _is_head(decision)):
        text += _why_unknown(decision, state)
    expected = starts.get(decision.lease) if starts is not None else None
    # Once the leases give way, the sentence itself says which and why.
    is_told = decision.reason is Reason.PREEMPTING
    if start is not None and expected is not None and expected.preemption_clause and not is_told:
        text += f"; {expected.preemption_clause}"
    begin_at = state.begins_at(lease.request)
    return Waiting(
        decision.position,
        queue_length,
        decision.reason or Reason.RESOURCES,
        text,
        begin_at if begin_at is not None and now < begin_at else None,
        start,
        _counted(decision),
    )


def _is_head(decision: Decision) -> bool:
    return decision.reservation is not None and decision.reservation.head == decision.lease


def _start(decision: Decision, now: float, starts: Mapping[LeaseId, Start] | None) -> float | None:
    start = NEVER
    if starts is not None:
        start = starts.get(decision.lease, NO_START).at
    elif decision.reservation is not None and _is_head(decision):
        start = decision.reservation.start_at
    return start if now < start < NEVER else None


def _why_unknown(decision: Decision, state: NodeState) -> str:
    """Return why nobody knows the start.

    The main cause is leases without a time limit, on GPUs or ahead in the queue.
    """
    if decision.reason is Reason.HELD:
        return "; start unknown: somebody has to let it go"
    if decision.reason in _NOT_FOR_LEASES or decision.lasting:
        return ""
    if decision.position > POSITIONS:
        return f"; start unknown: more than {POSITIONS} wait before it"
    ahead = {lease.id: lease for lease in (*state.holders(), *state.waiting()[: decision.position - 1])}
    awaited = state.leases[decision.lease].request.after
    ahead |= {LeaseId(name): state.leases[LeaseId(name)] for name in awaited if LeaseId(name) in state.leases}
    count = sum(lease.request.time_limit_seconds is None for lease in ahead.values())
    if not count:
        return ""
    return f"; start unknown: {count} " + ("lease has" if count == 1 else "leases have") + " no time limit"


def _counted(decision: Decision) -> tuple[tuple[Reason, int, str], ...]:
    """Count refusals by reason, the most frequent first, each with the texts that were given for it."""
    counts = Counter(refusal.reason for refusal in decision.refusals)
    texts = {reason: sorted({r.text for r in decision.refusals if r.reason is reason}) for reason in counts}
    return tuple((reason, count, "; ".join(texts[reason])) for reason, count in counts.most_common())


def refusal_sentence(request: Request, decision: Decision, state: NodeState, now: float | None = None) -> str:
    """Return one sentence: the request's need, the free room, and the holder of the rest."""
    if decision.text:
        return decision.text
    capacities = capacities_for(request, state.capacities(), state)
    if decision.reason is Reason.QUEUE_ORDER and decision.reservation is not None:
        return f"fits, but the room is kept for {decision.reservation.head}, which waits longer"
    possible = [
        capacity
        for capacity in capacities.values()
        if (not request.gpus or capacity.gpu.id in request.gpus) and could_do(request, capacity.gpu)
        if (not request.models or capacity.gpu.name in request.models) and not capacity.apart_from
    ]
    if decision.reason is Reason.AWAY_FROM:
        names = sorted({capacity.apart_from for capacity in capacities.values() if capacity.apart_from})
        return f"keeps away from {', '.join(names)}, and no other GPU will do"
    if decision.reason is Reason.GPU_UNHEALTHY:
        noun = "MIG instance" if wants_instances(request) else "GPU"
        few = f"no healthy {noun} has" if request.gpu_count == 1 else f"too few healthy {noun}s have"
        return f"{few} room: {'; '.join(_troubles(decision.refusals, state))}"
    if not possible:
        missing = "any MIG instance" if wants_instances(request) else "any GPU"
        missing += f" that is a {' or '.join(request.models)}" if request.models else ""
        missing = "the GPU that this is bound to" if capacities and request.gpus else missing
        return f"this node does not see {missing} at the moment"
    best = max(
        possible,
        key=lambda capacity: (capacity.gpu.trouble is None, not capacity.exclusive, capacity.free_bytes),
    )
    models = f" ({' or '.join(request.models)})" if request.models else ""
    needs, offer = _needs(request, best), _offer(request, possible, best)
    return f"needs {needs}{models}; {offer}{_holder_clause(state, best, now)}"


def _troubles(refusals: Iterable[Refusal], state: NodeState) -> list[str]:
    """Return the troubles of the GPUs that refused, each trouble once with the GPUs that have it."""
    labels: dict[str, list[str]] = {}
    for refusal in refusals:
        if refusal.reason is Reason.GPU_UNHEALTHY and refusal.gpu in state.gpus:
            labels.setdefault(refusal.text, []).append(state.gpus[refusal.gpu].label)
    return [_trouble(text, sorted(gpu_labels)) for text, gpu_labels in sorted(labels.items())]


def _trouble(text: str, labels: list[str]) -> str:
    """Put the GPUs' labels before a trouble, unless the trouble is a whole sentence of its own."""
    if text[:1].isupper():
        return text
    return f"GPU {labels[0]} {text}" if len(labels) == 1 else f"each of GPUs {', '.join(labels)} {text}"


def _needs(request: Request, capacity: FreeCapacity) -> str:
    count = len(request.gpus) or request.gpu_count
    if wants_instances(request):
        return describe_instances(request)
    at_least = "at least " if is_elastic(request) else ""
    if request.wants_whole_gpus:
        return f"{at_least}{count} whole GPU" + ("s" if count > 1 else "")
    need = need_on(request, capacity.gpu)
    where = "one GPU" if count == 1 else f"each of {count} GPUs"
    share = format_share(need.compute_permille)
    return f"{at_least}{format_memory(need.memory_bytes)} and {share} of the compute on {where}"


def _offer(request: Request, capacities: Sequence[FreeCapacity], best: FreeCapacity) -> str:
    if request.wants_whole_gpus:
        free = sum(refuse(request, capacity) is None for capacity in capacities)
        return f"{free} of {len(capacities)} " + ("is free" if free == 1 else "are free")
    permille, free_bytes = max(0, best.free_permille), max(0, best.free_bytes)
    if not permille and not free_bytes:
        return f"GPU {best.gpu.index} is full" if len(capacities) == 1 else "all GPUs are full"
    return f"best is GPU {best.gpu.index} with {format_memory(free_bytes)} and {format_share(permille)} free"


def _holder_clause(state: NodeState, capacity: FreeCapacity, now: float | None) -> str:
    """Name the lease that holds the most of a GPU, and until when; or the memory used without a lease."""
    holders = [
        (grant.memory_bytes, lease)
        for lease in state.holders()
        for grant in lease.grants
        if grant.gpu == capacity.gpu.id
    ]
    size, lease = max(holders, key=lambda pair: (pair[0], -pair[1].sequence), default=(0, None))
    if capacity.stray_bytes > size:
        return f" (processes without a lease hold {format_memory(capacity.stray_bytes)})"
    if lease is None:
        return ""
    until = ""
    if lease.expires_at is not None and now is not None:
        until = f" for at most {_whole_minutes(lease.expires_at - now)} more"
    return f" ({lease.owner_name} holds {format_memory(size)}{until})"


def _whole_minutes(seconds: float) -> str:
    """Round up to whole minutes, so that the sentence does not change with every second."""
    return format_duration(max(1, math.ceil(seconds / 60)) * 60)


def check_possible(state: NodeState, request: Request) -> None:
    """Raise NeverFits if even an empty node could not grant the request, Unavailable if no GPU is known."""
    check_any(state.gpus)
    check_host(request, total_of_host(state))
    healthy = [replace(gpu, trouble=None) for gpu in state.gpus.values()]
    if not is_grant(place(request, free_capacities(healthy, (), {}))):
        _check_servers(request, healthy)
        raise NeverFits(
            f"{describe(request)} never fits on this node",
            hint=nearest_size(request, healthy),
        )


def _check_servers(request: Request, gpus: Iterable[Gpu]) -> None:
    """Raise NeverFits if the GPUs' compute mode, and nothing else, refuses the request."""
    open_to_all = [replace(gpu, exclusive_process=False) for gpu in gpus]
    if is_grant(place(request, free_capacities(open_to_all, (), {}))):
        separate = request.isolation is Isolation.SEPARATE
        subject = "a separate lease" if separate else "a lease of parts of several GPUs"
        raise NeverFits(
            f"{subject} needs an MPS server of its own, and `exclusive_process` lets each GPU have one only",
            hint="ask for a shared part of one GPU, or for whole GPUs",
        )


def nearest_size(request: Request, gpus: Iterable[Gpu]) -> str:
    """Return a hint with the nearest size that this node could grant when it is empty."""
    gpus = list(gpus)
    alike = [gpu for gpu in gpus if not request.models or gpu.name in request.models]
    candidates = sorted(of_kind(request, alike), key=lambda gpu: (-gpu.leasable_bytes, gpu.index))
    if not {gpu.id for gpu in gpus}.issuperset(request.gpus):
        return "the GPU that this is bound to is not there"
    if wants_instances(request):
        return never_fits_hint(request, alike)
    if not candidates and gpus:
        such = "such " if request.models else ""
        return f"every {such}GPU here is split by MIG; add --isolation mig to get an instance"
    if not candidates:
        return "this node has no GPU"
    largest = candidates[0].leasable_bytes
    if request.gpu_count > len(candidates):
        noun = " or ".join(request.models) or "GPU"
        several = "s" if len(candidates) != 1 and not request.models else ""
        return f"this node has {len(candidates)} {noun}{several}: --gpu {len(candidates)} is the most"
    fits = candidates[request.gpu_count - 1].leasable_bytes
    if request.memory_bytes is not None and request.memory_bytes > fits:
        return f"the most that fits is --gpu-memory {fits // MIB}m ({format_memory(fits)}) on each GPU"
    return f"{describe(request)} is more than a GPU's {format_memory(largest)}"


def nearest_permille(state: NodeState) -> int:
    """Return the largest free slice of one GPU in permille; 0 if no slice is worth naming.

    The policy decides if that slice would be granted (see ``offer``).
    """
    capacities = [
        capacity
        for capacity in state.capacities().values()
        if capacity.gpu.trouble is None
        and not capacity.exclusive
        and wrong_kind(Request(), capacity.gpu) is None
    ]
    share = max((min(capacity.free_permille, _permille_of(capacity)) for capacity in capacities), default=0)
    share = share // SMALLEST_PERMILLE * SMALLEST_PERMILLE
    return share if SMALLEST_PERMILLE <= share < WHOLE_PERMILLE else 0


def _permille_of(capacity: FreeCapacity) -> int:
    return max(0, capacity.free_bytes) * WHOLE_PERMILLE // max(1, capacity.gpu.leasable_bytes)


def bounds(request: Request, grant: Grant, gpu: Gpu) -> tuple[Grant, Grant]:
    """Return the least and the most that the request may have of this GPU, on which it has a grant."""
    if request.wants_whole_gpus or not is_elastic(request):
        return grant, grant
    low, high = need_on(least(request), gpu), need_on(most(request), gpu)
    return (
        Grant(
            grant.gpu,
            min(low.memory_bytes, grant.memory_bytes),
            min(low.compute_permille, grant.compute_permille),
        ),
        Grant(
            grant.gpu,
            max(min(high.memory_bytes, gpu.leasable_bytes), grant.memory_bytes),
            max(high.compute_permille, grant.compute_permille),
        ),
    )


def count_bounds(request: Request) -> tuple[int, int]:
    """Return the least and the most GPUs that the request may have."""
    low = len(request.gpus) or request.gpu_count
    return low, max(low, request.max_gpu_count or 0)
