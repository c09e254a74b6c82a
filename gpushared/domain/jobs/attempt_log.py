"""Answer a coordinator's orders from the node's log of attempts, which is written before the answer is sent.

The answer is the record, so an order that comes twice, or late, gets the same answer as before. If a query or
a cancel order for an attempt comes before the order to run the attempt, the node refuses the attempt for
ever: its record is a *tombstone*. The node does not take an order of an epoch below the highest one seen,
because its sender no longer leads. The node does answer a query of such an epoch, which harms nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpushared.domain.jobs.job import (
    AttemptState,
    Ending,
    EndKind,
    JobSpec,
)
from gpushared.domain.jobs.protocol import (
    CLIENT_END,
    CancelPart,
    Commit,
    Gang,
    GiveBack,
    Order,
    Place,
    Query,
    Report,
    StaleEpoch,
)
from gpushared.domain.model.lease import AttemptKey, LeaseId
from gpushared.domain.model.persistent_map import PersistentMap
from gpushared.domain.model.request import Caller, Request


@dataclass(frozen=True, slots=True)
class Attempt:
    """Record one part of an attempt on this node.

    A final record is kept, so that a late order gets the same answer.

    ``spec`` is None in a tombstone: a query or a cancel order came before the attempt. ``account`` is the
    local account under which the attempt runs. ``coordinator`` is the pool that gave the order, empty for the
    node itself.
    """

    key: AttemptKey
    state: AttemptState
    revision: int
    at: float
    spec: JobSpec | None = None
    request: Request | None = None
    account: Caller | None = None
    lease: LeaseId | None = None
    ending: Ending | None = None
    wait: bool = False
    gang: bool = False
    facts: Gang | None = None
    """The gang's start order sets these facts."""
    reserve_seconds: int = 60
    coordinator: str = ""
    cancelled_by: str = ""
    started_at: float | None = None
    boot_id: str = ""
    """The machine was in this boot when the container was last seen to begin."""
    placed_in: str = ""
    """The machine was in this boot when the order to run the attempt came."""
    guarded: bool = False
    """A guard ends the attempt's container for want of contact, also while the daemon is away."""

    @property
    def is_fenced(self) -> bool:
        """Return True if the attempt is ended for want of contact.

        The node's own attempts never lose contact.
        """
        return bool(self.coordinator) and self.spec is not None and self.spec.stop_after_seconds is not None


FINAL_KEPT_SECONDS = 30 * 24 * 3600.0
"""A final record is kept at least this long, which is longer than an order may be under way."""
SPEC_BYTES = 256 * 1024
"""A coordinator that may have forgotten finished attempts is sent this much of their specs."""
SPEC_REST_BYTES = 2048
"""A spec has about this many bytes besides its body."""
NEVER_SEEN = Ending(EndKind.LOST, "the node never saw the order to run it")
CANCELLED_UNSEEN = Ending(EndKind.CANCELLED, "it was cancelled before the node saw it")


@dataclass(frozen=True, slots=True)
class AttemptLog:
    """Log one coordinator's orders on a node.

    ``epoch`` is the highest epoch seen; ``next_revision`` is the revision of the next change.
    """

    records: PersistentMap[AttemptKey, Attempt] = field(default_factory=PersistentMap)
    live: Mapping[AttemptKey, Attempt] = field(default_factory=dict)
    """The records that are not final."""
    epoch: int = 0
    next_revision: int = 1
    coordinator: str = ""

    def get(self, key: AttemptKey) -> Attempt | None:
        return self.records.get(key)


class OrderWork(StrEnum):
    """Name the node's work for an order, done in the same transaction as the order's record."""

    NOTHING = "nothing"
    PREPARE = "prepare"
    """Make the image ready, then ask for the lease."""
    START = "start"
    """The gang is complete: make the container in the reserved lease."""
    END = "end"
    """End the attempt's lease. If the record has no lease and is final now, give up the preparation."""


@dataclass(frozen=True, slots=True)
class OrderAnswer:
    """Hold the log after an order, the answer, and the work to do. ``attempt`` is the record as it is now."""

    attempt_log: AttemptLog
    report: Report | StaleEpoch
    work: OrderWork = OrderWork.NOTHING
    attempt: Attempt | None = None


def restored(records: Iterable[Attempt], epoch: int = 0, coordinator: str = "") -> AttemptLog:
    """Return the log that had these records. ``epoch`` is the highest epoch seen."""
    by_key = {record.key: record for record in records}
    return AttemptLog(
        PersistentMap(by_key),
        {key: record for key, record in by_key.items() if not record.state.is_final},
        epoch,
        1 + max((record.revision for record in by_key.values()), default=0),
        coordinator,
    )


def take(
    attempt_log: AttemptLog,
    order: Order,
    account: Caller | None,
    refusal: Ending | None,
    now: float,
    *,
    boot_id: str = "",
) -> OrderAnswer:
    """Return the outcome of an order: the new log and the answer.

    ``account`` is the local account under which a ``Place`` would run here. ``refusal`` is the reason why
    this node does not take the order whatever is free, such as an owner who has no account here. ``boot_id``
    names this boot of the machine.
    """
    if order.epoch < attempt_log.epoch and not isinstance(order, Query):
        return OrderAnswer(
            attempt_log, StaleEpoch(order.key, attempt_log.epoch), attempt=attempt_log.get(order.key)
        )
    attempt_log = heard(attempt_log, order.epoch)
    match order:
        case Place():
            return _place(attempt_log, order, account, refusal, now, boot_id)
        case Query():
            return _answer(attempt_log, attempt_log.get(order.key) or _tombstone(order, NEVER_SEEN, now))
        case CancelPart():
            return _cancel(attempt_log, order, now)
        case Commit():
            return _commit(attempt_log, order, now)
        case GiveBack():
            return _cancel(attempt_log, CancelPart(order.key, order.epoch, 0, CLIENT_END), now)


def heard(attempt_log: AttemptLog, epoch: int) -> AttemptLog:
    """Return the log after a message of this epoch: orders of a lower epoch are not taken any more."""
    return replace(attempt_log, epoch=epoch) if epoch > attempt_log.epoch else attempt_log


def changed(
    attempt_log: AttemptLog,
    key: AttemptKey,
    state: AttemptState,
    *,
    lease: LeaseId | None = None,
    ending: Ending | None = None,
    started_at: float | None = None,
    boot_id: str | None = None,
    guarded: bool | None = None,
    now: float,
) -> AttemptLog:
    """Return the log after a lease, a container or a preparation changed; final records stay as they are.

    Values that are not given stay as they were. If the coordinator cancelled the attempt and it is then
    stopped, the end counts as the coordinator's.
    """
    record = attempt_log.records[key]
    if record.state.is_final:
        return attempt_log
    if ending is not None and ending.kind is EndKind.STOPPED and record.cancelled_by:
        ending = replace(ending, kind=EndKind.CANCELLED)
    new = replace(
        record,
        state=state,
        lease=lease or record.lease,
        ending=ending or record.ending,
        started_at=record.started_at if started_at is None else started_at,
        boot_id=record.boot_id if boot_id is None else boot_id,
        guarded=record.guarded if guarded is None else guarded,
    )
    return attempt_log if new == record else _written(attempt_log, replace(new, at=now))


def report_of(attempt: Attempt, *, with_spec: bool = False) -> Report:
    """Return the report on a record; ``with_spec`` adds the data that a coordinator without memory needs."""
    return Report(
        key=attempt.key,
        state=attempt.state,
        revision=attempt.revision,
        lease=attempt.lease,
        ending=attempt.ending,
        spec=attempt.spec if with_spec else None,
        request=attempt.request if with_spec else None,
        started_at=attempt.started_at,
        committed=attempt.facts is not None,
        ended_at=attempt.at if attempt.state.is_final else None,
        guarded=attempt.guarded,
    )


def reports(attempt_log: AttemptLog, spec_bytes: int = SPEC_BYTES) -> tuple[Report, ...]:
    """Return the reports on all attempts for the node's registration to a coordinator, the oldest change first.

    A coordinator that lost its memory goes on with live attempts by their specs. Of a finished attempt it
    must know only that the attempt is over. The newest of these come with their specs too, up to
    ``spec_bytes``, so that the jobs of the last hours are shown again. The specs of a whole month would keep
    both sides busy for as long as the node sends them.
    """
    records = sorted(attempt_log.records.values(), key=lambda record: record.revision)
    with_spec, remaining_bytes = set(attempt_log.live), spec_bytes
    for record in reversed(records):
        if record.state.is_final and record.spec is not None:
            remaining_bytes -= len(record.spec.body) + SPEC_REST_BYTES
            if remaining_bytes < 0:
                break
            with_spec.add(record.key)
    return tuple(_report_at_registration(record, record.key in with_spec) for record in records)


def _report_at_registration(record: Attempt, with_spec: bool) -> Report:
    """Return the report on a record. A gang's part always shows its request, which differs between nodes."""
    report = report_of(record, with_spec=with_spec)
    return replace(report, request=record.request) if record.gang else report


def fenced(attempt_log: AttemptLog) -> tuple[Attempt, ...]:
    """Return the attempts that are ended for want of contact."""
    return tuple(record for record in attempt_log.live.values() if record.is_fenced)


def to_fence(attempt_log: AttemptLog, contact_at: float, now: float) -> tuple[AttemptKey, ...]:
    """Return the attempts that must be ended, because the coordinator may soon take them for dead.

    ``contact_at`` is the time at which the newest acknowledged heartbeat was *sent*. Any later time would be
    wrong: the coordinator counts from the last message that it received from this node, not from the last one
    that it sent.
    """
    return tuple(sorted(key for key, at in _fences(attempt_log, contact_at) if at <= now))


def fence_at(attempt_log: AttemptLog, contact_at: float) -> float:
    """Return when ``to_fence`` will next return an attempt; infinite if no attempt may be taken for dead."""
    return min((at for _, at in _fences(attempt_log, contact_at)), default=float("inf"))


def of_earlier_boots(attempt_log: AttemptLog, boot_id: str) -> tuple[AttemptKey, ...]:
    """Return the attempts that must not begin, or go on, in this boot of the machine.

    While the machine was off, an admin may have reported that to the coordinator, which then runs the jobs
    elsewhere. Attempts that were running are left out: their end already reports that they are lost. The
    node's own attempts are left out too, because no other node runs them.
    """
    if not attempt_log.coordinator:
        return ()
    return tuple(
        sorted(
            key
            for key, record in attempt_log.live.items()
            if record.state is not AttemptState.RUNNING and (record.boot_id or record.placed_in) != boot_id
        )
    )


def pruned(attempt_log: AttemptLog, now: float) -> AttemptLog:
    """Return the log without final records that are too old for any late order."""
    old = [
        key
        for key, record in attempt_log.records.items()
        if record.state.is_final and record.at < now - FINAL_KEPT_SECONDS
    ]
    records = attempt_log.records
    for key in old:
        records = records.drop(key)
    return replace(attempt_log, records=records)


# --- one order each ------------------------------------------------------------------------------------


def _place(
    attempt_log: AttemptLog,
    order: Place,
    account: Caller | None,
    refusal: Ending | None,
    now: float,
    boot_id: str,
) -> OrderAnswer:
    record = attempt_log.get(order.key)
    if record is not None:
        return OrderAnswer(attempt_log, report_of(record), attempt=record)
    record = Attempt(
        key=order.key,
        state=AttemptState.PREPARING if refusal is None else AttemptState.REFUSED,
        revision=attempt_log.next_revision,
        at=now,
        spec=order.spec,
        request=order.request,
        account=account,
        ending=refusal,
        wait=order.wait,
        gang=order.gang,
        reserve_seconds=order.reserve_seconds,
        placed_in=boot_id,
        # The attempt's container is started only once a guard watches it.
        guarded=order.spec.stop_after_seconds is not None,
    )
    return _answer(attempt_log, record, OrderWork.PREPARE if refusal is None else OrderWork.NOTHING)


def _cancel(attempt_log: AttemptLog, order: CancelPart, now: float) -> OrderAnswer:
    record = attempt_log.get(order.key)
    if record is None:
        return _answer(attempt_log, _tombstone(order, CANCELLED_UNSEEN, now))
    if record.state.is_final:
        return OrderAnswer(attempt_log, report_of(record), attempt=record)
    by = order.by or "the coordinator"
    if record.lease is None:
        gone = Ending(EndKind.CANCELLED, f"cancelled by {by}")
        return _answer(
            attempt_log,
            replace(record, state=AttemptState.ENDED, ending=gone, cancelled_by=by, at=now),
            OrderWork.END,
        )
    if record.cancelled_by:
        return OrderAnswer(attempt_log, report_of(record), OrderWork.END, record)
    return _answer(attempt_log, replace(record, cancelled_by=by, at=now), OrderWork.END)


def _commit(attempt_log: AttemptLog, order: Commit, now: float) -> OrderAnswer:
    record = attempt_log.get(order.key)
    if record is None:
        return _answer(attempt_log, _tombstone(order, NEVER_SEEN, now))
    if record.state is not AttemptState.RESERVED or not record.gang or record.facts or record.cancelled_by:
        return OrderAnswer(attempt_log, report_of(record), attempt=record)
    return _answer(attempt_log, replace(record, facts=order.gang, at=now), OrderWork.START)


def _tombstone(order: Order, ending: Ending, now: float) -> Attempt:
    return Attempt(order.key, AttemptState.REFUSED, 0, now, ending=ending)


def _answer(attempt_log: AttemptLog, record: Attempt, work: OrderWork = OrderWork.NOTHING) -> OrderAnswer:
    """Answer with the record, and write the record if it is new."""
    if attempt_log.get(record.key) is not record:
        attempt_log = _written(attempt_log, record)
    record = attempt_log.records[record.key]
    return OrderAnswer(attempt_log, report_of(record), work, record)


def _written(attempt_log: AttemptLog, record: Attempt) -> AttemptLog:
    record = replace(record, revision=attempt_log.next_revision, coordinator=attempt_log.coordinator)
    live = {key: other for key, other in attempt_log.live.items() if key != record.key}
    if not record.state.is_final:
        live[record.key] = record
    return replace(
        attempt_log,
        records=attempt_log.records.put(record.key, record),
        live=live,
        next_revision=attempt_log.next_revision + 1,
    )


def _fences(attempt_log: AttemptLog, contact_at: float) -> Iterable[tuple[AttemptKey, float]]:
    return (
        (key, contact_at + record.spec.stop_after_seconds)
        for key, record in attempt_log.live.items()
        if record.spec is not None and record.spec.stop_after_seconds is not None
    )
