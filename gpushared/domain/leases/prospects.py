"""Predict what happens to a running lease when others need its GPUs."""

from __future__ import annotations

from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.leases.queue_pass import HOST, holder
from gpushared.domain.leases.requeue import PreemptionStep, is_leaving, placement_request, step_of
from gpushared.domain.leases.surroundings import capacities_for
from gpushared.domain.leases.suspension import why_not
from gpushared.domain.model.lease import (
    Lease,
    LeaseId,
    Queued,
    Requeued,
    Suspended,
)
from gpushared.domain.model.units import first_few, format_wait
from gpushared.domain.scheduling.holder_index import HolderIndex
from gpushared.domain.scheduling.host_capacity import HostCapacity
from gpushared.domain.scheduling.outcome import waits_for_leases
from gpushared.domain.scheduling.pass_records import NEVER, RunningLease
from gpushared.domain.scheduling.preemption import loses_long_run
from gpushared.domain.scheduling.projects import GivesWay, Policy
from gpushared.domain.scheduling.quota_usage import QuotaUsage


def when_others_need_it(lease: Lease, state: NodeState, now: float) -> str:
    """Return what happens to a lease when others need its GPUs, or why it had to leave them.

    For a waiting lease the text names the leases that do not give way because they would lose their work. The
    text is empty if neither applies.
    """
    winner = _winner_of(lease.id, state)
    if winner is not None and winner.preemption.promised is not None:
        return f"{_GIVES_WAY}{winner.id} of {winner.owner_name}, because {winner.preemption.promised.why}"
    if is_leaving(lease):
        return lease.notice.text if lease.notice is not None else ""
    if isinstance(lease.state, Suspended | Requeued):
        return _why_it_left(lease)
    if not lease.grants:
        return _who_would_lose(lease, state) if isinstance(lease.state, Queued) else ""
    when = _when(holder(lease, state, state.policy, now), state, now)
    return f"{when}; then it {_HOW[step_of(lease, state)]}{_why_not_milder(lease, state)}"


_GIVES_WAY = "gives way to "
_HOW = {
    PreemptionStep.SUSPEND: "is taken off its GPUs with all its state, and goes on when there is room",
    PreemptionStep.REQUEUE: "is told, stopped, and started again when there is room",
    PreemptionStep.STOP: "is told and stopped, and not started again",
}


def _why_not_milder(lease: Lease, state: NodeState) -> str:
    """Return why this lease is not suspended on a node where other leases are."""
    if state.means.no_checkpoint or not (why := why_not(lease, state)):
        return ""
    return f", because {why}"


NAMED = 3
"""At most this many of the leases that stand in the way are named."""


def _who_would_lose(lease: Lease, state: NodeState) -> str:
    """Return which leases of other users do not give way to a waiting one, because they would lose their work.

    They are the leases without an end, on a node where only leases that lose nothing give way.
    """
    if not state.policy.lossless_only or lease.held_by or not _only_leases_stand_in_the_way(lease, state):
        return ""
    losers = [
        other
        for other in state.holders()
        if other.payer != lease.payer
        and other.expires_at is None
        and step_of(other, state) is not PreemptionStep.SUSPEND
    ]
    if not losers:
        return ""
    names = first_few([f"{other.id} of {other.owner_name}" for other in losers], NAMED)
    has, its = ("has", "its") if len(losers) == 1 else ("have", "their")
    return (
        f"{names} {has} no time limit and would lose {its} work by giving way; an administrator may set "
        "`time_limit_seconds` of a class, or let leases give way with `preemption`"
    )


def _only_leases_stand_in_the_way(lease: Lease, state: NodeState) -> bool:
    """Return True if the lease would start if all others had ended."""
    request = placement_request(lease, state)
    return waits_for_leases(request, capacities_for(request, state.capacities(), state))


def _winner_of(lease: LeaseId, state: NodeState) -> Lease | None:
    """Return the waiting lease that gets the GPUs of this lease."""
    for waiting in state.waiting():
        promised = waiting.preemption.promised
        if promised is not None and lease in promised.victims:
            return waiting
    return None


def _why_it_left(lease: Lease) -> str:
    """Return the reason that the lease's story gives."""
    texts = (entry.text.partition(_GIVES_WAY) for entry in reversed(lease.story))
    return next((verb + to_whom for _, verb, to_whom in texts if verb), "")


def _when(running: RunningLease, state: NodeState, now: float) -> str:
    """Return to whom the lease gives way, and from when on."""
    policy = state.policy
    rules = policy.classes[running.lease.request.lease_class]
    if running.behind:
        return f"holds what is kept for {', '.join(running.behind)}, and leaves when one of them can start"
    loses = policy.lossless_only and not running.step.loses_nothing
    if rules.min_run_seconds == NEVER or loses:
        return "gives way to nobody but administrators" + (
            ", because it would lose its work" if loses else ""
        )
    if running.lease.idleness.is_preemptible:
        return "is idle, and gives way to whoever waits" + _protected(running, policy, now)
    if rules.gives_way is GivesWay.NEVER:
        return f"is of class {running.lease.request.lease_class}, which gives way to administrators only"
    project = running.project
    if rules.gives_way is GivesWay.ALWAYS:
        return "is best effort, and gives way to the classes before it" + _protected(running, policy, now)
    if _is_over_quota(running, state, now):
        text = f"is more than project {project} is guaranteed, and gives way to those who are below theirs"
        if running.step.loses_nothing:
            text += " or hold less than a fair share"
    elif loses_long_run(running, now, policy):
        return (
            f"is guaranteed to project {project}, and gives way to nobody, because it would lose a long run"
        )
    else:
        text = f"is guaranteed to project {project}, and gives way to a higher priority in it only"
    return text + _protected(running, policy, now)


def _is_over_quota(running: RunningLease, state: NodeState, now: float) -> bool:
    holders = [holder(lease, state, state.policy, now) for lease in state.holders()]
    quota_usage = QuotaUsage(
        HolderIndex(state.policy, HostCapacity({HOST: state.capacities()}), holders), state.usage, now
    )
    return quota_usage.over_quota(running)


def _protected(running: RunningLease, policy: Policy, now: float) -> str:
    """Return the clause about the part of the least run time that is left."""
    seconds = running.started_at + policy.classes[running.lease.request.lease_class].min_run_seconds - now
    return f", not in the next {format_wait(seconds)}" if seconds > 0 else ""
