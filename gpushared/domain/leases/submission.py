"""Turn a request into a lease that waits, or refuse it."""

from __future__ import annotations

from dataclasses import replace

from gpushared.domain.leases.events import RequestSubmitted
from gpushared.domain.leases.explain import check_possible, refusal_sentence
from gpushared.domain.leases.granting import decisions
from gpushared.domain.leases.node_state import Draft, lease_id
from gpushared.domain.leases.terms import check_terms, with_models, with_request
from gpushared.domain.model.errors import (
    LeasedAlready,
    LimitReached,
    NoRoom,
    PermissionRefused,
    RequestError,
)
from gpushared.domain.model.lease import Lease, Queued
from gpushared.domain.model.notification import check_allowed
from gpushared.domain.model.request import Request
from gpushared.domain.model.request_spec import describe
from gpushared.domain.model.units import format_duration, shown
from gpushared.domain.scheduling.projects import Policy, project_of

MAX_REQUEST_ID = 128


def submit(event: RequestSubmitted, draft: Draft) -> Lease:
    """Return the lease of a request: a new one, or the lease of an equal earlier request."""
    earlier = _earlier_lease(event, draft)
    if earlier is not None:
        draft.answer = earlier.id
        if event.holder is not None and earlier.holder != event.holder and earlier.id in draft.leases:
            earlier = draft.put(replace(earlier, holder=event.holder))
        return earlier
    check_terms(event.request, draft)
    if event.attempt is None and not event.device_name:
        # A job's targets were checked when the job was submitted, those of a container at its creation.
        check_allowed(event.request.notify, draft.rules.notify_allowed)
    policy = draft.view().policy
    project = _project(event, policy)
    request, limit_text = _with_time_limit(event.request, policy)
    request = with_models(request, draft.gpus.values())
    check_possible(draft.view(), request)
    identity = lease_id(draft.next_sequence)
    name = event.device_name or str(identity)
    _check_not_leased(event, draft)
    lease = Lease(
        id=identity,
        sequence=draft.next_sequence,
        request=request,
        owner_uid=event.caller.uid,
        owner_name=event.caller.name,
        created_at=draft.now,
        state=Queued(since=draft.now),
        device_name=name,
        request_id=event.request_id,
        asked_first=None if request is event.request else event.request,
        held_by=event.caller.name if event.held else "",
        project=project,
        attempt=event.attempt,
        coordinator=event.coordinator,
        holder=event.holder,
        container_name=event.container_name,
        image=event.image,
    )
    draft.next_sequence += 1
    draft.answer = identity
    draft.demand_profile = with_request(draft.demand_profile, request, draft.gpus.values())
    of_job = "" if event.attempt is None else f" for job {event.attempt.job}"
    return draft.put(
        lease.note(draft.now, f"{event.caller.name} asked for {describe(request)}{of_job}{limit_text}")
    )


def _check_not_leased(event: RequestSubmitted, draft: Draft) -> None:
    """Raise LeasedAlready if the container has a lease, or another request waits for one."""
    other = draft.view().of_device(event.device_name) if event.device_name else None
    if other is not None:
        has = "waits for a GPU" if isinstance(other.state, Queued) else "has a lease"
        raise LeasedAlready(
            f"{event.container_name or event.device_name} {has} already ({other.id})",
            hint=f"`gpushare why {other.id}` tells its story",
        )


def _project(event: RequestSubmitted, policy: Policy) -> str:
    """Return the project that the lease counts to on this node.

    A pool's job may name a project that only the pool has, which has admitted the job's owner to it. Here the
    lease then counts as if the job named no project.
    """
    try:
        return project_of(event.caller.name, event.request.project, policy)
    except (RequestError, PermissionRefused):
        if not event.coordinator:
            raise
        return project_of(event.caller.name, "", policy)


def _with_time_limit(request: Request, policy: Policy) -> tuple[Request, str]:
    """Return the request with its class's time limit if it names none, and the clause for the story."""
    limit = policy.classes[request.lease_class].time_limit_seconds
    if request.time_limit_seconds is not None or limit is None:
        return request, ""
    limit_text = f"; it may run for {format_duration(limit)}, as class {request.lease_class} says"
    return replace(request, time_limit_seconds=limit), limit_text


def _earlier_lease(event: RequestSubmitted, draft: Draft) -> Lease | None:
    if not event.request_id:
        return None
    if len(event.request_id) > MAX_REQUEST_ID:
        raise RequestError(
            f"a request id of {len(event.request_id)} characters is too long",
            hint=f"use at most {MAX_REQUEST_ID} characters, such as a UUID",
        )
    leases = (*draft.leases.values(), *draft.base.ended.values())
    same = (event.request_id, event.caller.uid)
    earlier = next((lease for lease in leases if (lease.request_id, lease.owner_uid) == same), None)
    if earlier is not None and (earlier.asked_first or earlier.request) != event.request:
        raise RequestError(
            f"request id {shown(event.request_id)} was used for something else",
            hint="give every new request an id of its own",
        )
    return earlier


def refuse_to_queue(draft: Draft, *, immediate: bool) -> None:
    """Refuse a request that would have to wait if it may not.

    Raises LimitReached if the queue is full, NoRoom if the owner did not want to wait.
    """
    lease = draft.find(draft.answer) if draft.answer else None
    if lease is None or not isinstance(lease.state, Queued):
        return
    if immediate:
        decision = next(d for d in decisions(draft.view(), draft.now) if d.lease == lease.id)
        raise NoRoom(
            refusal_sentence(lease.request, decision, draft.view()),
            hint="leave out --immediate to wait for it",
        )
    if lease.id not in draft.base.leases:
        _check_bounds(lease, draft)


def _check_bounds(new: Lease, draft: Draft) -> None:
    waiting = [lease for lease in draft.leases.values() if isinstance(lease.state, Queued) and lease != new]
    own = sum(lease.owner_uid == new.owner_uid for lease in waiting)
    if len(waiting) >= draft.rules.max_queued:
        verb = "request waits" if len(waiting) == 1 else "requests wait"
        raise LimitReached(f"{len(waiting)} {verb} already", hint="try again later")
    if own >= draft.rules.max_queued_per_user:
        verb = "waits" if own == 1 else "wait"
        raise LimitReached(f"{own} of your requests {verb} already", hint="`gpushare queue` lists them")
