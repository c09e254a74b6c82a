"""Check the messages of a node's link against what can be true.

A machine that joined may be in the wrong hands later, node and coordinator alike. So the messages of either
pass the same bounds as the words of users, before anything is made of them. A bad text that is written down
once would harm everybody who is shown it. ``bounds`` holds the numbers to their meaning.
"""

from __future__ import annotations

import json
import re

from gpushared.domain.jobs.job import JobSpec
from gpushared.domain.jobs.member import AllowanceNeed
from gpushared.domain.jobs.protocol import CancelPart, Commit, Order, Place, Report
from gpushared.domain.jobs.submit_limits import MAX_INDEX
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.gpu import WHOLE_PERMILLE
from gpushared.domain.model.lease import AttemptKey
from gpushared.domain.model.request import Isolation, Request
from gpushared.domain.model.request_spec import MAX_AFTER as MAX_LEASES
from gpushared.domain.model.request_spec import MAX_MODELS, NOTICE_SIGNALS
from gpushared.domain.model.units import MAX_GPUS, shown
from gpushared.jobs.bounds import MAX_WHOLE, Bounds
from gpushared.jobs.job_requests import MAX_BODY_BYTES, MAX_IMAGE, MAX_NAME
from gpushared.jobs.jobs_service import MAX_AFTER

MAX_AHEAD = 1_000_000
"""An epoch may be this far above ours: no coordinator was started so often."""
MAX_WANTS = 4096
"""Limits that leases of one node wait for."""
MAX_TEXT = 256
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SUSPICIOUS = re.compile(r"\\u[dD][89a-fA-F]|\d{18}")
"""A half of a surrogate pair, or a number that may be too long; or a text that looks like one."""


def read_text(data: bytes) -> str:
    """JSON as text. Raises RequestError for texts that are no UTF-8, and for numbers beyond 64 bits.

    JSON can say both, and neither can be written down or passed on.
    """
    try:
        text = data.decode()
        if _SUSPICIOUS.search(text):
            json.dumps(json.loads(text, parse_int=_whole), ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RequestError(f"it is no JSON of ours: {error}") from error
    return text


def _whole(digits: str) -> int:
    if len(digits) > len(str(MAX_WHOLE)) + 1 or abs(number := int(digits)) > MAX_WHOLE:
        raise ValueError("a number is beyond 64 bits")
    return number


def check_epoch(theirs: int, ours: int) -> None:
    """Raises RequestError for one that nobody can have led with: there are only so many."""
    if not 0 <= theirs <= ours + MAX_AHEAD:
        raise RequestError(f"no pool has an epoch of {theirs}")


def check_allowed(allowed: AllowanceNeed) -> None:
    """Raises RequestError for wants that contradict themselves, and for too many."""
    if len(allowed.wants) > MAX_WANTS:
        raise RequestError(f"a node with {len(allowed.wants)} wants")
    for want in allowed.wants:
        _check_text(want.project, "a project")
        _check_text(want.model, "a model")
        if want.least_permille > want.all_permille:
            raise RequestError("a node wants less than its smallest lease")


def check_key(key: AttemptKey) -> None:
    """Raises RequestError."""
    if _JOB_ID.fullmatch(key.job) is None:
        raise RequestError(f"{shown(str(key))} is no attempt to run a job")


def check_report(report: Report) -> None:
    """Raises RequestError."""
    check_key(report.key)
    _check_text(report.lease or "", "a lease")
    if report.spec is not None:
        check_spec(report.spec)
    if report.request is not None:
        check_request(report.request)


def check_order(order: Order) -> None:
    """Raises RequestError."""
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
    """Raises RequestError for what no user can have asked for."""
    check_request(spec.request)
    Bounds(0, MAX_BODY_BYTES, "the size of a container's description").check(len(spec.body))
    Bounds(0, MAX_IMAGE, "the length of an image's name").check(len(spec.image))
    Bounds(0, MAX_NAME + len(f"-{MAX_INDEX}"), "the length of a container's name").check(len(spec.name))
    Bounds(0, MAX_AFTER, "a number of jobs to wait for").check(len(spec.after))
    for text in (spec.platform, spec.target, spec.origin, spec.request_id, spec.owner.principal):
        _check_text(text, "a name")
    for job in (spec.array or "", *(one.job for one in spec.after)):
        if job and _JOB_ID.fullmatch(job) is None:
            raise RequestError(f"{shown(job)} is no job")


def check_request(request: Request) -> None:
    """Raises RequestError."""
    parts = {request.compute_permille, request.memory_permille} - {None, WHOLE_PERMILLE}
    if request.isolation is Isolation.EXCLUSIVE and parts:
        raise RequestError("exclusive means whole GPUs, not a part of one")
    if request.notice_signal and request.notice_signal not in NOTICE_SIGNALS:
        raise RequestError(f"{shown(request.notice_signal)} is not a signal for a notice")
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


def _check_text(text: str, what: str) -> None:
    if len(text) > MAX_TEXT or not text.isprintable():
        raise RequestError(f"{shown(text)} is not {what}")
