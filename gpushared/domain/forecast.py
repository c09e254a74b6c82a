"""When those who wait may start, from time limits alone: the queue played forward.

Played by the rules themselves, in drafts that are thrown away: every lease uses its whole time limit, and
who gives way uses its whole notice and grace, and then waits again. Asked for on demand, never while
deciding. The times are estimates: leases may end sooner, and whoever asks later may be placed first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpushared.domain.granting import grant_what_fits
from gpushared.domain.lease import (
    Active,
    ContainerId,
    Draining,
    Ended,
    Expired,
    Grant,
    Lease,
    LeaseId,
    LeaseState,
    NoticeKind,
    Preempted,
    Requeued,
    Reserved,
    Resuming,
    Starting,
    Suspended,
    Suspending,
)
from gpushared.domain.queue import NEVER, Decision
from gpushared.domain.requeue import is_leaving
from gpushared.domain.rules import Rules
from gpushared.domain.state import Draft, NodeState

POSITIONS = 32
"""Further back, an estimate says nothing."""
STEPS = 64
PASSES = 3
_NO_CONTAINER = ContainerId("")


@dataclass(frozen=True, slots=True)
class Start:
    """When a waiting lease starts, and on what."""

    at: float
    grants: tuple[Grant, ...]


def starts(state: NodeState, now: float, decided: Sequence[Decision] = ()) -> Mapping[LeaseId, Start]:
    """How each waiting lease starts if every lease uses its whole time limit; those unknown are left out.

    ``decided``: what the pass over the queue said, who goes first in front.
    """
    waiting = [one.lease for one in decided] or [lease.id for lease in state.waiting()]
    sought, beyond = set(waiting[:POSITIONS]), set(waiting[POSITIONS:])
    known = {lease: _due(one, state.rules, now) for lease, one in state.leases.items() if lease not in beyond}
    state = replace(state, leases=known)
    found: dict[LeaseId, Start] = {}
    at = now
    for _ in range(STEPS):
        state, look_again_at = _passed(state, at, sought, found)
        ahead = [look_again_at, *(_leaves_at(one, state.rules) for one in state.holders())]
        later = [moment for moment in ahead if at < moment < float("inf")]
        if not later or sought <= found.keys():
            break
        at = min(later)
    return found


def in_order_of_start(decided: Iterable[Decision], known: Mapping[LeaseId, Start]) -> list[Decision]:
    """The decisions with their places in the order in which the requests are expected to start.

    Those that start at the same time stay in the order in which the pass looked at them. So do those whose
    start nobody knows, behind all others.
    """
    ordered = sorted(decided, key=lambda one: known[one.lease].at if one.lease in known else NEVER)
    return [replace(one, position=place) for place, one in enumerate(ordered, start=1)]


def _passed(
    state: NodeState, at: float, sought: Collection[LeaseId], found: dict[LeaseId, Start]
) -> tuple[NodeState, float]:
    """The state after one moment, and when time alone may change it.

    What one pass grants the next one may take back, where leases give way, so that it is passed over again.
    """
    gives_way = any(rules.min_run_seconds < float("inf") for rules in state.policy.classes.values())
    for _ in range(PASSES if gives_way else 1):
        draft = Draft(state, at)
        _leave(draft)
        look_again_at = grant_what_fits(draft)
        _start(draft, sought, found)
        step = draft.finish()
        state = step.state
        if not step.changed:
            break
    return state, look_again_at


def _start(draft: Draft, sought: Collection[LeaseId], found: dict[LeaseId, Start]) -> None:
    """What was granted runs at once, and waits again where it has to give way, as most do."""
    for lease in list(draft.leases.values()):
        if lease.grants and lease.id in sought:
            found.setdefault(lease.id, Start(draft.now, lease.grants))
        if isinstance(lease.state, Reserved):
            lease = replace(lease, requeues=lease.request.requeue is not False)  # noqa: PLW2901 - the same lease
        if isinstance(lease.state, Reserved | Starting | Resuming):
            active = Active(lease.grants, lease.container or _NO_CONTAINER, draft.now)
            draft.leases[lease.id] = replace(lease, state=active)


def leaves_by(lease: Lease, rules: Rules) -> float:
    """When a lease that gives way or ends is off its GPUs at the latest."""
    match lease.state:
        case Suspending(deadline=deadline):
            return deadline
        case Draining(since=since):
            return since + rules.stop_grace_seconds
        case _:
            assert lease.notice is not None, "only of leases that leave"
            return lease.notice.until + rules.stop_grace_seconds


def _leaves_at(lease: Lease, rules: Rules) -> float:
    """When it is off its GPUs, if it uses its whole time; infinite where nothing tells."""
    limit = float("inf") if lease.expires_at is None else lease.expires_at
    return min(limit, leaves_by(lease, rules)) if is_leaving(lease) else limit


def _due(lease: Lease, rules: Rules, now: float) -> Lease:
    """One that should be off its GPUs already: nobody knows when it will be."""
    if not lease.grants or _leaves_at(lease, rules) > now:
        return lease
    never, container = float("inf"), lease.container or _NO_CONTAINER
    late = Draining(lease.grants, container, never, Expired(), exited=False, retry_at=never)
    return replace(lease, state=late, expires_at=None)


def _leave(draft: Draft) -> None:
    """Those whose time is over are off their GPUs now."""
    for lease in list(draft.leases.values()):
        if lease.grants and _leaves_at(lease, draft.rules) <= draft.now:
            gone = replace(lease, state=_afterwards(lease, draft), notice=None, expires_at=None)
            draft.put(gone.note(draft.now, "off its GPUs"))


def _afterwards(lease: Lease, draft: Draft) -> LeaseState:
    """Where it is then: over, or in the queue again."""
    place = draft.next_sequence
    if lease.expires_at is not None and lease.expires_at <= draft.now:
        return Ended(Expired(), draft.now)
    match lease.state:
        case Suspending(grants, container, wanted=wanted):
            left = None if lease.expires_at is None else lease.expires_at - draft.now
            return Suspended(container, draft.now, place, grants, left, wanted=wanted)
        case Draining(grants, container, outcome=Preempted(requeue=True), gone=False):
            return Requeued(container, draft.now, place, grants)
        case Draining(outcome=outcome):
            return Ended(outcome, draft.now)
        case _ if lease.requeues and lease.notice is not None and lease.notice.kind is NoticeKind.PREEMPTED:
            return Requeued(lease.container or _NO_CONTAINER, draft.now, place, lease.grants)
        case _:
            return Ended(Preempted(""), draft.now)
