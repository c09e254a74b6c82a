"""Give a lease another size, on the GPUs that it has and never on others.

A raised figure must be free there now, and kept neither for the head of the queue, where a raise follows the
rule of backfill, nor as a project's fixed quota. A lowered figure stays over the use of the lease's
processes. A figure that is not named stays as it is, but the compute of a request for memory alone goes on to
follow its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from gpushared.domain.leases.events import ResizeAsked, SettingsTaken
from gpushared.domain.leases.explain import check_possible
from gpushared.domain.leases.instructions import MakeEdits
from gpushared.domain.leases.node_rules import Action
from gpushared.domain.leases.node_state import Draft
from gpushared.domain.leases.queue_pass import fleet_of, pass_over, quota_usage
from gpushared.domain.model.elastic import (
    is_elastic,
    largest,
    least,
    most,
)
from gpushared.domain.model.errors import (
    LimitReached,
    NeverFits,
    RequestError,
    StateConflict,
    Unavailable,
)
from gpushared.domain.model.gpu import WHOLE_PERMILLE, Gpu, GpuId
from gpushared.domain.model.lease import (
    Active,
    ComputeCap,
    Draining,
    Ended,
    Grant,
    Lease,
    MemoryWall,
    Paused,
    Queued,
    Requeued,
    Reserved,
    Resuming,
    Starting,
    Suspended,
    Suspending,
    Walls,
    state_name,
)
from gpushared.domain.model.request import Isolation, Request
from gpushared.domain.model.request_spec import NewSize, describe
from gpushared.domain.model.units import format_memory, format_percent
from gpushared.domain.scheduling.gpu_amounts import sizes_of
from gpushared.domain.scheduling.holder_index import FIXED_CLASS
from gpushared.domain.scheduling.pass_records import NEVER, Plan, Reservation
from gpushared.domain.scheduling.placement.free_capacity import need_on

SAMPLE_SECONDS = 5.0
"""Samples, several a second if need be, show the use of processes; samples older than this are ignored."""

_START_HINT = (
    "`docker stop` gives it back, and `docker start` takes as much of its range as there is room for then; "
    "or ask for a new one of this size"
)

_Resizable = Reserved | Starting | Active | Paused


def resize(event: ResizeAsked, draft: Draft) -> None:
    """Give the lease its new size, or raise the reason why not. An unchanged size changes nothing."""
    lease = draft.owned(event.lease, event.caller)
    draft.answer = lease.id
    _check_state(lease, draft)
    request = _resized(lease.request, event.size)
    if isinstance(lease.state, Queued | Requeued):
        if request != lease.request:
            check_possible(draft.view(), request)
            draft.put(lease.with_request(request).note(draft.now, _story(event, lease.request, request)))
        return
    chosen = _largest(lease, request, event.size, draft)
    grants = tuple(_new_grant(grant, chosen, event.size, draft) for grant in lease.grants)
    if grants != lease.grants or _range(request) != _range(lease.request):
        _check_kind(lease, grants, draft)
        _check_room(lease, grants, draft)
        _check_use(lease, grants, draft)
        changed = _with_grants(lease.with_request(request), grants, draft)
        draft.put(changed.note(draft.now, _story(event, lease.request, request)))
        draft.do(MakeEdits(lease.id))


def _range(request: Request) -> tuple[Request, Request] | None:
    return (least(request), most(request)) if is_elastic(request) else None


def _story(event: ResizeAsked, old: Request, new: Request) -> str:
    return f"{event.caller.name} resized it from {describe(old)} to {describe(new)}"


def _check_state(lease: Lease, draft: Draft) -> None:
    _check_not_off_gpus(lease, draft)
    if lease.request.isolation is Isolation.MIG:
        raise StateConflict(
            f"lease {lease.id} is for MIG instances, whose sizes the admin made",
            hint="ask for a new one instead",
        )
    if lease.request.wants_whole_gpus:
        raise StateConflict(
            f"lease {lease.id} has whole GPUs and no size of its own",
            hint="ask for a new one instead",
        )
    if isinstance(lease.state, Reserved) and lease.state.claimed:
        raise StateConflict(
            f"a container is being created for lease {lease.id} with the size it has",
            hint="resize it when the container runs",
        )


def _check_not_off_gpus(lease: Lease, draft: Draft) -> None:
    """Raise StateConflict if the lease is over, or keeps its size until its container runs again."""
    match lease.state:
        case Draining() | Ended():
            raise StateConflict(
                f"lease {lease.id} is {state_name(lease.state)}",
                hint="ask for a new one with `gpushare run`",
            )
        case Suspending() | Suspended() | Resuming():
            raise StateConflict(
                f"lease {lease.id} is {state_name(lease.state)} and comes back with the size it has",
                hint=f"`gpushare resume {lease.id}` brings it back when there is room; resize it then",
            )
        case Requeued() if not draft.means.binds_late:
            raise StateConflict(
                f"lease {lease.id} is requeued, and its container starts with the size it was created with",
                hint="resize it when the container runs, or ask for a new one with `gpushare run`",
            )
        case Queued() | Requeued() | Reserved() | Starting() | Active() | Paused():
            pass
        case unreachable:
            assert_never(unreachable)


def _resized(request: Request, size: NewSize) -> Request:
    count = len(request.gpus) or request.gpu_count
    if size.gpu_count not in (1, count) or size.max_gpu_count:
        raise RequestError(
            f"a lease of {count} GPU{'s' if count > 1 else ''} keeps this number of GPUs",
            hint="write the part of each GPU, such as --gpu 0.5",
        )
    if size.memory_bytes is not None or size.memory_permille is not None:
        request = replace(
            request,
            memory_bytes=size.memory_bytes,
            memory_permille=size.memory_permille,
            max_memory_bytes=size.max_memory_bytes,
            max_memory_permille=size.max_memory_permille,
        )
    if size.compute_permille is not None:
        request = replace(
            request,
            compute_permille=size.compute_permille,
            max_compute_permille=size.max_compute_permille,
            compute_limit_permille=size.compute_limit_permille,
        )
    return request


def _largest(lease: Lease, request: Request, size: NewSize, draft: Draft) -> Request:
    """Return the request's new size; a range gets as much as the lease's GPUs have room for now.

    A lease that shares its GPUs gets less than all of them (see ``_check_kind``).
    """
    if not is_elastic(request):
        return request
    chosen = least(request)
    plan = pass_over(draft.view(), draft.now)
    reservations = _reservations_of_others(lease, plan)

    def place(larger: Request) -> tuple[Grant, ...]:
        nonlocal chosen
        try:
            grants = tuple(_new_grant(grant, larger, size, draft) for grant in lease.grants)
            if _is_alone(grants, draft) and not _is_alone(lease.grants, draft):
                return ()
            raised = _check_free(lease, grants, draft)
            _check_limit(lease, grants, draft)
            _check_fixed(lease, grants, plan, draft)
        except (LimitReached, NeverFits, Unavailable):
            return ()
        if any(raised & reservation.gpus for reservation in reservations):
            return ()
        chosen = larger
        return grants

    largest(request, place)
    return chosen


def _new_grant(old: Grant, request: Request, size: NewSize, draft: Draft) -> Grant:
    """Return the grant of the new size.

    A figure that is not named stays to the byte, also if the GPU's leasable memory has changed meanwhile.
    """
    gpu = _gpu(old.gpu, draft)
    need = need_on(request, gpu)
    names_memory = size.memory_bytes is not None or size.memory_permille is not None
    names_compute = size.compute_permille is not None or (names_memory and request.compute_permille is None)
    new = Grant(
        old.gpu,
        need.memory_bytes if names_memory else old.memory_bytes,
        need.compute_permille if names_compute else old.compute_permille,
        need.compute_limit_permille if names_compute else old.compute_limit_permille,
    )
    if new.memory_bytes <= 0:
        raise RequestError(f"GPU {gpu.index} is too small for such a share", hint="ask for more")
    if new.memory_bytes > max(old.memory_bytes, gpu.leasable_bytes):
        raise NeverFits(
            f"{format_memory(new.memory_bytes)} never fits on GPU {gpu.index}, where this lease is",
            hint=f"it has {format_memory(gpu.leasable_bytes)} to lease",
        )
    return new


def _gpu(gpu_id: GpuId, draft: Draft) -> Gpu:
    if gpu_id not in draft.gpus:
        raise Unavailable(
            "a GPU of this lease is not known at the moment", hint="`gpushare gpus` says what is wrong"
        )
    return draft.gpus[gpu_id]


def _check_kind(lease: Lease, grants: tuple[Grant, ...], draft: Draft) -> None:
    """Raise StateConflict for a change between sharing GPUs and having all of them.

    A container that has its GPUs to itself is set up in another way than one that shares them.
    """
    alone = _is_alone(lease.grants, draft)
    if alone != _is_alone(grants, draft):
        by_start = alone and is_elastic(lease.request) and draft.means.binds_late
        raise StateConflict(
            f"lease {lease.id} cannot change between sharing GPUs and having all of them",
            hint=_START_HINT if by_start else "ask for a new one of this size",
        )


def _is_alone(grants: tuple[Grant, ...], draft: Draft) -> bool:
    return all(
        grant.compute_permille >= WHOLE_PERMILLE
        and grant.memory_bytes >= draft.gpus[grant.gpu].leasable_bytes
        for grant in grants
    )


# --- raising -------------------------------------------------------------------------------------------


def _check_room(lease: Lease, grants: tuple[Grant, ...], draft: Draft) -> None:
    raised = _check_free(lease, grants, draft)
    if raised:
        _check_limit(lease, grants, draft)
        plan = pass_over(draft.view(), draft.now)
        _check_fixed(lease, grants, plan, draft)
        _check_head(lease, raised, plan)


def _check_free(lease: Lease, grants: tuple[Grant, ...], draft: Draft) -> set[GpuId]:
    """Return the GPUs on which the lease gets more.

    Raises LimitReached or Unavailable if that is not free.
    """
    capacities = draft.view().capacities()
    raised = set()
    for old, new in zip(lease.grants, grants, strict=True):
        capacity, gpu = capacities[old.gpu], draft.gpus[old.gpu]
        more_bytes = new.memory_bytes - old.memory_bytes
        more_permille = new.compute_permille - old.compute_permille
        if more_bytes <= 0 and more_permille <= 0:
            continue
        raised.add(gpu.id)
        if gpu.trouble is not None:
            raise Unavailable(
                f"GPU {gpu.index} {gpu.trouble}, so nothing more is leased there",
                hint="see `gpushare gpus`",
            )
        if more_bytes > max(0, capacity.free_bytes) or more_permille > max(0, capacity.free_permille):
            raise LimitReached(
                f"GPU {gpu.index} has {format_memory(max(0, capacity.free_bytes))} and "
                f"{format_percent(max(0, capacity.free_permille))}% of the compute free, {_more(old, new)}",
                hint="`gpushare ps` shows who holds the rest",
            )
    return raised


def _more(old: Grant, new: Grant) -> str:
    memory, compute = new.memory_bytes - old.memory_bytes, new.compute_permille - old.compute_permille
    amounts = [f"{format_memory(memory)} more"] if memory > 0 else []
    amounts += [f"{format_percent(compute)}% more"] if compute > 0 else []
    return f"and {' and '.join(amounts)} would be needed"


def _check_limit(lease: Lease, grants: tuple[Grant, ...], draft: Draft) -> None:
    """Raise LimitReached if the project would hold more than its limits on this node."""
    state = draft.view()
    if not state.policy.project(lease.payer).has_limit:
        return
    fleet = fleet_of(state)
    usage = quota_usage(state, fleet, draft.now)
    before, after = sizes_of(lease.grants, fleet), sizes_of(grants, fleet)
    all_more = sum(after.values()) - sum(before.values())
    for model, more in (("", all_more), *((model, after[model] - before.get(model, 0)) for model in after)):
        remaining = usage.left_to_limit(lease.payer, model, lease.request.lease_class)
        if remaining is not None and more > max(0, remaining):
            raise LimitReached(
                usage.limit_sentence(lease.payer), hint="`gpushare project ls` shows the limits"
            )


def _check_fixed(lease: Lease, grants: tuple[Grant, ...], plan: Plan, draft: Draft) -> None:
    """Raise LimitReached if the new size takes room that is fixed for build work of a project."""
    capacities = draft.view().capacities()
    for old, new in zip(lease.grants, grants, strict=True):
        free_bytes, free_permille = capacities[old.gpu].free_bytes, capacities[old.gpu].free_permille
        owners = []
        for project, parts in plan.fixed.items():
            fixed_parts = [part for part in parts if part.gpu == old.gpu]
            if fixed_parts and not (lease.payer == project and lease.request.lease_class is FIXED_CLASS):
                owners.append(project)
                free_bytes -= sum(part.memory_bytes for part in fixed_parts)
                free_permille -= sum(part.compute_permille for part in fixed_parts)
        more_bytes = max(0, new.memory_bytes - old.memory_bytes)
        more_permille = max(0, new.compute_permille - old.compute_permille)
        if owners and (more_bytes > max(0, free_bytes) or more_permille > max(0, free_permille)):
            raise LimitReached(
                f"the room on GPU {draft.gpus[old.gpu].index} is fixed for build work of {', '.join(owners)}",
                hint="`gpushare project ls` shows what is fixed for whom",
            )


def _check_head(lease: Lease, raised: set[GpuId], plan: Plan) -> None:
    """Raise LimitReached for a raise on GPUs that are kept for the head of the queue.

    As in backfill, such GPUs go only to leases that end before the head can start there.
    """
    for reservation in _reservations_of_others(lease, plan):
        if raised & reservation.gpus:
            raise LimitReached(
                f"the room is kept for {reservation.lease or reservation.project}, which waits for it",
                hint="`gpushare queue` shows what waits",
            )


def _reservations_of_others(lease: Lease, plan: Plan) -> Sequence[Reservation]:
    """Return the reservations of requests that may start before the lease is over."""
    until = NEVER if lease.expires_at is None else lease.expires_at
    return [reservation for reservation in plan.reservations if not until <= reservation.start_at < NEVER]


# --- lowering ------------------------------------------------------------------------------------------


def _check_use(lease: Lease, grants: tuple[Grant, ...], draft: Draft) -> None:
    margin = draft.rules.watchdog[lease.request.lease_class].tolerance_bytes
    for old, new in zip(lease.grants, grants, strict=True):
        if new.memory_bytes >= old.memory_bytes or isinstance(lease.state, Reserved):
            continue
        used = _used_bytes(lease, draft.gpus[old.gpu], draft)
        if used and new.memory_bytes < used + margin:
            raise StateConflict(
                f"lease {lease.id} uses {format_memory(used)} on GPU {draft.gpus[old.gpu].index}, and "
                f"{format_memory(margin)} must be left above that",
                hint=f"ask for at least {format_memory(used + margin)}, or let its processes free memory",
            )


def _used_bytes(lease: Lease, gpu: Gpu, draft: Draft) -> int:
    """Return the bytes that the lease's processes hold there by the newest sample.

    Raises Unavailable if nobody knows.
    """
    use = draft.use
    on_gpus = use.used_bytes.get(lease.id, {})
    fresh = abs(draft.now - use.at) <= SAMPLE_SECONDS and gpu.id in use.readable
    # 0 bytes mean a process whose use the driver does not report.
    if not fresh or on_gpus.get(gpu.id) == 0 or (lease.id in use.busy and not on_gpus):
        raise Unavailable(
            f"what lease {lease.id} uses on GPU {gpu.index} is not known at the moment",
            hint="its compute can be changed; `gpushare gpus` says what is wrong",
        )
    return on_gpus.get(gpu.id, 0)


# --- the lease afterwards ------------------------------------------------------------------------------


def _with_grants(lease: Lease, grants: tuple[Grant, ...], draft: Draft) -> Lease:
    state = lease.state
    assert isinstance(state, _Resizable), "checked before"
    old = lease.grants
    lease = replace(lease, state=replace(state, grants=grants))
    if isinstance(state, Reserved):
        return lease
    return replace(lease, walls=_walls(lease, old, draft), created_grants=lease.created_grants or old)


def _walls(lease: Lease, old: tuple[Grant, ...], draft: Draft) -> Walls | None:
    """Return the walls after a resize.

    A running container keeps the limits it began with, which do not hold a lease that is smaller by now.
    """
    if lease.walls is None:
        return None
    memory_wall, compute_cap = lease.walls.memory_wall, lease.walls.compute_cap
    pairs = list(zip(old, lease.grants, strict=True))
    through_mps = memory_wall in {MemoryWall.MPS_CLIENT, MemoryWall.MPS_SERVER}
    if through_mps and any(a.memory_bytes > b.memory_bytes for a, b in pairs):
        acts = draft.rules.watchdog[lease.request.lease_class].action is not Action.WARN
        memory_wall = MemoryWall.WATCHDOG if acts else MemoryWall.NONE
    if compute_cap is ComputeCap.MPS_PERCENTAGE and any(
        a.ceiling_permille > b.ceiling_permille for a, b in pairs
    ):
        compute_cap = ComputeCap.NONE
    return Walls(memory_wall, compute_cap)


def take_settings(event: SettingsTaken, draft: Draft) -> None:
    """Note the walls of a container that began anew with the settings of its lease's new size.

    The container's own MPS server, if it has one, may be the earlier one and keeps the limits it was started
    with: the limits of the new size are then those in the container's environment.
    """
    lease = draft.view().leases.get(event.lease)
    if lease is None or not isinstance(lease.state, Active | Paused) or lease.container != event.container:
        return
    walls = event.walls
    if walls.memory_wall is MemoryWall.MPS_SERVER:
        walls = replace(walls, memory_wall=MemoryWall.MPS_CLIENT)
    if lease.walls not in (walls, event.walls):
        text = f"started with its new size: memory wall {walls.memory_wall}, compute cap {walls.compute_cap}"
        draft.put(replace(lease, walls=walls).note(draft.now, text))
