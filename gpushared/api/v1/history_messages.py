"""Generated from proto/ by scripts/proto; do not edit."""

from __future__ import annotations

from gpushared.api.message import Message, Time


class Account(Message):
    """An account sums what was held, and how it was used. GPU milliseconds are those of a whole GPU: half a
    GPU for two seconds is 1000. Held is the sum of well used, too big, idle and unseen."""

    held_gpu_ms: int = 0
    # Kernels ran in the minute.
    active_gpu_ms: int = 0
    # No kernel ran in the minute.
    idle_gpu_ms: int = 0
    # The part of the active time whose memory was never used.
    too_big_gpu_ms: int = 0
    # The active time without what was too big.
    well_used_gpu_ms: int = 0
    # There is no sample, so nobody knows whether it was used.
    unseen_gpu_ms: int = 0
    # MiB of memory times seconds, as held.
    held_mib_seconds: int = 0
    # The part of the held and seen time in which kernels ran.
    use_of_held_ratio: float | None = None
    # The part of the held and seen memory that was used on average.
    memory_of_held_ratio: float | None = None


class PastLease(Message):
    """A past lease is one of the history; it may still hold or wait."""

    id: str = ""
    node: str = ""
    owner: str = ""
    project: str = ""
    lease_class: str = ""
    # Empty = the lease is not over.
    outcome: str = ""
    # More words on the outcome.
    outcome_text: str = ""
    exit_code: int | None = None
    # What it asked for: 0.25 GPU, 2 GPUs with 8 GiB each...
    asks: str = ""
    gpu_count: int = 0
    # The labels and the models of the GPUs that it held.
    gpu_labels: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    # Unix seconds.
    created_at: float = 0.0
    # It first held its GPUs then.
    started_at: Time = None
    ended_at: Time = None
    waited_ms: int = 0
    ran_ms: int = 0
    # The time limit that was asked for; 0 = none.
    time_limit_seconds: int = 0
    # On all its GPUs; the most that was seen in use, and the most that was held. Missing = never seen, never
    # held.
    peak_bytes: int | None = None
    held_bytes: int | None = None
    # The greatest part of a GPU's time with kernels that was seen.
    use_max_ratio: float | None = None
    account: Account = Account({})
    preemptions: int = 0
    restarts: int = 0
    job: str = ""
    attempt: int = 0
    # For the owner and trusted callers only.
    image: str = ""
    container_name: str = ""


class PastLeases(Message):
    """Hold the answer of ``History.Ended``."""

    leases: tuple[PastLease, ...] = ()
    # There are more leases than the limit.
    more: bool = False
    simulated: bool = False


class ReasonWait(Message):
    """A lease waited so long for this reason."""

    reason: str = ""
    waited_ms: int = 0


class UsePoint(Message):
    """A point of a curve is a piece of time, on all GPUs of the lease. A missing figure was not seen."""

    # Unix seconds.
    at: float = 0.0
    use_ratio: float | None = None
    use_max_ratio: float | None = None
    # The part of the held memory.
    memory_ratio: float | None = None


class ReportNote(Message):
    """A note says what could be better, and what to do."""

    # no_kernel, idle_at_end, time_limit, memory_near_limit, memory_too_big.
    kind: str = ""
    text: str = ""
    # The option or the command that mends it.
    mend: str = ""


class LeaseReport(Message):
    """A lease report tells what one lease used of what it held."""

    lease: PastLease = PastLease({})
    # Why it waited, the longest first.
    reasons: tuple[ReasonWait, ...] = ()
    # Its use, from its first start to its end or now.
    curve: tuple[UsePoint, ...] = ()
    # The use of the least used of several GPUs; missing if that is unknown.
    worst_gpu_ratio: float | None = None
    notes: tuple[ReportNote, ...] = ()


class PastJob(Message):
    """A past job is one of the history; it may still wait or run."""

    id: str = ""
    owner: str = ""
    project: str = ""
    lease_class: str = ""
    # Empty = the job is not over.
    outcome: str = ""
    outcome_text: str = ""
    exit_code: int | None = None
    # The size asked for on each node: 0.25, 2, 8 GiB...
    asks: str = ""
    node_count: int = 0
    # Unix seconds; 0 = not yet.
    submitted_at: float = 0.0
    started_at: Time = None
    ended_at: Time = None
    # In the coordinator's queue, before any lease; its leases' own waits are not in it.
    waited_ms: int = 0
    reasons: tuple[ReasonWait, ...] = ()
    attempts: int = 0
    preemptions: int = 0
    # Attempts ran on these nodes.
    nodes: tuple[str, ...] = ()
    # For the owner and trusted callers only.
    image: str = ""
    name: str = ""


class Report(Message):
    """Hold the answer of ``History.Report``."""

    # The lease, or the attempts of the job, oldest first.
    leases: tuple[LeaseReport, ...] = ()
    # The account of all of them.
    account: Account = Account({})
    simulated: bool = False
    # It is set if a job was named; its leases may be none yet.
    job: PastJob | None = None


class UsageRow(Message):
    """A row sums the accounts of one group."""

    key: str = ""
    leases: int = 0
    account: Account = Account({})


class Usage(Message):
    """Hold the answer of ``History.Usage``."""

    # The greatest held first; days and weeks in their order.
    rows: tuple[UsageRow, ...] = ()
    total: UsageRow | None = None
    # So many requests waited in the time, for so long together.
    waited_requests: int = 0
    waited_ms: int = 0
    simulated: bool = False


class WaitsRow(Message):
    """A row counts requests that were made or waited in the time. Percentiles are of all of them; by reason,
    of those that waited for the reason."""

    key: str = ""
    requests: int = 0
    # So many of them waited, and so many wait still.
    waited: int = 0
    waiting: int = 0
    p50_ms: int = 0
    p90_ms: int = 0
    p99_ms: int = 0
    longest_ms: int = 0
    total_ms: int = 0


class Waits(Message):
    """Hold the answer of ``History.Waits``."""

    rows: tuple[WaitsRow, ...] = ()
    # All requests; left out if they are grouped by reason.
    total: WaitsRow | None = None
    simulated: bool = False


class PastJobs(Message):
    """Hold the answer of ``History.Jobs``."""

    jobs: tuple[PastJob, ...] = ()
    # There are more jobs than the limit.
    more: bool = False
    simulated: bool = False


class ExportPage(Message):
    """Hold the answer of ``History.Export``."""

    # The names of the columns, in their order.
    columns: tuple[str, ...] = ()
    # JSON objects, one a row.
    rows: tuple[str, ...] = ()
    # Empty = this was the last page.
    next_page_token: str = ""
    simulated: bool = False


class RecentStep(Message):
    """A step has the mean use and the mean memory of a GPU. A missing figure was not seen."""

    # Unix seconds: its beginning.
    at: float = 0.0
    use_ratio: float | None = None
    memory_used_bytes: int | None = None


class RecentHolding(Message):
    """A holding is a time in which one lease held a part of the GPU."""

    lease: str = ""
    owner: str = ""
    project: str = ""
    # Unix seconds, within the time of the answer.
    since: float = 0.0
    until: float = 0.0
    # The share of the memory or of the compute, whichever is larger.
    share_permille: int = 0
    memory_bytes: int = 0


class RecentGpu(Message):
    """A GPU was used so, and held by these leases."""

    uuid: str = ""
    label: str = ""
    name: str = ""
    # A step that nobody saw is left out.
    steps: tuple[RecentStep, ...] = ()
    # In the order of their beginnings. Of others as `[privacy] others` allows.
    holdings: tuple[RecentHolding, ...] = ()


class RecentUse(Message):
    """Hold the answer of ``History.Recent``."""

    gpus: tuple[RecentGpu, ...] = ()
    step_seconds: int = 0
    # Unix seconds: the beginning of the first step, and the time of the answer.
    since: float = 0.0
    until: float = 0.0
    simulated: bool = False
