"""Handle leases that hold GPUs without using them: notify them, make them preemptible, suspend or end them.

A lease is idle from the first look that finds it running without any work on its GPUs. So loading data after
the start counts as idle time. One look that finds work ends the idle time. Work that cannot be distinguished
from other leases' work counts as the lease's own. Only the notices to a lease survive a restart of the
daemon; a lease without a notice counts anew from there.
"""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.leases.events import GpusSampled
from gpushared.domain.leases.lifecycle import drain
from gpushared.domain.leases.node_rules import IdleAction, IdlePolicy
from gpushared.domain.leases.node_state import Draft, NodeState
from gpushared.domain.leases.notice import awake, notify, withdraw
from gpushared.domain.leases.requeue import can_give_way
from gpushared.domain.leases.suspension import suspend, why_not
from gpushared.domain.model.lease import (
    Active,
    Idle,
    Idleness,
    Lease,
    Notice,
    NoticeKind,
    Paused,
    Suspending,
)
from gpushared.domain.model.units import format_duration, format_wait

OFF = IdlePolicy(warn_seconds=0, lower_seconds=0)


def idle_since(lease: Lease, state: NodeState) -> float | None:
    """Return since when the lease has done no work on its GPUs, if that is known."""
    if not isinstance(lease.state, Active | Paused):
        return None
    return state.resting.get(lease.id, lease.idleness.since)


def look(sample: GpusSampled, draft: Draft) -> None:
    """Add to the idle time of leases without work, and act on it.

    A lease that is not in the sample stays as it was.
    """
    before, draft.resting = draft.resting, {}
    for lease in draft.view().holders():
        if not isinstance(lease.state, Active | Paused | Suspending):
            continue
        if lease.id in before:
            draft.resting[lease.id] = before[lease.id]
        if lease.id in sample.active:
            _note_work(lease, draft)
        elif lease.id in sample.idle and not isinstance(lease.state, Suspending):
            _note_idle(lease, draft)


def _note_work(lease: Lease, draft: Draft) -> None:
    if lease.idleness.since is None:
        draft.resting.pop(lease.id, None)
        return
    lasted = format_duration(draft.now - lease.idleness.since)
    draft.put(awake(lease, draft).note(draft.now, f"uses its GPUs again after {lasted}"))


def _note_idle(lease: Lease, draft: Draft) -> None:
    first_look = lease.id not in draft.resting
    since = draft.resting.get(lease.id, draft.now if lease.idleness.since is None else lease.idleness.since)
    since = draft.resting[lease.id] = min(since, draft.now)
    policy, lasted = _policy(lease, draft), draft.now - since
    if lasted >= _notice_seconds(policy):
        lease = _notify(lease, since, policy, draft, first_look=first_look)
    elif lease.notice is not None and lease.notice.kind is NoticeKind.IDLE:
        lease = withdraw(lease, draft, NoticeKind.IDLE)
        lease = draft.put(lease.note(draft.now, "may be idle for longer now"))
    if policy.lower_seconds and lasted >= policy.lower_seconds and not lease.idleness.is_preemptible:
        why = f"idle for {format_duration(lasted)}: it gives way to others from now on"
        preemptible = replace(lease, idleness=Idleness(since, is_preemptible=True))
        lease = draft.put(
            preemptible.note(draft.now, why) if can_give_way(lease, draft.view()) else preemptible
        )
    _act(lease, lasted, policy, draft)


def _policy(lease: Lease, state: Draft | NodeState) -> IdlePolicy:
    lease_class, rules = lease.request.lease_class, state.rules.idle_of(lease.payer)
    if state.quiet and lease_class in rules.quiet:
        return rules.quiet[lease_class]
    return rules.usual.get(lease_class, OFF)


def _notice_seconds(policy: IdlePolicy) -> float:
    """Return after how many idle seconds a lease gets a notice; nothing happens to a lease before that."""
    after = [policy.warn_seconds] if policy.warn_seconds else []
    after += [policy.action_seconds] if policy.action is not IdleAction.NONE else []
    return min(after, default=float("inf"))


# --- notices -------------------------------------------------------------------------------------------


def _notify(lease: Lease, since: float, policy: IdlePolicy, draft: Draft, *, first_look: bool) -> Lease:
    """Notify the lease once, and again when the consequence or its time changes."""
    notice = lease.notice
    if notice is not None and notice.kind is not NoticeKind.IDLE:
        return lease  # it ends anyway
    ends = _would_end(lease, policy, draft)
    until = 0.0 if policy.action is IdleAction.NONE else _until(notice, ends, since, policy, draft)
    if first_look and notice is not None and until:
        until = max(until, draft.now + draft.rules.preempt_notice_seconds)
    if notice is not None and (notice.until, notice.ends) == (until, ends):
        return lease
    text = _sentence(lease, since, until, policy, draft.view(), draft.now, ends=ends)
    idle = replace(lease, idleness=replace(lease.idleness, since=since))
    return notify(idle, Notice(NoticeKind.IDLE, until, text, ends=ends), draft)


def _would_end(lease: Lease, policy: IdlePolicy, draft: Draft) -> bool:
    """Return True if the policy will end the lease.

    Suspending is no choice for a paused lease, nor for one without a checkpoint.
    """
    if policy.action is not IdleAction.SUSPEND:
        return policy.action is IdleAction.STOP
    return not isinstance(lease.state, Active) or bool(why_not(lease, draft.view()))


def _until(notice: Notice | None, ends: bool, since: float, policy: IdlePolicy, draft: Draft) -> float:
    """Return when the policy's action is due, and never sooner than the notice before a preemption allows."""
    due = since + policy.action_seconds
    soonest = max(due, draft.now + draft.rules.preempt_notice_seconds)
    if notice is None or not notice.until or notice.ends is not ends:
        return soonest
    return due if due > notice.until else min(notice.until, soonest)


def notice_text(lease: Lease, notice: Notice, state: NodeState, now: float) -> str:
    """Return the text of a lease's notice; if it is idle, with the times that have passed and are left now."""
    since = idle_since(lease, state)
    if notice.kind is not NoticeKind.IDLE or since is None:
        return notice.text
    return _sentence(lease, since, notice.until, _policy(lease, state), state, now, ends=notice.ends)


def _sentence(
    lease: Lease, since: float, until: float, policy: IdlePolicy, state: NodeState, now: float, *, ends: bool
) -> str:
    idle = f"no work on its GPUs for {format_duration(now - since)}"
    if until:
        consequence = "it is ended" if ends else "it is taken off them until somebody resumes it"
        return f"{idle}; in {format_wait(until - now)} {consequence}"
    if policy.lower_seconds and not lease.idleness.is_preemptible and can_give_way(lease, state):
        return f"{idle}; after {format_duration(policy.lower_seconds)} it gives way to others"
    return idle


# --- the action ----------------------------------------------------------------------------------------


def _act(lease: Lease, lasted: float, policy: IdlePolicy, draft: Draft) -> None:
    notice = lease.notice
    if notice is None or notice.kind is not NoticeKind.IDLE or policy.action is IdleAction.NONE:
        return
    if not notice.until or draft.now < notice.until:
        return
    why = f"idle for {format_duration(lasted)}"
    if notice.ends:
        drain(lease, Idle(lasted), why, draft, grace_seconds=draft.rules.stop_grace_seconds)
    else:
        suspend(lease, f"{why}; `gpushare resume {lease.id}` brings it back", draft, wanted=False)
