"""Run jobs on this node as attempts. Each attempt has a record in its coordinator's log, and a lease.

The record changes in the same step as the thing that it records: the node writes an order before it answers
the order, and an attempt's state follows its lease's state. The results of the daemon's work for an attempt
(pull, create, start) come back as events.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpushared.domain.jobs import attempt_log as log_of
from gpushared.domain.jobs.attempt_log import Attempt, AttemptLog, OrderWork
from gpushared.domain.jobs.job import AttemptState, Ending, EndKind
from gpushared.domain.jobs.node_messages import (
    AttemptInstruction,
    AttemptPrepared,
    Contact,
    ContactMade,
    EngineEnded,
    FencesLooked,
    GiveUpAttempt,
    GuardEnded,
    GuardLooked,
    LaunchAttempt,
    LaunchFailed,
    OrderTaken,
    PrepareAttempt,
)
from gpushared.domain.jobs.protocol import CancelPart, GiveBack, Query, Report
from gpushared.domain.leases.events import ContainerSeen, RequestSubmitted
from gpushared.domain.leases.lifecycle import end
from gpushared.domain.leases.node_state import Draft, NodeState
from gpushared.domain.leases.parked import REMOVED
from gpushared.domain.leases.submission import submit
from gpushared.domain.model.errors import (
    GpushareError,
    LimitReached,
    NotFound,
    PermissionRefused,
    RequestError,
    StateConflict,
)
from gpushared.domain.model.gpu import describe_gpu
from gpushared.domain.model.lease import (
    Active,
    AttemptKey,
    ContainerId,
    Draining,
    Ended,
    Expired,
    Failed,
    Finished,
    Idle,
    Lease,
    NeverClaimed,
    Outcome,
    OutsideMps,
    OverLimit,
    Preempted,
    Queued,
    Reserved,
    Starting,
    Stopped,
)
from gpushared.domain.model.request import Request
from gpushared.domain.model.units import format_duration, format_memory

CONTACT_WRITTEN_SECONDS = 10.0
"""The node writes a contact to disk only this often. A node that forgets a contact fences too early, never
too late."""
FENCE_GRACE_SECONDS = 10
"""The grace of a fence is at most this, however long stops on this node may take: the coordinator waits no
longer."""
GUARD_AFTER_SECONDS = 5
"""The guard ends a container this long after the daemon's own check: the daemon comes first and asks the
engine."""
PRUNE_SECONDS = 3600.0
WENT_DOWN = Ending(EndKind.LOST, "the node went down before it began, or while it was paused")
ENGINE_ENDED = Ending(EndKind.LOST, "Docker was stopped or restarted, which ended it")
NOT_STARTED = Ending(EndKind.FAILED, "no container was started in time")
MACHINE_FAULTS = re.compile(
    r"task [0-9a-f]+: already exists"
    r"|no space left on device|disk quota exceeded|input/output error"
    r"|too many open files|cannot allocate memory"
    r"|driver/library version mismatch",
    re.IGNORECASE,
)
"""The engine answers with these words at faults of the machine, which say nothing of the job: the remains of
a start during which the engine was killed (containerd's ErrAlreadyExists; a new container starts), a disk,
files or memory of the machine (errno(3)), and a driver that was updated while it was loaded
(NVML_ERROR_LIB_RM_VERSION_MISMATCH)."""
RAN_OUT = Ending(EndKind.NO_ROOM, "its reservation ran out before all of its gang had one")
REFUSALS = (RequestError, LimitReached, NotFound, PermissionRefused, StateConflict)
"""A request may be refused with these errors. Then the attempt is refused, and its record says so."""


# --- orders --------------------------------------------------------------------------------------------


def order_taken(event: OrderTaken, draft: Draft) -> None:
    """Write the order's effect on its attempt, and carry the order out."""
    key, coordinator = event.order.key, event.coordinator
    attempt_log = draft.attempts.get(coordinator) or AttemptLog(coordinator=coordinator)
    order = event.order
    if isinstance(order, GiveBack) and _is_claimed(attempt_log.get(key), draft):
        order = Query(key, order.epoch)  # the attempt's container came before the order
    answer = log_of.take(
        attempt_log, order, event.account, event.refusal, draft.now, boot_id=draft.base.boot_id
    )
    draft.report = answer.report
    draft.report_to = coordinator
    draft.keep_attempts(answer.attempt_log, key)
    _note_epoch(answer.attempt_log, draft)
    if answer.attempt is None:
        return
    match answer.work:
        case OrderWork.PREPARE:
            # Without a contact on disk the first look after a crash would end the attempt.
            draft.write_contact(coordinator)
            draft.do(PrepareAttempt(key, coordinator))
        case OrderWork.START:
            _start_gang(answer.attempt, draft)
        case OrderWork.END:
            grace = event.order.grace_seconds if isinstance(event.order, CancelPart) else 0
            by = answer.attempt.cancelled_by
            _end(answer.attempt, Stopped(by), f"its job was cancelled by {by}", draft, grace)
        case OrderWork.NOTHING:
            pass


def _is_claimed(attempt: Attempt | None, draft: Draft) -> bool:
    """Return True if a container of the attempt exists, or is being made."""
    lease = None if attempt is None else _lease_of(attempt, draft)
    if lease is None or isinstance(lease.state, Queued):
        return False
    return not isinstance(lease.state, Reserved) or lease.state.claimed or not draft.engine_surveyed


def _note_epoch(attempt_log: AttemptLog, draft: Draft) -> None:
    contact = draft.contacts.get(attempt_log.coordinator, Contact())
    if attempt_log.epoch > contact.epoch:
        draft.contacts[attempt_log.coordinator] = replace(contact, epoch=attempt_log.epoch)
        draft.write_contact(attempt_log.coordinator)


def _start_gang(attempt: Attempt, draft: Draft) -> None:
    """Launch a gang's attempt once the whole gang is ready; its reservation is then like any other."""
    lease = _lease_of(attempt, draft)
    if lease is None or not isinstance(lease.state, Reserved):
        return
    deadline = draft.now + draft.rules.claim_seconds
    draft.move(lease, replace(lease.state, deadline=deadline), "the whole gang has its reservations")
    draft.do(LaunchAttempt(attempt.key, attempt.coordinator))


def _end(attempt: Attempt, outcome: Stopped | Failed, why: str, draft: Draft, grace_seconds: int) -> None:
    draft.do(GiveUpAttempt(attempt.key, attempt.coordinator))
    lease = _lease_of(attempt, draft)
    if lease is not None:
        end(lease, outcome, why, draft, grace_seconds=grace_seconds)


def _lease_of(attempt: Attempt, draft: Draft) -> Lease | None:
    return None if attempt.lease is None else draft.leases.get(attempt.lease)


# --- the daemon's results for an attempt ---------------------------------------------------------------


def prepared(event: AttemptPrepared, draft: Draft) -> bool:
    """Ask for the lease of an attempt whose image is there. Return True if it must have the lease at once.

    Raises the errors with which a request is refused; see ``refused``.
    """
    attempt = _live(event.coordinator, event.key, draft)
    if attempt is None or attempt.state is not AttemptState.PREPARING:
        return False  # the attempt was cancelled before its image was there
    if event.ending is not None:
        _note(attempt, AttemptState.ENDED, draft, ending=event.ending)
        return False
    assert attempt.account is not None, "refused without one"
    assert attempt.spec is not None, "only tombstones have none"
    submission = RequestSubmitted(
        _request_of(attempt),
        attempt.account,
        attempt=attempt.key,
        coordinator=attempt.coordinator,
        container_name=attempt.spec.name,
        image=attempt.spec.image,
    )
    lease = submit(submission, draft)
    _note(attempt, AttemptState.WAITING, draft, lease=lease)
    return not attempt.wait


def refused(event: object, error: GpushareError, state: NodeState, now: float) -> Draft:
    """Return the draft in which the attempt, not the event, is refused.

    Raises the error again where it does not refuse an attempt.
    """
    if not isinstance(event, AttemptPrepared) or not isinstance(error, REFUSALS):
        raise error
    draft = Draft(state, now)
    attempt = _live(event.coordinator, event.key, draft)
    assert attempt is not None, "only one that lives asks for a lease"
    # The hint on a full node is for people who ask the node themselves.
    hint = "" if isinstance(error, LimitReached) else error.hint
    kind = EndKind.NO_ROOM if isinstance(error, LimitReached) else EndKind.FAILED
    ending = Ending(kind, error.message, hint=hint)
    _note(attempt, AttemptState.REFUSED, draft, ending=ending)
    return draft


def _request_of(attempt: Attempt) -> Request:
    """Return the request that the node makes of itself.

    A gang's request is not requeued: a gang of which one part waited would wait as a whole.
    """
    assert attempt.request is not None, "only tombstones have none"
    assert attempt.spec is not None, "only tombstones have none"
    stays = attempt.spec.requeue and not attempt.gang
    return attempt.request if stays else replace(attempt.request, requeue=False)


def launch_failed(event: LaunchFailed, draft: Draft) -> None:
    """End the lease of an attempt whose container is missing or does not start, and so the attempt.

    The attempt's ending repeats the event's words.
    """
    attempt = _live(event.coordinator, event.key, draft)
    if attempt is None:
        return
    _end_as(attempt, event.ending, draft, draft.rules.stop_grace_seconds)


def _end_as(attempt: Attempt, ending: Ending, draft: Draft, grace_seconds: int) -> None:
    """End a live attempt with this ending, whatever its lease's outcome is."""
    lease = _lease_of(attempt, draft)
    if lease is None:
        _note(attempt, AttemptState.ENDED, draft, ending=ending)
        draft.do(GiveUpAttempt(attempt.key, attempt.coordinator))
        return
    _note(attempt, attempt.state, draft, ending=ending)
    _end(attempt, Failed(ending.reason, ending.hint), ending.reason, draft, grace_seconds)


def lose(lease: Lease, failed: Failed, draft: Draft) -> None:
    """Record that the attempt of a lease, if it has one, ends because its GPU broke: its job may run again."""
    attempt = None if lease.attempt is None else _live(lease.coordinator, lease.attempt, draft)
    if attempt is not None and attempt.ending is None:
        ending = Ending(EndKind.LOST, failed.reason, hint=failed.hint, passing=True)
        _note(attempt, attempt.state, draft, ending=ending)


def engine_ended(event: EngineEnded, draft: Draft) -> None:
    """Record that the attempts in these containers are lost, whatever exit codes the containers have."""
    for attempt_log in list(draft.attempts.values()):
        for attempt in list(attempt_log.live.values()):
            lease = _lease_of(attempt, draft)
            if attempt.ending is None and lease is not None and lease.container in event.containers:
                _note(attempt, attempt.state, draft, ending=ENGINE_ENDED)


# --- contact with the coordinator ----------------------------------------------------------------------


def contact_made(event: ContactMade, draft: Draft) -> None:
    """Note that the coordinator received a message of this node. A contact that is too late still fences."""
    _fence(event.coordinator, event.boot_id, event.sent_at, draft)
    before = draft.contacts.get(event.coordinator, Contact())
    # A coordinator that lost its memory counts its revisions anew, in a new epoch.
    newest = max((before.epoch, before.revision), (event.epoch, event.revision))
    now = Contact(
        epoch=newest[0],
        revision=newest[1],
        boot_id=event.boot_id,
        at=max(event.sent_at, before.at) if before.boot_id == event.boot_id and before.at else event.sent_at,
    )
    draft.contacts[event.coordinator] = now
    attempt_log = draft.attempts.get(event.coordinator) or AttemptLog(coordinator=event.coordinator)
    draft.keep_attempts(log_of.heard(attempt_log, now.epoch))
    if _is_worth_writing(now, draft.base.contacts_written.get(event.coordinator, Contact()), attempt_log):
        draft.write_contact(event.coordinator)


def _is_worth_writing(now: Contact, written: Contact, attempt_log: AttemptLog) -> bool:
    if now.epoch != written.epoch or (now.boot_id != written.boot_id and attempt_log.live):
        return True
    matters = now.revision != written.revision or math.isfinite(log_of.fence_at(attempt_log, 0.0))
    since = -math.inf if written.at is None or written.boot_id != now.boot_id else written.at
    return matters and now.at is not None and now.at - since >= CONTACT_WRITTEN_SECONDS


def fences_looked(event: FencesLooked, draft: Draft) -> None:
    """End the attempts that their coordinator may have given up by now."""
    for coordinator in list(draft.attempts):
        _fence(coordinator, event.boot_id, event.at, draft)


def _fence(coordinator: str, boot_id: str, at: float, draft: Draft) -> None:
    attempt_log = draft.attempts.get(coordinator)
    if attempt_log is None or not coordinator:
        return  # the node's own job store is never out of reach
    since = _heard_at(draft.contacts.get(coordinator, Contact()), boot_id)
    for key in log_of.to_fence(attempt_log, since, at):
        if attempt_log.live[key].ending is None:
            _end_fenced(attempt_log.live[key], "this node", draft)


def _heard_at(contact: Contact, boot_id: str) -> float:
    """Return when the coordinator last received a message of this node in this boot.

    Return minus infinity, which is always too long ago, if nothing is known of this boot.
    """
    return contact.at if contact.boot_id == boot_id and contact.at is not None else -math.inf


def _end_fenced(attempt: Attempt, by: str, draft: Draft) -> None:
    assert attempt.spec is not None, "a fence is in the spec"
    patience = format_duration(attempt.spec.stop_after_seconds or 0)
    reason = f"{by} ended it: {attempt.coordinator} had not heard of this node for {patience}"
    grace = min(draft.rules.stop_grace_seconds, FENCE_GRACE_SECONDS)
    _end_as(attempt, Ending(EndKind.FENCED, reason), draft, grace)


# --- the guard, which ends attempts without the daemon -------------------------------------------------


def deadlines(state: NodeState) -> dict[ContainerId, float | None]:
    """Return when (CLOCK_BOOTTIME) the guard is to end the container of each fenced attempt.

    None for a container that is being ended: a later contact does not give it more time.
    """
    deadline_by_container: dict[ContainerId, float | None] = {}
    for attempt_log in state.attempts.values():
        since = _heard_at(state.contacts.get(attempt_log.coordinator, Contact()), state.boot_id)
        for attempt in log_of.fenced(attempt_log):
            lease = state.attempt_lease(attempt)
            if lease is not None and lease.container is not None:
                assert attempt.spec is not None, "a fence is in the spec"
                patience = (attempt.spec.stop_after_seconds or 0) + GUARD_AFTER_SECONDS
                at = since + patience if math.isfinite(since) else 0.0
                deadline_by_container[lease.container] = at if attempt.ending is None else None
    return deadline_by_container


def due_containers(state: NodeState, boot_id: str, at: float) -> tuple[ContainerId, ...]:
    """Return the containers of the attempts that a check of the fences at this moment would end."""
    containers = []
    for attempt_log in state.attempts.values():
        since = _heard_at(state.contacts.get(attempt_log.coordinator, Contact()), boot_id)
        due = set(log_of.to_fence(attempt_log, since, at)) if attempt_log.coordinator else set()
        for attempt in log_of.fenced(attempt_log):
            lease = state.attempt_lease(attempt)
            if attempt.key in due and attempt.ending is None and lease is not None and lease.container:
                containers.append(lease.container)
    return tuple(containers)


def guard_looked(event: GuardLooked, draft: Draft) -> None:
    """Record for each fenced attempt whether a guard watches over its container.

    The coordinator reads this: after a silence it runs the job elsewhere only where a guard watches.
    """
    for attempt_log in list(draft.attempts.values()):
        for attempt in log_of.fenced(attempt_log):
            lease = _lease_of(attempt, draft)
            begun = lease is not None and lease.container is not None
            guarded = event.watches or not begun
            if attempt.guarded != guarded:
                _note(attempt, attempt.state, draft, guarded=guarded)


def guard_ended(event: GuardEnded, draft: Draft) -> None:
    """Record that the guard ended these containers at their deadlines.

    The guard cut their work off, whatever their exit codes are.
    """
    for attempt_log in list(draft.attempts.values()):
        for attempt in log_of.fenced(attempt_log):
            lease = _lease_of(attempt, draft)
            if attempt.ending is None and lease is not None and lease.container in event.containers:
                _end_fenced(attempt, "the guard of this node", draft)


# --- an attempt's state follows its lease's state ------------------------------------------------------


def follow(draft: Draft) -> None:
    """Copy the event's changes to the leases of attempts into the attempts' records."""
    for lease in draft.changed_leases():
        if lease.attempt is None:
            continue
        attempt = _live(lease.coordinator, lease.attempt, draft)
        if attempt is not None:
            _follow(attempt, lease, draft)
    if isinstance(draft.report, Report):
        # The answer is the written record, because the order itself may have changed the record.
        draft.report = log_of.report_of(draft.attempts[draft.report_to].records[draft.report.key])


def note_unseen_runs(containers: Iterable[ContainerSeen], draft: Draft) -> None:
    """Note when those containers of attempts began that were over before any look saw them run."""
    ran_seconds = {seen.container: seen.ran_seconds for seen in containers if seen.ran_seconds is not None}
    if not ran_seconds:
        return
    for attempt_log in list(draft.attempts.values()):
        for attempt in list(attempt_log.live.values()):
            lease = _lease_of(attempt, draft) if attempt.started_at is None else None
            container = None if lease is None else lease.container
            if container in ran_seconds:
                _note(attempt, attempt.state, draft, started_at=draft.now - ran_seconds[container])


def _follow(attempt: Attempt, lease: Lease, draft: Draft) -> None:
    match lease.state:
        case Ended(outcome=outcome):
            alone = attempt.gang and isinstance(outcome, NeverClaimed) and attempt.facts is None
            to = AttemptState.REFUSED if alone else AttemptState.ENDED
            ending = RAN_OUT if alone else _ending(attempt, outcome, draft)
            # A container may be over before any look saw it run, and no engine may tell how long it ran.
            ran = ending.kind is EndKind.EXITED and attempt.started_at is None
            _note(attempt, to, draft, ending=ending, lease=lease, started_at=draft.now if ran else None)
        case Reserved():
            if attempt.state is not AttemptState.RESERVED:
                _note(attempt, AttemptState.RESERVED, draft, lease=lease)
                if _launches_now(attempt):
                    draft.do(LaunchAttempt(attempt.key, attempt.coordinator))
        case Active():
            began = attempt.started_at if attempt.started_at is not None else draft.now
            boot_id = draft.base.boot_id
            _note(attempt, AttemptState.RUNNING, draft, lease=lease, started_at=began, boot_id=boot_id)
        case Queued() | Starting() | Draining():
            # The state stays: the lease waits, its container is being made, or the container is going.
            pass
        case _:
            _note(attempt, AttemptState.PAUSED, draft, lease=lease)


def _launches_now(attempt: Attempt) -> bool:
    """Return True if the node makes the attempt's container by itself now.

    The owner makes the container of an interactive attempt. A gang's containers wait until all of the gang
    are ready.
    """
    assert attempt.spec is not None, "only tombstones have none"
    return not attempt.spec.interactive and (not attempt.gang or attempt.facts is not None)


def _ending(attempt: Attempt, outcome: Outcome, draft: Draft) -> Ending:
    """Return the ending recorded before the lease ended, else the ending that follows from the outcome."""
    lost = attempt.boot_id and attempt.boot_id != draft.base.boot_id
    if lost and (isinstance(outcome, Finished) or outcome == REMOVED):
        return Ending(EndKind.LOST, "the node went down while it ran")
    code = outcome.exit_code if isinstance(outcome, Finished) else None
    recorded = attempt.ending
    if recorded is not None and (recorded.kind is not EndKind.FENCED or code is None):
        return (
            recorded if code is None or recorded.exit_code is not None else replace(recorded, exit_code=code)
        )
    if code and draft.goes_down:
        return Ending(EndKind.LOST, "it was stopped with its machine, which was shut down", exit_code=code)
    if outcome == NeverClaimed() and attempt.spec is not None and not attempt.spec.interactive:
        # The node makes this container itself: the daemon or its engine was away for too long.
        return replace(NOT_STARTED, passing=True)
    return _ending_of(outcome, code, draft)


def start_failure(why: str, exit_code: int | None = None) -> Ending:
    """Return the ending of an attempt whose container the engine did not start, in the engine's words."""
    return Ending(EndKind.FAILED, why, exit_code=exit_code, passing=bool(MACHINE_FAULTS.search(why)))


def _ending_of(outcome: Outcome, code: int | None, draft: Draft) -> Ending:
    match outcome:
        case Finished(start_error=why) if why:
            return start_failure(why, code)
        case Finished():
            return Ending(EndKind.EXITED, exit_code=code)
        case Stopped(by):
            return Ending(EndKind.STOPPED, f"stopped by {by}")
        case Expired():
            return Ending(EndKind.EXPIRED, "its time limit was reached")
        case NeverClaimed():
            return NOT_STARTED
        case Failed(reason, hint):
            return Ending(EndKind.FAILED, reason, hint=hint)
        case Preempted(why):
            return Ending(EndKind.PREEMPTED, f"it gave way to {why}")
        case Idle(seconds):
            return Ending(EndKind.STOPPED, f"it did nothing on its GPUs for {format_duration(int(seconds))}")
        case OverLimit() | OutsideMps():
            return Ending(EndKind.FAILED, _broken(outcome, draft))


def _broken(outcome: OverLimit | OutsideMps, draft: Draft) -> str:
    name = describe_gpu(outcome.gpu, draft.gpus)
    if isinstance(outcome, OverLimit):
        used, limit = format_memory(outcome.used_bytes), format_memory(outcome.limit_bytes)
        return f"it used {used} on {name}, where it holds {limit}"
    return f"its process {outcome.pid} used {name} beside MPS"


def _live(coordinator: str, key: AttemptKey, draft: Draft) -> Attempt | None:
    attempt_log = draft.attempts.get(coordinator)
    return None if attempt_log is None else attempt_log.live.get(key)


def _note(
    attempt: Attempt,
    state: AttemptState,
    draft: Draft,
    *,
    lease: Lease | None = None,
    ending: Ending | None = None,
    started_at: float | None = None,
    boot_id: str | None = None,
    guarded: bool | None = None,
) -> None:
    attempt_log = log_of.changed(
        draft.attempts[attempt.coordinator],
        attempt.key,
        state,
        lease=None if lease is None else lease.id,
        ending=ending,
        started_at=started_at,
        boot_id=boot_id,
        guarded=guarded,
        now=draft.now,
    )
    draft.keep_attempts(attempt_log, attempt.key)


# --- restarts, and old records -------------------------------------------------------------------------


def restored(records: Iterable[Attempt], contacts: Mapping[str, Contact]) -> dict[str, AttemptLog]:
    """Sort the records of a journal into logs, one for each coordinator."""
    by_coordinator: dict[str, list[Attempt]] = {name: [] for name in contacts}
    for record in records:
        by_coordinator.setdefault(record.coordinator, []).append(record)
    return {
        name: log_of.restored(attempts, contacts.get(name, Contact()).epoch, name)
        for name, attempts in by_coordinator.items()
    }


def end_attempts_of_earlier_boots(draft: Draft) -> None:
    """End the attempts of earlier boots; their coordinator may run them elsewhere by now.

    This comes first of all after a restart of the daemon.
    """
    for attempt_log in list(draft.attempts.values()):
        for key in log_of.of_earlier_boots(attempt_log, draft.base.boot_id):
            attempt = attempt_log.live[key]
            if attempt.ending is None:
                _end_as(attempt, WENT_DOWN, draft, draft.rules.stop_grace_seconds)
    draft.earlier_boots_over = True


def under_way(state: NodeState) -> tuple[AttemptInstruction, ...]:
    """Return the work for attempts that the daemon has to do again after a restart.

    All of that work may be half done already.
    """
    instructions: list[AttemptInstruction] = []
    for attempt_log in state.attempts.values():
        over = log_of.of_earlier_boots(attempt_log, state.boot_id)
        for key, attempt in attempt_log.live.items():
            if key in over:
                continue
            if attempt.state is AttemptState.PREPARING:
                instructions.append(PrepareAttempt(attempt.key, attempt.coordinator))
            elif is_to_launch(attempt, state):
                instructions.append(LaunchAttempt(attempt.key, attempt.coordinator))
    return tuple(instructions)


def is_to_launch(attempt: Attempt, state: NodeState) -> bool:
    """Return True if the attempt has its lease and its container has not begun yet."""
    lease = state.attempt_lease(attempt)
    if lease is None or attempt.started_at is not None or not _launches_now(attempt):
        return False
    return isinstance(lease.state, Reserved | Starting)


def prune(draft: Draft) -> None:
    """Forget, now and then, the final records that are too old for any late order."""
    if draft.now - draft.pruned_at < PRUNE_SECONDS and draft.pruned_at <= draft.now:
        return
    draft.pruned_at = draft.now
    for attempt_log in list(draft.attempts.values()):
        pruned_log = log_of.pruned(attempt_log, draft.now)
        if len(pruned_log.records) < len(attempt_log.records):
            draft.keep_attempts(pruned_log)
            draft.forgotten_before = draft.now - log_of.FINAL_KEPT_SECONDS
