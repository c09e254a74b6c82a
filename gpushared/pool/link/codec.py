"""Convert the records of a node's link to bytes and back, and check that they are possible.

The two sides may be one version apart, either way. Each side ignores fields that only the other side knows,
and gives missing fields their default. A new kind of message has a capability, and goes only to a side that
announced that capability.

An attacker may later control a joined machine, node or coordinator alike. The messages of either therefore
pass the same bounds as the input of users, before the receiver uses them. A bad text that is stored once
would harm everybody who reads it. ``bounds`` checks the ranges of the numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from gpushared.api.v1 import link_pb2
from gpushared.domain.jobs.job import JobSpec
from gpushared.domain.jobs.member import HeartbeatReport, Holding, Inventory
from gpushared.domain.jobs.protocol import CancelPart, Commit, Order, Place, Report, StaleEpoch
from gpushared.domain.jobs.submit_limits import MAX_INDEX
from gpushared.domain.model.errors import (
    GpushareError,
    RequestError,
    StateConflict,
    Unavailable,
    kind_of_code,
)
from gpushared.domain.model.gpu import WHOLE_PERMILLE
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.notification import check_targets
from gpushared.domain.model.request import Isolation, Request
from gpushared.domain.model.request_spec import MAX_AFTER as MAX_LEASES
from gpushared.domain.model.request_spec import MAX_MODELS, NOTICE_SIGNALS
from gpushared.domain.model.units import MAX_GPUS, shown
from gpushared.jobs import bounds
from gpushared.jobs.bounds import MAX_WHOLE, Bounds
from gpushared.jobs.job_requests import MAX_BODY_BYTES, MAX_IMAGE, MAX_NAME
from gpushared.jobs.jobs_service import MAX_AFTER
from gpushared.storage.records import RecordError, from_json, from_parsed, parsed, to_json

GENERATION = 1
"""This is the generation of the link's protocol. It rises only if added fields do not suffice; then both
sides speak both generations."""
SPOKEN = (1,)
_GENERATION = "link-"
_LISTED = re.compile(rf"{_GENERATION}([0-9]{{1,9}})")
"""Bound the digits: Python refuses to read a number of thousands of digits."""

TUNNEL = "tunnel"
TRUST = "trust"
GIVE_BACK = "give-back"
CAPABILITIES = (*(f"{_GENERATION}{generation}" for generation in SPOKEN), TUNNEL, TRUST, GIVE_BACK)
WAIT_METADATA = "gpushare-wait-seconds"
"""A node sends this with ``Connect`` to wait so long at a coordinator that stands by, until one leads."""
LOST_METADATA = "gpushare-lost-epoch"
"""A node that waits sends this too: the newest epoch that it knows, of a leader that it does not reach."""
HISTORY, LEASES, GPUS = "history", "leases", "gpus"
"""These are the kinds of questions that a coordinator asks a node."""

HELLO_BYTES = 256 * 1024
"""Bound the reports in a registration's first message; more would block the reader's event loop for too long.
"""
MAX_INVENTORY_BYTES = 128 * 1024
"""The inventory is a part of its node's record in the store, so its size is bounded."""
MAX_HOLDINGS = 65_536
MAX_AHEAD = 1_000_000
"""An epoch may be this far above ours: no coordinator was started so often."""
MAX_TEXT = 256
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Match half of a surrogate pair, or a text that looks like one."""
_DIGITS = bytes(ord("1") if chr(byte).isascii() and chr(byte).isdigit() else ord("0") for byte in range(256))
_MANY_DIGITS = b"1" * 18
"""A number of so many digits may be too long. Translating bytes finds it in a tenth of a pattern's time."""


class Unreadable(RequestError):
    """The other side sent data that this version cannot read, or impossible data."""


# --- capabilities --------------------------------------------------------------------------------------


def check_generation(side: str, capabilities: Iterable[str], version: str) -> None:
    """Refuse a side without a common generation of the link. Raises StateConflict.

    A side that lists no generation speaks the first.
    """
    generations = {int(listed[1]) for each in capabilities if (listed := _LISTED.fullmatch(each))} or {1}
    if generations.isdisjoint(SPOKEN):
        older = side if max(generations) < min(SPOKEN) else "this side"
        raise StateConflict(
            f"{side} (version {shown(version)}) speaks generation {max(generations)} of the link, "
            f"and this side {', '.join(map(str, SPOKEN))}",
            hint=f"update {older}; versions that follow each other understand each other",
        )


def answers(kind: str) -> str:
    """Return the capability of a node that answers questions of this kind."""
    return f"answers-{kind}"


# --- records -------------------------------------------------------------------------------------------


def inventory_bytes(inventory: Inventory) -> bytes:
    return to_json(Inventory, inventory).encode()


def read_inventory(data: bytes) -> Inventory:
    """Read an inventory. Raises Unreadable, also for impossible values."""
    if len(data) > MAX_INVENTORY_BYTES:
        raise Unreadable(f"an inventory of {len(data)} bytes")
    inventory: Inventory = _read(Inventory, data, "an inventory")
    ids = {gpu.id for gpu in inventory.gpus}
    if len(inventory.gpus) > MAX_GPUS or len(ids) < len(inventory.gpus):
        raise Unreadable(f"an inventory of {len(inventory.gpus)} GPUs with {len(ids)} names")
    for gpu in inventory.gpus:
        if gpu.leasable_bytes > gpu.memory_total_bytes:
            raise Unreadable(
                f"GPU {shown(gpu.id)} cannot lease {gpu.leasable_bytes} of {gpu.memory_total_bytes} bytes"
            )
    return inventory


def free_bytes(free: HeartbeatReport) -> bytes:
    return to_json(HeartbeatReport, free).encode()


def read_free(data: bytes) -> HeartbeatReport:
    """Read a heartbeat's report. Raises Unreadable."""
    return HeartbeatReader().read(data)


class HeartbeatReader:
    """Read the reports of one node's heartbeats.

    Most of the leases that a node holds are in its last report too. They stay the same objects: they are
    neither read nor checked again, here and by all who compare reports.
    """

    def __init__(self) -> None:
        self._previous: dict[str, tuple[Any, Holding]] = {}

    def read(self, data: bytes) -> HeartbeatReport:
        """Read a report. Raises Unreadable, RequestError."""
        with _reading("what is held"):
            fields = parsed(read_text(data))
            items = fields.get("holdings", []) if isinstance(fields, dict) else []
            if not isinstance(items, list) or len(items) > MAX_HOLDINGS:
                raise RecordError(f"at most {MAX_HOLDINGS} leases can be held")
            rest: HeartbeatReport = from_parsed(
                HeartbeatReport, {**fields, "holdings": []} if items else fields
            )
            same = [self._unchanged(item) for item in items]
            holdings = [
                before or from_parsed(Holding, item) for item, before in zip(items, same, strict=True)
            ]
        bounds.check_record(rest)
        for holding, before in zip(holdings, same, strict=True):
            if before is None:
                bounds.check_record(holding)
        self._previous = {
            holding.lease: (item, holding) for item, holding in zip(items, holdings, strict=True)
        }
        return replace(rest, holdings=tuple(holdings)) if holdings else rest

    def _unchanged(self, fields: Any) -> Holding | None:
        """Return the holding of the last report if its JSON is the same."""
        lease = fields.get("lease") if isinstance(fields, dict) else None
        before = self._previous.get(lease) if isinstance(lease, str) else None
        return before[1] if before is not None and before[0] == fields else None


@dataclass(frozen=True, slots=True)
class _KnownShares:
    revision: int = 0


@dataclass(frozen=True, slots=True)
class _OlderReport:
    """Hold the part of a node's report that only older versions send."""

    allowed: _KnownShares | None = None


def without_shares(free: bytes) -> link_pb2.Allowance | None:
    """Return the message that frees a node of an older version from its shares of the pool's limits.

    Such a node bounds its own leases by the shares that it received last, for ever. It names the revision of
    these shares in its report, and takes a higher revision only. Return None for a node that has no shares.
    """
    try:
        shares = from_json(_OlderReport, free).allowed
    except RecordError:
        return None
    if shares is None or not 0 < shares.revision < MAX_WHOLE:
        return None
    return link_pb2.Allowance(revision=shares.revision + 1)


def order_bytes(order: Order) -> bytes:
    return to_json(Order, order).encode()


def read_order(data: bytes) -> Order:
    """Read an order. Raises Unreadable, and RequestError for an order that no coordinator sends."""
    order: Order = _read(Order, data, "an order")
    check_order(order)
    return order


def report_bytes(report: Report) -> bytes:
    return to_json(Report, report).encode()


def read_report(data: bytes) -> Report:
    """Read a report. Raises Unreadable, and RequestError for an impossible report."""
    report: Report = _read(Report, data, "a report")
    check_report(report)
    ending = report.ending
    return report if ending is None else replace(report, ending=ending.cut_short())


def stale_bytes(stale: StaleEpoch) -> bytes:
    return to_json(StaleEpoch, stale).encode()


def read_stale(data: bytes) -> StaleEpoch:
    """Read a refusal of a stale epoch. Raises Unreadable, and RequestError for an impossible one."""
    stale: StaleEpoch = _read(StaleEpoch, data, "an answer")
    check_key(stale.key)
    return stale


def spec_bytes(spec: JobSpec) -> bytes:
    """Return the spec's bytes, always the same for the same spec, so that a digest can be signed."""
    return to_json(JobSpec, spec).encode()


def read_spec(data: bytes) -> JobSpec:
    """Read a spec. Raises Unreadable, and RequestError for a spec that no user can have submitted."""
    spec: JobSpec = _read(JobSpec, data, "a job")
    check_spec(spec)
    return spec


def _read(kind: object, data: bytes, name: str) -> Any:
    with _reading(name):
        record = from_json(kind, read_text(data))
    bounds.check_record(record)
    return record


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except (RecordError, RequestError) as error:
        raise Unreadable(
            f"{name} that this version cannot read: {shown(str(error))}",
            hint="are both sides of the pool's link of the same version, or of one that follows the other?",
        ) from error


# --- what users' orders are signed for ------------------------------------------------------------------


def job_digest(job: JobId, spec: bytes) -> bytes:
    """Return the digest for which the assertion of a submitted job vouches."""
    return sha256(b"\0".join((b"submit", job.encode(), spec))).digest()


def cancel_digest(job: JobId, grace_seconds: int) -> bytes:
    """Return the digest for which the assertion of a cancellation vouches."""
    return sha256(b"\0".join((b"cancel", job.encode(), str(grace_seconds).encode()))).digest()


def gone_digest(job: JobId) -> bytes:
    """Return the digest for which the assertion of a lost client vouches."""
    return sha256(b"\0".join((b"gone", job.encode()))).digest()


# --- registrations --------------------------------------------------------------------------------------------


def registration_messages(registration: link_pb2.Hello, reports: Sequence[Report]) -> Iterator[link_pb2.Up]:
    """Yield the registration with the first reports, then the other reports as messages."""
    first, size = 0, 0
    for report in reports:
        data = report_bytes(report)
        size += len(data)
        if size > HELLO_BYTES:
            break
        registration.reports.append(data)
        first += 1
    registration.more_reports = len(reports) - first
    yield link_pb2.Up(hello=registration)
    for report in reports[first:]:
        yield link_pb2.Up(report=report_bytes(report))


# --- refusals ------------------------------------------------------------------------------------------


def refusal(error: GpushareError) -> link_pb2.Refuse:
    return link_pb2.Refuse(code=error.code, message=error.message, hint=error.hint)


def refused(code: str, message: str, hint: str) -> GpushareError:
    """Return the error that the other side sent; a code that this version does not know gives Unavailable."""
    return kind_of_code(code, Unavailable)(message, hint=hint)


def read_text(data: bytes) -> str:
    """Return JSON as text. Raises RequestError for texts that are no UTF-8, and for numbers beyond 64 bits.

    JSON can encode both, and neither can be stored or passed on.
    """
    try:
        text = data.decode()
        if _SURROGATE.search(text) or _MANY_DIGITS in data.translate(_DIGITS):
            json.dumps(json.loads(text, parse_int=_whole), ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RequestError(f"it is no JSON of ours: {error}") from error
    return text


def _whole(digits: str) -> int:
    if len(digits) > len(str(MAX_WHOLE)) + 1 or abs(number := int(digits)) > MAX_WHOLE:
        raise ValueError("a number is beyond 64 bits")
    return number


def check_epoch(epoch: int, own_epoch: int) -> None:
    """Raises RequestError for an epoch that no coordinator can have reached."""
    if not 0 <= epoch <= own_epoch + MAX_AHEAD:
        raise RequestError(f"no pool has an epoch of {epoch}")


def check_key(key: AttemptKey) -> None:
    """Raises RequestError if the key is no attempt's."""
    if _JOB_ID.fullmatch(key.job) is None:
        raise RequestError(f"{shown(str(key))} is no attempt to run a job")


def check_report(report: Report) -> None:
    """Raises RequestError for an impossible report."""
    check_key(report.key)
    _check_text(report.lease or "", "a lease")
    if report.spec is not None:
        check_spec(report.spec)
    if report.request is not None:
        check_request(report.request)


def check_order(order: Order) -> None:
    """Raises RequestError for an impossible order."""
    check_key(order.key)
    match order:
        case Place():
            check_spec(order.spec)
            check_request(order.request)
        case CancelPart():
            _check_text(order.by, "a name")
        case Commit(gang=gang):
            if gang.rank >= len(gang.hosts):
                raise RequestError(f"rank {gang.rank} of a gang of {len(gang.hosts)}")
            if len(gang.gpus) != len(gang.hosts):
                raise RequestError("a gang with other hosts than GPUs")
            for host in gang.hosts:
                _check_text(host, "a host")


def check_spec(spec: JobSpec) -> None:
    """Raises RequestError for a spec that no user can have submitted."""
    check_request(spec.request)
    Bounds(0, MAX_BODY_BYTES, "the size of a container's description").check(len(spec.body))
    Bounds(0, MAX_IMAGE, "the length of an image's name").check(len(spec.image))
    Bounds(0, MAX_NAME + len(f"-{MAX_INDEX}"), "the length of a container's name").check(len(spec.name))
    Bounds(0, MAX_AFTER, "a number of jobs to wait for").check(len(spec.after))
    for text in (spec.platform, spec.target, spec.origin, spec.request_id, spec.owner.principal):
        _check_text(text, "a name")
    for job in (spec.array or "", *(after.job for after in spec.after)):
        if job and _JOB_ID.fullmatch(job) is None:
            raise RequestError(f"{shown(job)} is no job")


def check_request(request: Request) -> None:
    """Raises RequestError for an impossible request."""
    parts = {request.compute_permille, request.memory_permille} - {None, WHOLE_PERMILLE}
    if request.isolation is Isolation.EXCLUSIVE and parts:
        raise RequestError("exclusive means whole GPUs, not a part of one")
    if request.notice_signal and request.notice_signal not in NOTICE_SIGNALS:
        raise RequestError(f"{shown(request.notice_signal)} is not a signal for a notice")
    check_targets(request.notify)
    for texts, most in (
        (request.models, max(MAX_MODELS, MAX_GPUS)),
        (request.gpus, MAX_GPUS),
        (request.near, MAX_LEASES),
        (request.away_from, MAX_LEASES),
        (request.after, MAX_LEASES),
        ((request.project, request.preset or ""), 2),
    ):
        Bounds(0, most, "a number of names").check(len(texts))
        for text in texts:
            _check_text(text, "a name")


def _check_text(text: str, kind: str) -> None:
    if len(text) > MAX_TEXT or not text.isprintable():
        raise RequestError(f"{shown(text)} is not {kind}")
