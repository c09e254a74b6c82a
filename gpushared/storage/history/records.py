"""Define what is written into the history, and what is read from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpushared.domain.accounting.account import Account
from gpushared.domain.accounting.job_summary import JobSummary
from gpushared.domain.accounting.summary import LeaseSummary
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.span import Span
from gpushared.storage.history.hour_use import HourUse, Minute

SeriesKey = tuple[str, str]
"""A lease's id, empty for a GPU as a whole, and the GPU's id."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Describe a GPU as the history names it for ever."""

    id: GpuId
    label: str
    model: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class SourceName:
    """Name where rows come from: a node, and its journal, because a new journal counts leases anew."""

    node: str
    journal: int


@dataclass(frozen=True, slots=True)
class HistoryBatch:
    """Hold what is written in one transaction. Writing a batch again changes nothing.

    ``at_ms`` is the time of the batch by the clock that counts time, and the time of day is ``ahead_ms``
    ahead of that. ``open_spans`` are None if the batch does not tell them: then the known ones stay, without
    those that ``spans`` close. ``waits`` are the milliseconds that each open lease has waited so far, by
    reason. ``uses`` take the place of the hours that are there; ``growth`` is added to them, once: a batch
    whose ``number`` is not above that of the source's last growth was written before.
    """

    source: SourceName
    at_ms: int
    ahead_ms: int = 0
    gpus: Sequence[GpuFacts] = ()
    leases: Sequence[LeaseSummary] = ()
    spans: Sequence[tuple[int, Span]] = ()
    open_spans: Sequence[Span] | None = ()
    waits: Mapping[tuple[LeaseId, str], int] = field(default_factory=dict)
    uses: Mapping[SeriesKey, Sequence[HourUse]] = field(default_factory=dict)
    growth: Mapping[SeriesKey, Sequence[HourUse]] = field(default_factory=dict)
    number: int = 0


@dataclass(frozen=True, slots=True)
class JobBatch:
    """Hold jobs that are written in one transaction, with the clock of ``HistoryBatch``.

    ``waits`` are the milliseconds that each job has waited in the coordinator's queue so far, by reason.
    """

    at_ms: int
    ahead_ms: int
    jobs: Sequence[JobSummary]
    waits: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobResumption:
    """Hold what a recorder of jobs goes on with: the jobs that are not over, and the newest end of the others."""

    newest_ended_at: float | None
    open_jobs: Mapping[str, JobSummary]
    waits: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class JobHistory:
    """Hold a job's summary with its waits. Times are milliseconds of the time of day."""

    summary: JobSummary
    submitted_ms: int
    started_ms: int | None
    ended_ms: int | None
    waited_ms: int
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Resumption:
    """Hold what a recorder goes on with after a restart."""

    newest_ended_at: float | None
    """The end of the newest lease whose summary the history has; None if it has none."""
    newest_span: int
    """The number of the newest span; 0 if the history has none."""
    batch: int
    """The number of the last batch with a growth."""
    waits: Mapping[tuple[LeaseId, str], int]


@dataclass(frozen=True, slots=True)
class KeepHistory:
    """Bound what is kept: minutes and hours by age in days. Summaries and spans stay for ever."""

    minutes_days: int
    hours_days: int


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    """Select leases in a time; a field that is left out is no condition.

    ``since_ms`` and ``until_ms`` are milliseconds of the time of day. ``owner_uid`` selects by the number on
    the nodes, ``owner`` by the name.
    """

    since_ms: int = 0
    until_ms: int = 2**62
    owner: str = ""
    owner_uid: int | None = None
    project: str = ""
    lease_class: str = ""
    node: str = ""
    source: int | None = None
    """The number of a source, as a lease that was found before has it: ids of leases repeat after a new journal."""
    lease: str = ""
    job: str = ""
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class LeaseAccount:
    """Hold a lease's account on one GPU within a time."""

    source: int
    node: str
    lease: LeaseId
    owner: str
    project: str
    lease_class: str
    gpu_label: str
    model: str
    account: Account
    peak_mib: int | None
    """The most memory that was seen in use over the lease's life; None if it was never seen."""


@dataclass(frozen=True, slots=True)
class LeaseWait:
    """Hold how long a lease waited within a time, and its reasons over its life, in milliseconds.

    A lease that was made in the time and never waited is there with a wait of 0.
    """

    node: str
    lease: LeaseId
    owner: str
    project: str
    lease_class: str
    gpu_count: int
    memory_bytes: int | None
    """The memory asked for on each GPU; None if a share was asked for."""
    share_permille: int | None
    began_ms: int
    """When the first of these waits began, in milliseconds of the time of day."""
    waited_ms: int
    waits_still: bool
    reasons: Mapping[str, int]
    job: str = ""
    """The job whose attempt it is; with an empty node the wait is the whole job's."""


@dataclass(frozen=True, slots=True)
class LeaseHistory:
    """Hold a lease's summary with its figures over its life. Times are milliseconds of the time of day."""

    source: int
    node: str
    summary: LeaseSummary
    created_ms: int
    started_ms: int | None
    """The time at which the lease first held its GPUs; None if it never did."""
    ended_ms: int | None
    run_ms: int
    waited_ms: int
    account: Account
    use_max_ratio: float | None
    peak_mib: int | None
    held_mib: int | None
    """The memory that the lease held on all its GPUs, at its most."""
    gpus: tuple[GpuId, ...]
    gpu_labels: tuple[str, ...]
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SeriesName:
    """Name a series: a GPU of a node, and the lease on the GPU, or empty for the GPU as a whole.

    Without a source these are the series of all sources of the node.
    """

    node: str
    gpu: str
    lease: str = ""
    source: int | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """Hold the part of a lease's span on a GPU that lies in a time, in milliseconds of the time of day."""

    lease: str
    owner: str
    project: str
    gpu: str
    since_ms: int
    until_ms: int
    permille: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Point:
    """Hold one point of a series: an hour or a minute, at its beginning in milliseconds of the time of day."""

    at_ms: int
    length_ms: int
    minute: Minute
