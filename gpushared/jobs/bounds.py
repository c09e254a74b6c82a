"""Bound every number that comes over a node's link, by its meaning.

One table covers the domain's records, and one covers the messages around them. A number without an entry is
an error of this program, so that nobody can forget a new field; a test walks both tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.message import Message

from gpushared.domain.accounting.summary import LeaseSummary
from gpushared.domain.jobs.job import Ending, JobSpec
from gpushared.domain.jobs.job_commands import MAX_NODES
from gpushared.domain.jobs.member import HeartbeatReport, Inventory
from gpushared.domain.jobs.protocol import (
    CancelPart,
    Commit,
    Gang,
    GiveBack,
    Place,
    Query,
    Report,
    StaleEpoch,
)
from gpushared.domain.jobs.submit_limits import LONGEST_STOP_AFTER_SECONDS, MAX_INDEX, MAX_RETRIES
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.gpu import WHOLE_PERMILLE, Gpu, MigInstance
from gpushared.domain.model.lease import AttemptKey, Grant
from gpushared.domain.model.request import MAX_PRIORITY, Request
from gpushared.domain.model.request_spec import MAX_RESTARTS
from gpushared.domain.model.span import Span
from gpushared.domain.model.units import MAX_DURATION_SECONDS, MAX_GPUS, MAX_MEMORY_BYTES
from gpushared.storage.history.history_parts import HistoryPart, HistoryPosition, HourSums
from gpushared.storage.history.records import GpuFacts

MAX_NUMBER = (1 << 31) - 1
"""Bound attempts, exit codes and counts: messages to users have 32 bits for them."""
MAX_WHOLE = 1 << 62
"""Databases and messages have 64 bits for a whole number."""
MAX_MOMENT = 253_402_300_799.0
"""Bound moments by the end of the year 9999, in seconds since 1970: no calendar goes further."""
MAX_GPU_INDEX = (1 << 16) - 1
MAX_GPU_MEMORY_BYTES = 1 << 42
"""Bound the memory of one GPU in a history by 4 TiB: sums over years must stay within 64 bits."""
MAX_HELLO_REPORTS = 100_000
MAX_BEAT_SECONDS = 24 * 3600.0


class Bounds(NamedTuple):
    """Hold the bounds of a number, themselves allowed; ``name`` names the number in a sentence."""

    least: float
    most: float
    name: str

    def check(self, number: float) -> None:
        """Raises RequestError if the number is out of bounds. NaN is within no bounds."""
        if not self.least <= number <= self.most:
            raise RequestError(f"{number} as {self.name} cannot be", hint=f"only {self.least} to {self.most}")


_COUNT = Bounds(0, MAX_NUMBER, "a number of a history")
_MS = Bounds(0, int(MAX_MOMENT) * 1000, "a time in milliseconds")
_HOUR = Bounds(0, int(MAX_MOMENT) // 3600, "an hour")
_PERMILLE_MS = Bounds(0, 1 << 43, "an hour's sum of shares")
_MIB_MS = Bounds(0, 1 << 44, "an hour's sum of memory")
_MIB = Bounds(0, MAX_GPU_MEMORY_BYTES >> 20, "a size of a GPU's memory in MiB")
_INDEX = Bounds(0, MAX_GPU_INDEX, "an index of a GPU")
_GPUS = Bounds(1, MAX_GPUS, "a number of GPUs")
_GPU_MEMORY = Bounds(0, MAX_GPU_MEMORY_BYTES, "a size of a GPU's memory")
_MEMORY = Bounds(0, MAX_MEMORY_BYTES, "a size of memory")
_SHARE = Bounds(0, WHOLE_PERMILLE, "a share of a GPU")
_CPUS = Bounds(0, MAX_NUMBER, "a share of processors")
_MOMENT = Bounds(0, MAX_MOMENT, "a time")
_EPOCH = Bounds(0, MAX_WHOLE, "an epoch")
_REVISION = Bounds(0, MAX_WHOLE, "a revision")
_GENERATION = Bounds(0, MAX_WHOLE, "a generation of trust")
_SEQUENCE = Bounds(0, MAX_WHOLE, "a number of a beat")
_GRACE = Bounds(0, MAX_DURATION_SECONDS, "a grace")
_QUESTION = Bounds(0, MAX_WHOLE, "a number of a question")
_PRIORITY = Bounds(-MAX_PRIORITY, MAX_PRIORITY, "a priority")
_JOURNAL = Bounds(0, MAX_WHOLE, "a journal")
_NUMBER_OF_SPAN = Bounds(0, MAX_WHOLE, "a number of a span")
_BEAT = Bounds(0, MAX_BEAT_SECONDS, "the seconds between beats")

RECORDS: Mapping[type, Mapping[str, Bounds]] = {
    Inventory: {"cpu_milli": _CPUS, "memory_bytes": _MEMORY},
    Gpu: {"index": _INDEX, "memory_total_bytes": _MEMORY, "leasable_bytes": _MEMORY, "link_group": _INDEX},
    MigInstance: {"index": _INDEX, "memory_permille": _SHARE, "compute_permille": _SHARE},
    HeartbeatReport: {
        "stray_bytes": _MEMORY,
        "waiting": Bounds(0, MAX_NUMBER, "a number of requests that wait"),
    },
    Grant: {"memory_bytes": _MEMORY, "compute_permille": _SHARE, "compute_limit_permille": _SHARE},
    AttemptKey: {"number": Bounds(1, MAX_NUMBER, "a number of an attempt")},
    Report: {"revision": _REVISION, "started_at": _MOMENT, "ended_at": _MOMENT},
    Ending: {"exit_code": Bounds(-MAX_NUMBER, MAX_NUMBER, "an exit code")},
    StaleEpoch: {"epoch": _EPOCH},
    Place: {
        "epoch": _EPOCH,
        "reserve_seconds": Bounds(1, MAX_DURATION_SECONDS, "the seconds of a reservation"),
    },
    Query: {"epoch": _EPOCH},
    CancelPart: {"epoch": _EPOCH, "grace_seconds": _GRACE},
    Commit: {"epoch": _EPOCH},
    GiveBack: {"epoch": _EPOCH},
    Gang: {
        "rank": Bounds(0, MAX_NODES, "a rank"),
        "port": Bounds(1, (1 << 16) - 1, "a port"),
        "gpus": _GPUS,
    },
    JobSpec: {
        "nodes": Bounds(1, MAX_NODES, "a number of nodes"),
        "retries": Bounds(0, MAX_RETRIES, "a number of retries"),
        "stop_after_seconds": Bounds(1, LONGEST_STOP_AFTER_SECONDS, "the seconds without the pool's word"),
        "index": Bounds(0, MAX_INDEX, "a number in an array"),
        "array_limit": Bounds(1, MAX_NUMBER, "a number of jobs at once"),
    },
    HistoryPosition: {
        "journal": _JOURNAL,
        "span": _NUMBER_OF_SPAN,
        "ended_at": _MOMENT,
        "hour": _HOUR,
        "series": Bounds(0, MAX_WHOLE, "a number of a series"),
    },
    HistoryPart: {
        "journal": _JOURNAL,
        "at_ms": _MS,
        "ahead_ms": Bounds(-int(MAX_MOMENT) * 1000, int(MAX_MOMENT) * 1000, "a distance of two clocks"),
        "spans": _NUMBER_OF_SPAN,
        "waits": _MS,
    },
    GpuFacts: {"memory_mib": _MIB},
    Span: {"start_ms": _MS, "end_ms": _MS, "permille": _SHARE, "memory_bytes": _GPU_MEMORY},
    HourSums: {
        "hour": _HOUR,
        "seen_permille_ms": _PERMILLE_MS,
        "active_permille_ms": _PERMILLE_MS,
        "idle_permille_ms": _PERMILLE_MS,
        "used_permille_ms": _PERMILLE_MS,
        "use_max_permille": _COUNT,
        "memory_seen_mib_ms": _MIB_MS,
        "memory_used_mib_ms": _MIB_MS,
        "memory_ms": _PERMILLE_MS,
        "memory_max_mib": _MIB,
        "energy_mj": _PERMILLE_MS,
    },
    LeaseSummary: {
        "owner_uid": Bounds(-1, (1 << 32) - 1, "a number of a user"),
        "attempt": _COUNT,
        "gpu_count": _COUNT,
        "memory_bytes": _MEMORY,
        "memory_permille": _SHARE,
        "compute_permille": _SHARE,
        "priority": _PRIORITY,
        "time_limit_seconds": Bounds(0, MAX_DURATION_SECONDS, "a time limit"),
        "created_at": _MOMENT,
        "ended_at": _MOMENT,
        "exit_code": Bounds(-MAX_NUMBER, MAX_NUMBER, "an exit code"),
        "preemptions": _COUNT,
        "begun_anew": _COUNT,
        "restarts": _COUNT,
    },
    Request: {
        "gpu_count": _GPUS,
        "max_gpu_count": _GPUS,
        "compute_permille": _SHARE,
        "memory_permille": _SHARE,
        "max_compute_permille": _SHARE,
        "max_memory_permille": _SHARE,
        "compute_limit_permille": _SHARE,
        "memory_bytes": _MEMORY,
        "max_memory_bytes": _MEMORY,
        "host_memory_bytes": _MEMORY,
        "host_cpu_milli": _CPUS,
        "time_limit_seconds": Bounds(1, MAX_DURATION_SECONDS, "a time limit"),
        "restart_on_fault": Bounds(0, MAX_RESTARTS, "a number of restarts"),
        "priority": _PRIORITY,
        "begin_at": _MOMENT,
    },
}
"""Map class and field to bounds; they hold for each number of a field."""

MESSAGES: Mapping[str, Mapping[str, Bounds]] = {
    "Hello": {
        "seen_epoch": _EPOCH,
        "seen_revision": _REVISION,
        "now": _MOMENT,
        "more_reports": Bounds(0, MAX_HELLO_REPORTS, "a number of reports"),
    },
    "Beat": {"seq": _SEQUENCE},
    "OutboxJob": {
        "priority": _PRIORITY,
        "kept_seconds": Bounds(0, MAX_MOMENT, "the seconds for which a job was kept"),
    },
    "OutboxCancel": {"grace_seconds": _GRACE},
    "TrustSeen": {"generation": _GENERATION},
    "Welcome": {"epoch": _EPOCH, "revision": _REVISION, "beat_seconds": _BEAT, "now": _MOMENT},
    "BeatAck": {"seq": _SEQUENCE, "revision": _REVISION, "beat_seconds": _BEAT},
    "OpenTunnel": {
        "attempt": Bounds(0, MAX_NUMBER, "a number of an attempt"),
        "tail": Bounds(-1, MAX_NUMBER, "a number of lines"),
        "received": Bounds(0, MAX_WHOLE, "a number of bytes"),
    },
    "TunnelData": {"received": Bounds(0, MAX_WHOLE, "a number of bytes")},
    "Question": {"number": _QUESTION},
    "Answer": {"number": _QUESTION},
    "NewTrust": {"generation": _GENERATION},
    "Allowance": {"revision": _REVISION},
}
"""Map message and field of ``link.proto`` to bounds."""


def check_record(record: Any) -> None:
    """Raises RequestError if a number of a record, or of the records in it, is out of its bounds."""
    kind: Any = type(record)
    for name, bounds in _bounded(kind):
        if (value := getattr(record, name)) is not None:
            _check(value, bounds)


@cache
def _bounded(record: Any) -> tuple[tuple[str, Bounds | None], ...]:
    """Return the fields of a record that may hold numbers, with their bounds."""
    bounds = RECORDS.get(record, {})
    names = (each.name for each in fields(record) if each.type not in {"str", "bool"})
    return tuple((name, bounds.get(name)) for name in names)


def _check(value: Any, bounds: Bounds | None) -> None:
    # Of each job's messages all numbers are checked, so the most frequent kinds of values come first.
    if isinstance(value, str | bool):
        return
    if isinstance(value, tuple):
        for each in value:
            _check(each, bounds)
    elif isinstance(value, int | float):
        assert bounds is not None, "a number of a record has no bounds"
        bounds.check(value)
    elif is_dataclass(value):
        check_record(value)
    elif isinstance(value, Mapping):
        for each in value.values():
            _check(each, bounds)


def check_message(message: Message) -> None:
    """Raises RequestError if a number of a message, or of the messages in it, is out of its bounds."""
    bounds = MESSAGES.get(message.DESCRIPTOR.name, {})
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for each in value if field.is_repeated else [value]:
                check_message(each)
        elif field.name in bounds:
            bounds[field.name].check(value)
