"""Read the query of a page's stream: which answers and which logs the page watches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from google.protobuf.message import Message

from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.units import shown
from gpushared.net.unary_json import Unary, parsed

MAX_WATCHES = 8
MAX_NAME = 64
MAX_MARK = 512
PREFIX = "gpushare.v1."
LOGS = "logs"
READING = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "Audit/List",
        "Gpus/List",
        "History/Ended",
        "History/Jobs",
        "History/Recent",
        "History/Report",
        "History/Usage",
        "History/Waits",
        "Jobs/Explain",
        "Jobs/Get",
        "Jobs/List",
        "Jobs/Nodes",
        "Leases/Explain",
        "Leases/Get",
        "Leases/List",
        "Node/Presets",
        "Node/Status",
        "Policy/Show",
        "PoolAdmin/Status",
        "Projects/List",
    )
)
"""These calls change nothing, and are cheap enough to be made again and again."""


@dataclass(frozen=True, slots=True)
class CallWatch:
    """Watch the answer of a call, named in full."""

    name: str
    call: str
    request: Message


@dataclass(frozen=True, slots=True)
class LogWatch:
    """Watch the log of a lease's container, or the output of a job; the other one is empty."""

    name: str
    lease_id: str = ""
    job_id: str = ""


@dataclass(frozen=True, slots=True)
class StreamQuery:
    """Hold what a stream shows, in the order of its names, and the mark up to which the page has seen it."""

    watches: tuple[CallWatch | LogWatch, ...]
    mark: str = ""


def read_query(query: str, calls: Mapping[str, Unary]) -> StreamQuery:
    """Read ``watch=...&mark=...``. Raises RequestError."""
    try:
        fields = parse_qs(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict")
        requested = json.loads(fields.get("watch", [""])[-1])
    except (ValueError, RecursionError) as error:
        raise _unreadable() from error
    if not isinstance(requested, dict) or not requested:
        raise _unreadable()
    if len(requested) > MAX_WATCHES:
        raise RequestError(f"a stream watches at most {MAX_WATCHES} answers", hint="open a second stream")
    watches = tuple(_watch(name, requested[name], calls) for name in sorted(requested))
    return StreamQuery(watches, fields.get("mark", [""])[-1][:MAX_MARK])


def _watch(name: str, value: object, calls: Mapping[str, Unary]) -> CallWatch | LogWatch:
    match value:
        case [str(source), dict(request)] if len(name) <= MAX_NAME:
            return _log_watch(name, request) if source == LOGS else _call_watch(name, source, request, calls)
    raise _unreadable()


def _call_watch(name: str, source: str, request: Mapping[str, Any], calls: Mapping[str, Unary]) -> CallWatch:
    call = PREFIX + source
    if call not in READING or call not in calls:
        raise RequestError(f"the call {shown(source)} cannot be watched", hint="lists and single reads can")
    return CallWatch(name, call, parsed(json.dumps(request).encode(), calls[call]))


def _log_watch(name: str, request: Mapping[str, Any]) -> LogWatch:
    match request:
        case {"lease_id": str(lease)} if _is_id(lease) and len(request) == 1:
            return LogWatch(name, lease_id=lease)
        case {"job_id": str(job)} if _is_id(job) and len(request) == 1:
            return LogWatch(name, job_id=job)
    raise RequestError(
        "it is not clear whose log is watched", hint='give either {"lease_id": ...} or {"job_id": ...}'
    )


def _is_id(text: str) -> bool:
    # JSON may hold half of a pair of surrogates, which no message can.
    return bool(text) and text.isprintable()


def _unreadable() -> RequestError:
    return RequestError(
        "the query names no answers to watch",
        hint='watch={"leases": ["Leases/List", {}], "gpus": ["Gpus/List", {}]}, as a part of a URL',
    )
