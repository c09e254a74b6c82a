"""Draw conclusions from a node's silence. Silence is never taken for death.

Only two things follow from silence: messages for people, and the end of jobs that were submitted with
``stop_after_seconds`` and that a guard on their node watches over. A node counts from the time at which it
*sent* the newest acknowledged heartbeat, which is never later than the coordinator's last message from the
node. The node's clock may be slower than ours by ``fence_drift``. The node's daemon ends the container within
the grace of a stop, and the guard, which needs no daemon, within ``fence_margin_seconds``. If the node has
not said that a guard watches, or never answered the order, nothing follows: only the node's own report proves
the end.
"""

from __future__ import annotations

from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.coordinator_state import (
    PoolDraft,
    PoolState,
    Wake,
    is_over,
)
from gpushared.domain.jobs.job import (
    Cancelling,
    EndKind,
    Job,
    NodeName,
    Part,
    Placing,
    Running,
)
from gpushared.domain.jobs.member import Member, Presence
from gpushared.domain.jobs.recovery import lose_part
from gpushared.domain.model.units import format_duration
from gpushared.domain.scheduling.pass_records import NEVER

SUSPECT_BEATS = 3.0
UNKNOWN_BEATS = 6.0


def beat_seconds(members: int, rules: PoolRules) -> float:
    """Return the seconds between two heartbeats of each member, if there are this many members."""
    return max(rules.beat_seconds, members / rules.beats_per_second)


def presence(member: Member, state: PoolState, now: float) -> Presence:
    """Return the presence of a member, for people to read."""
    if member.heard_at is None:
        return Presence.NEVER
    beat = beat_seconds(len(state.members), state.rules)
    silent = now - member.heard_at
    if member.forgotten_at is not None or silent > UNKNOWN_BEATS * beat:
        return Presence.UNKNOWN
    if silent > SUSPECT_BEATS * beat:
        return Presence.SUSPECT
    return Presence.DRAINED if member.drained_by else Presence.READY


def silent_since(member: Member, state: PoolState, now: float) -> float | None:
    """Return the time of the member's last message, if the member is silent for too long."""
    if presence(member, state, now) in {Presence.NEVER, Presence.SUSPECT, Presence.UNKNOWN}:
        return member.heard_at
    return member.silent_since


def has_client(job: Job, state: PoolState, now: float) -> bool:
    """Return True if a place would be of use for the job.

    While the coordinator receives nothing from the node of an interactive job's client, nobody can tell
    whether the client lives.
    """
    if not job.spec.interactive:
        return True
    origin = state.members.get(job.spec.origin)
    return origin is None or presence(origin, state, now) not in {Presence.UNKNOWN, Presence.NEVER}


def takes_work(member: Member, state: PoolState, now: float) -> bool:
    """Return True if a new attempt may go to the member."""
    return now <= takes_work_until(member, state)


def takes_work_until(member: Member, state: PoolState) -> float:
    """Return the time until which a silent member may get a new attempt; -infinite if it may get none now."""
    if state.rules.here:
        return NEVER
    away = member.heard_at is None or member.forgotten_at is not None or member.drained_by
    if away or not member.connected or member.name not in state.reported:
        return -NEVER
    return heard(member) + UNKNOWN_BEATS * beat_seconds(len(state.members), state.rules)


def fenced_at(job: Job, part: Part, heard_at: float, rules: PoolRules) -> float:
    """Return when a part of a job has surely been ended on its node, if the node stays silent."""
    after = job.spec.stop_after_seconds
    if after is None or not part.guarded or part.state is None or is_over(part):
        return NEVER
    return heard_at + after * (1 + rules.fence_drift) + _grace(job, rules) + rules.fence_margin_seconds


def _grace(job: Job, rules: PoolRules) -> int:
    grace = job.state.grace_seconds if isinstance(job.state, Cancelling) else 0
    return max(grace, rules.stop_grace_seconds)


def watch(node: NodeName, draft: PoolDraft) -> None:
    """Set an alarm for the time when the first of the node's jobs must have ended."""
    due = min((at for _, at in _fences(node, draft)), default=NEVER)
    if due < NEVER:
        draft.wake(max(due, draft.now), Wake.SILENCE, node)


def look(node: NodeName, draft: PoolDraft) -> None:
    """End the jobs that the guard of a silent node must have ended by now."""
    for job, at in _fences(node, draft):
        if at <= draft.now and job.id in draft.state.jobs:
            silent = format_duration(max(1, int(draft.now - _counted_from(node, draft))))
            after = format_duration(job.spec.stop_after_seconds or 0)
            reason = f"{node} was not heard for {silent}; the guard there was to end it after {after}"
            lose_part(draft.state.jobs[job.id], node, EndKind.FENCED, reason, draft)
    watch(node, draft)


def _fences(node: NodeName, draft: PoolDraft) -> list[tuple[Job, float]]:
    state = draft.state
    heard_at = _counted_from(node, draft)
    fences = []
    for name in sorted(state.by_node.get(node) or ()):
        job = state.jobs[name]
        if isinstance(job.state, Placing | Running | Cancelling):
            part = next(part for part in job.parts if part.node == node)
            fences.append((job, fenced_at(job, part, heard_at, draft.rules)))
    return fences


def _counted_from(node: NodeName, draft: PoolDraft) -> float:
    """Return the time of a node's last message, or of our own start if that is later."""
    return max(draft.state.started_at, heard(draft.state.members[node]))


def heard(member: Member) -> float:
    return -NEVER if member.heard_at is None else member.heard_at
