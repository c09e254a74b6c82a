"""Run the coordinator's state machine: one event in, a step out (new state, writes and instructions).

``handle`` is the only way to change a state. The step's state becomes true when the store has the step's
changes; only then may its instructions be performed and the caller be answered. So an attempt is durable
before its node receives the order.

A node's own job store is the same machine with ``PoolRules.here``: its only member is the node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import singledispatch
from itertools import accumulate, islice

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs import (
    job_commands,
    job_placement,
    liveness,
    recovery,
)
from gpushared.domain.jobs.cluster_snapshot import ClusterSnapshot
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.coordinator_state import (
    PoolDraft,
    PoolState,
    PoolStep,
    Wake,
    count,
    count_waiting,
    id_key,
    name_key,
    nodes_of,
)
from gpushared.domain.jobs.job import (
    HERE,
    Ended,
    Job,
    NodeName,
    Queued,
)
from gpushared.domain.jobs.member import Member
from gpushared.domain.jobs.orders import resend
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.persistent_map import PersistentMap
from gpushared.domain.model.persistent_sorted_list import PersistentSortedList
from gpushared.domain.scheduling.project_accounts import ProjectAccounts, usage_of

ALARMS_AT_ONCE = 200
"""A step looks at this many alarms; the others are due at once in the next step."""


def handle(
    state: PoolState, event: m.PoolEvent, now: float, snapshot: ClusterSnapshot | None = None
) -> PoolStep:
    """Return one event's step.

    ``now`` is in seconds since the epoch. After an error of the tree nothing changed.

    A caller with many events passes the same ``snapshot`` each time: the snapshot spares most of a pass's
    work, and changes no decision.
    """
    draft = PoolDraft(state, now)
    _apply(event, draft)
    _look_at_alarms(draft)
    job_placement.run_pass_if_due(draft, snapshot or ClusterSnapshot())
    return draft.finish()


def restore(
    rules: PoolRules,
    *,
    epoch: int,
    jobs: Iterable[Job] = (),
    members: Iterable[Member] = (),
    accounts: ProjectAccounts | None = None,
    revision: int = 0,
    now: float,
    ahead_seconds: float = 0.0,
    from_copy: bool = False,
    complete: bool = False,
) -> PoolState:
    """Return the state at the start of an epoch, from the store's jobs (finished ones too) and members.

    ``from_copy`` says that the store is a copy of an older store, or has lost changes, so that all members
    must report before any old job is placed. If nobody knows that the store is old, the first node that has
    seen a newer state reports it. ``complete`` says that the store cannot have lost changes: what it has of
    each job is all that nodes may have been told, so nothing waits for their reports.
    """
    accounts = accounts or ProjectAccounts()
    all_jobs = sorted(jobs, key=lambda job: job.sequence)
    enrolled = {member.name: member.unheard() for member in members}
    if rules.here:
        enrolled.setdefault(HERE, Member(HERE, now))
    state = PoolState(
        rules=rules,
        epoch=epoch,
        revision=revision,
        started_at=now,
        ahead_seconds=ahead_seconds,
        members=PersistentMap(enrolled),
        usage=usage_of(accounts.usage, rules.policy.half_life_seconds),
        turns=accounts.turns,
        projects=accounts.projects,
        next_sequence=1 + max((job.sequence for job in all_jobs), default=0),
    )
    _remember(state, all_jobs)
    draft = PoolDraft(state, now)
    recovery.unsettle(draft)
    draft.state.recovering_since = now if from_copy else None
    draft.wake(now + (rules.recover_seconds if from_copy else rules.settle_seconds), Wake.SETTLE)
    _look_after(draft)
    if complete and not from_copy:
        recovery.settle(draft)
    else:
        recovery.settle_if_due(draft)
    return draft.state


def _remember(state: PoolState, jobs: list[Job]) -> None:
    live = [job for job in jobs if not isinstance(job.state, Ended)]
    over = [job for job in jobs if isinstance(job.state, Ended)]
    state.jobs = PersistentMap((job.id, job) for job in live)
    order = sorted((job.state.at, job.sequence, job.id) for job in over if isinstance(job.state, Ended))
    awaited = {after.job for job in live for after in job.awaits}
    ended = {job.id: job for job in over}
    newest = _newest([ended[name] for _, _, name in order], state.rules)
    entries = [entry for entry in order if entry[2] in newest or entry[2] in awaited]
    state.ended_bytes = sum(ended[name].spec.size_bytes for _, _, name in entries)
    state.ended = PersistentMap((name, ended[name]) for _, _, name in entries)
    state.ended_order = PersistentSortedList(entries)
    remembered = [*live, *state.ended.values()]
    state.ids = PersistentSortedList(map(id_key, remembered))
    state.names = PersistentSortedList(filter(None, map(name_key, remembered)))
    _index(state, live)


def _newest(over: list[Job], rules: PoolRules) -> set[JobId]:
    """Return the newest finished jobs, as many as the rules keep."""
    sizes = accumulate(job.spec.size_bytes for job in reversed(over))
    sized = zip(reversed(over), sizes, strict=True)
    return {job.id for job, size in islice(sized, rules.ended_kept) if size <= rules.ended_bytes_kept}


def _index(state: PoolState, live: list[Job]) -> None:
    by_node: dict[NodeName, dict[JobId, None]] = {}
    dependents: dict[JobId, tuple[JobId, ...]] = {}
    for job in live:
        for node in nodes_of(job):
            by_node.setdefault(node, {})[job.id] = None
        for after in job.awaits:
            dependents[after.job] = (*dependents.get(after.job, ()), job.id)
        count(state, job, 1)
        if isinstance(job.state, Queued):
            count_waiting(state, job, 1)
    state.by_node, state.dependents = PersistentMap(by_node), PersistentMap(dependents)


def _look_after(draft: PoolDraft) -> None:
    """Set the alarms that the state calls for after the coordinator's start."""
    state = draft.state
    for awaited in state.dependents:
        if awaited not in state.jobs:
            draft.wake(draft.now, Wake.AFTER, awaited)
    for node in state.by_node:
        if node in state.members:
            liveness.watch(node, draft)
    for job in state.jobs.values():
        if job.presumed is not None:
            draft.wake(draft.now + draft.rules.resend_seconds, Wake.RESEND, job.id)


# --- time ----------------------------------------------------------------------------------------------


def _look_at_alarms(draft: PoolDraft) -> None:
    for _ in range(ALARMS_AT_ONCE):
        first = draft.state.alarms.first()
        if first is None or first[0] > draft.now:
            return
        draft.state.alarms = draft.state.alarms.drop(first)
        _handle_alarm(Wake(first[1]), first[2], draft)


def _handle_alarm(kind: Wake, name: str, draft: PoolDraft) -> None:
    match kind:
        case Wake.READY:
            if (job := draft.job(JobId(name))) is not None:
                draft.line_up(job)
        case Wake.RESEND:
            if (job := draft.job(JobId(name))) is not None:
                resend(job, draft)
        case Wake.AFTER:
            job_commands.after_end(JobId(name), draft)
        case Wake.SILENCE:
            liveness.look(NodeName(name), draft)
        case Wake.SETTLE:
            recovery.settle_if_due(draft)


# --- events --------------------------------------------------------------------------------------------


@singledispatch
def _apply(event: object, draft: PoolDraft) -> None:  # noqa: ARG001 - the signature of every rule
    raise TypeError(f"no rule for {type(event).__name__}")


_apply.register(m.JobSubmitted, job_commands.submit)
_apply.register(m.CancelAsked, job_commands.ask_cancel)
_apply.register(m.ClientGone, job_commands.client_gone)
_apply.register(m.JobHoldAsked, job_commands.hold)
_apply.register(m.JobPriorityAsked, job_commands.set_priority)
_apply.register(m.NodeRegistered, recovery.register)
_apply.register(m.AttemptReported, recovery.reported)
_apply.register(m.NodeEnrolled, recovery.enroll)
_apply.register(m.NodeForgotten, recovery.forget)


@_apply.register
def _(event: m.NodeHeartbeat, draft: PoolDraft) -> None:
    member = draft.state.members.get(event.node)
    if member is None or not member.connected:
        return
    news = event.inventory is not None and event.inventory != member.inventory
    free = member.free if event.free is None else event.free
    if news or free != member.free or not liveness.takes_work(member, draft.state, draft.now):
        draft.state.stale = True
    inventory = event.inventory if news else member.inventory
    updated = replace(member, heard_at=draft.now, silent_since=None, free=free, inventory=inventory)
    draft.put_member(updated, durable=news)


@_apply.register
def _(event: m.NodeDisconnected, draft: PoolDraft) -> None:
    member = draft.state.members.get(event.node)
    if member is not None and member.connected:
        draft.put_member(replace(member, connected=False, silent_since=draft.now), durable=False)
        liveness.watch(event.node, draft)


@_apply.register
def _(event: m.NodeDrainAsked, draft: PoolDraft) -> None:
    member = draft.state.members.get(event.node)
    if member is None:
        raise job_commands.no_node(event.node)
    by = event.by.principal if event.reason is not None else ""
    draft.put_member(replace(member, drained_by=by, drain_reason=event.reason or ""))
    draft.state.stale = True


@_apply.register
def _(event: m.PoolDayTimeSet, draft: PoolDraft) -> None:
    draft.state.ahead_seconds = event.ahead_seconds
    for job in draft.state.jobs.values():
        if isinstance(job.state, Queued) and job.spec.request.begin_at is not None:
            draft.line_up(job)


@_apply.register
def _(event: m.PoolTick, draft: PoolDraft) -> None:
    """Change nothing: the alarms are checked after each event."""
