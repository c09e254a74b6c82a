"""Derive from the pool's state the events that owners of jobs and the site are told.

As for leases (``leases/notifications.py``), each event stands in the state with an occasion, and those that
were told before are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import assert_never

from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import (
    Cancelled,
    Cancelling,
    Ended,
    Job,
    JobFailed,
    JobOutcome,
    Placing,
    Queued,
    Running,
    Succeeded,
    exit_code_of,
    outcome_word,
)
from gpushared.domain.jobs.liveness import UNKNOWN_BEATS, beat_seconds
from gpushared.domain.jobs.member import Member
from gpushared.domain.model.notification import KnownEvents, Notification, NotificationKind

NODE_SUBJECT = "node "
JOB_SUBJECT = "job "


def of_job(job: Job, sent_events: KnownEvents) -> tuple[Notification, ...]:
    """Return the events of a job that were not told yet: the beginning of each attempt, and the end."""
    return tuple(event for event in _standing(job) if (event.kind, event.occasion) not in sent_events)


def _standing(job: Job) -> Iterator[Notification]:
    label = f"job {job.id} of {job.spec.owner.person}"
    where = " and ".join(sorted({part.node for part in job.parts}))
    match job.state:
        case Running(attempt=attempt, since=since):
            text = f"{label} runs on {where}"
            yield _notification(job, NotificationKind.GRANTED, str(attempt), since, text)
        case Ended(at=at, outcome=outcome):
            if isinstance(outcome, Succeeded) or (
                isinstance(outcome, JobFailed) and outcome.exit_code is not None
            ):
                # A short job may be over before its node has reported that it runs.
                text = f"{label} ran on {where}"
                yield _notification(job, NotificationKind.GRANTED, str(job.attempts), at, text)
            yield _notification(job, NotificationKind.ENDED, "", at, f"{label} {_outcome_text(outcome)}")
        case Queued() | Placing() | Cancelling():
            pass
        case _:
            assert_never(job.state)


def of_nodes(
    state: PoolState, now: float, sent_events: Mapping[str, KnownEvents]
) -> tuple[Notification, ...]:
    """Return the nodes that fell silent or are heard again, as far as that was not told yet."""
    notifications: list[Notification] = []
    for member in state.members.values():
        notifications += _of_node(member, state, now, sent_events.get(NODE_SUBJECT + member.name, ()))
    return tuple(notifications)


def _of_node(
    member: Member, state: PoolState, now: float, sent_events: KnownEvents
) -> Iterator[Notification]:
    silent = {occasion for kind, occasion in sent_events if kind is NotificationKind.NODE_SILENT}
    back = {occasion for kind, occasion in sent_events if kind is NotificationKind.NODE_BACK}
    heard_at = max(member.heard_at or 0.0, state.started_at)
    patience = UNKNOWN_BEATS * beat_seconds(len(state.members), state.rules)
    subject = NODE_SUBJECT + member.name
    if now - heard_at > patience and member.forgotten_at is None:
        if silent <= back:
            text = f"node {member.name} is not heard any more; its leases may run on"
            kind, occasion = NotificationKind.NODE_SILENT, f"{heard_at:.3f}"
            yield Notification(kind, subject, occasion, heard_at, text, node=member.name)
    elif member.heard_at is not None and now - member.heard_at <= patience:
        for occasion in sorted(silent - back):
            text = f"node {member.name} is heard again"
            kind = NotificationKind.NODE_BACK
            yield Notification(kind, subject, occasion, member.heard_at, text, node=member.name)


def _outcome_text(outcome: JobOutcome) -> str:
    """Write an outcome without names; the reason of a failure may name others."""
    match outcome:
        case Succeeded():
            return "succeeded"
        case JobFailed(exit_code=None):
            return "failed, and `gpushare why` tells the reason"
        case JobFailed(exit_code=code):
            return f"failed with exit code {code}"
        case Cancelled():
            return "was cancelled"
        case unreachable:
            assert_never(unreachable)


def _notification(job: Job, kind: NotificationKind, occasion: str, at: float, text: str) -> Notification:
    spec, parts = job.spec, job.parts
    is_end = kind is NotificationKind.ENDED
    outcome = job.state.outcome if is_end and isinstance(job.state, Ended) else None
    return Notification(
        kind,
        JOB_SUBJECT + job.id,
        occasion,
        at,
        text,
        lease=(parts[0].lease or "") if len(parts) == 1 else "",
        job=job.id,
        owner=spec.owner.person,
        project=job.project,
        lease_class=spec.request.lease_class,
        outcome="" if outcome is None else outcome_word(outcome),
        exit_code=None if outcome is None else exit_code_of(outcome),
        node=",".join(sorted({part.node for part in parts})),
        container=spec.name,
        image=spec.image,
        targets=spec.request.notify,
    )
