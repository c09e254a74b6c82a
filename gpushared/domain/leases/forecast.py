"""Forecast when waiting leases may start, from time limits alone, by playing the queue forward.

The rules themselves play, in drafts that are thrown away: every lease uses its whole time limit, and a lease
that gives way uses its whole notice and grace, and then waits again. The forecast is made on demand, never
while deciding. The times are estimates: leases may end sooner, and later requests may be placed first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpushared.domain.leases.granting import grant_what_fits
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import Draft, NodeState
from gpushared.domain.leases.requeue import is_leaving
from gpushared.domain.model.lease import (
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
from gpushared.domain.scheduling.outcome import Decision
from gpushared.domain.scheduling.pass_records import NEVER

POSITIONS = 32
"""An estimate further back in the queue means nothing."""
STEPS = 64
PASSES = 3
ROUNDS = 8
"""If leases take turns, a forecast ends after this many of them gave way; later estimates mean nothing."""
_NO_CONTAINER = ContainerId("")


@dataclass(frozen=True, slots=True)
class Start:
    """Hold the expected start of a waiting lease, and the GPUs that it starts on."""

    at: float
    grants: tuple[Grant, ...]
    preemption_clause: str = ""
    """A clause on the leases that give way to it and the rule by which they do; empty if none does."""


NO_START = Start(NEVER, ())


def starts(state: NodeState, now: float, decisions: Sequence[Decision] = ()) -> Mapping[LeaseId, Start]:
    """Return each waiting lease's start if every lease uses its whole time limit, without unknown starts.

    ``decisions`` is the result of the pass over the queue, in the order of the queue.
    """
    waiting = [decision.lease for decision in decisions] or [lease.id for lease in state.waiting()]
    sought, beyond = set(waiting[:POSITIONS]), set(waiting[POSITIONS:])
    leases = {
        name: _due(lease, state.rules, now) for name, lease in state.leases.items() if name not in beyond
    }
    state = replace(state, leases=leases)
    expected_starts: dict[LeaseId, Start] = {}
    at, count = now, _preemption_count(state)
    for _ in range(STEPS):
        state, look_again_at = _passed(state, at, sought, expected_starts)
        ahead = [look_again_at, *(_leaves_at(lease, state.rules) for lease in state.holders())]
        later = [moment for moment in ahead if at < moment < float("inf")]
        if not later or sought <= expected_starts.keys():
            break
        if state.policy.lossless_only and _preemption_count(state) >= count + ROUNDS:
            break
        at = min(later)
    return expected_starts


def _preemption_count(state: NodeState) -> int:
    """Return how often the leases have given way."""
    return sum(lease.preemption.count for lease in state.leases.values())


def in_order_of_start(
    decisions: Iterable[Decision], expected_starts: Mapping[LeaseId, Start]
) -> list[Decision]:
    """Number the decisions by the expected starts of their requests.

    Requests that start at the same time stay in the order in which the pass looked at them. Requests whose
    start nobody knows stay so too, behind all others.
    """
    ordered = sorted(decisions, key=lambda decision: expected_starts.get(decision.lease, NO_START).at)
    return [replace(decision, position=position) for position, decision in enumerate(ordered, start=1)]


def _passed(
    state: NodeState, at: float, sought: Collection[LeaseId], expected_starts: dict[LeaseId, Start]
) -> tuple[NodeState, float]:
    """Return the state after one moment, and when time alone may change it.

    Where leases give way, the next pass may take back the grants of one pass, so the moment is passed over
    again; but not where only leases that lose nothing give way, which are safe for their first minutes.
    """
    policy = state.policy
    gives_way = not policy.lossless_only and any(
        rules.min_run_seconds < float("inf") for rules in policy.classes.values()
    )
    for _ in range(PASSES if gives_way else 1):
        draft = Draft(state, at)
        _leave(draft)
        look_again_at = grant_what_fits(draft)
        _start(draft, sought, expected_starts)
        step = draft.finish()
        state = step.state
        if not step.changed:
            break
    return state, look_again_at


def _start(draft: Draft, sought: Collection[LeaseId], expected_starts: dict[LeaseId, Start]) -> None:
    """Let granted leases run at once, and wait again after a preemption, as most leases do."""
    for lease in list(draft.leases.values()):
        if lease.grants and lease.id in sought and lease.id not in expected_starts:
            expected_starts[lease.id] = Start(draft.now, lease.grants, _preemption_clause(lease.id, draft))
        if isinstance(lease.state, Reserved):
            preemption = replace(lease.preemption, requeues=lease.request.requeue is not False)
            lease = replace(lease, preemption=preemption)  # noqa: PLW2901 - the same lease
        if isinstance(lease.state, Reserved | Starting | Resuming):
            active = Active(lease.grants, lease.container or _NO_CONTAINER, draft.now)
            draft.leases[lease.id] = replace(lease, state=active)


def _preemption_clause(lease: LeaseId, draft: Draft) -> str:
    """Return a clause on the leases that gave way to a lease before this draft granted its request."""
    promised = draft.base.find(lease).preemption.promised
    if promised is None:
        return ""
    names = ", ".join(f"{name} of {draft.find(name).owner_name}" for name in promised.victims)
    return f"{names} {'gives' if len(promised.victims) == 1 else 'give'} way then, because {promised.why}"


def leaves_by(lease: Lease, rules: Rules) -> float:
    """Return when a lease that gives way or ends is off its GPUs at the latest."""
    match lease.state:
        case Suspending(deadline=deadline):
            return deadline
        case Draining(since=since):
            return since + rules.stop_grace_seconds
        case _:
            assert lease.notice is not None, "only of leases that leave"
            return lease.notice.until + rules.stop_grace_seconds


def _leaves_at(lease: Lease, rules: Rules) -> float:
    """Return when the lease is off its GPUs if it uses its whole time; infinite if the end is unknown."""
    limit = float("inf") if lease.expires_at is None else lease.expires_at
    return min(limit, leaves_by(lease, rules)) if is_leaving(lease) else limit


def _due(lease: Lease, rules: Rules, now: float) -> Lease:
    """Give a lease that should be off its GPUs already an unknown end."""
    if not lease.grants or _leaves_at(lease, rules) > now:
        return lease
    never, container = float("inf"), lease.container or _NO_CONTAINER
    late = Draining(lease.grants, container, never, Expired(), exited=False, retry_at=never)
    return replace(lease, state=late, expires_at=None)


def _leave(draft: Draft) -> None:
    """Take the leases whose time is over off their GPUs."""
    for lease in list(draft.leases.values()):
        if lease.grants and _leaves_at(lease, draft.rules) <= draft.now:
            gone = replace(lease, state=_afterwards(lease, draft), notice=None, expires_at=None)
            draft.put(gone.note(draft.now, "off its GPUs"))


def _afterwards(lease: Lease, draft: Draft) -> LeaseState:
    """Return the lease's next state: ended, or in the queue again."""
    sequence = draft.next_sequence
    if lease.expires_at is not None and lease.expires_at <= draft.now:
        return Ended(Expired(), draft.now)
    match lease.state:
        case Suspending(grants, container, wanted=wanted):
            left_seconds = None if lease.expires_at is None else lease.expires_at - draft.now
            return Suspended(container, draft.now, sequence, grants, left_seconds, wanted=wanted)
        case Draining(grants, container, outcome=Preempted(requeue=True), gone=False):
            return Requeued(container, draft.now, sequence, grants)
        case Draining(outcome=outcome):
            return Ended(outcome, draft.now)
        case _ if (
            lease.preemption.requeues
            and lease.notice is not None
            and lease.notice.kind is NoticeKind.PREEMPTED
        ):
            return Requeued(lease.container or _NO_CONTAINER, draft.now, sequence, lease.grants)
        case _:
            return Ended(Preempted(""), draft.now)
