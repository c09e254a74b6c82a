"""Turn the state of a pool into metrics, and serve them: no metric names a person, an image or a job."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import gpushared
from gpushared.config.metrics_settings import metrics_address
from gpushared.config.pool_settings import CoordinatorConfig
from gpushared.daemon.measures import SHORT_SECONDS, Distribution, follow_lag
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import Cancelling, JobState, Placing, Queued, Running
from gpushared.domain.model.request import Caller, LeaseClass
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.jobs.standby import Standby
from gpushared.net.exposition import Family, Kind, Metric, Value, format_of, write
from gpushared.net.http_server import WebReply
from gpushared.net.metrics_listener import KeptPages, MetricsListener
from gpushared.storage.audit.audit_log import AuditLog

MAX_SHAPES = 5000
_metrics: list[Metric] = []


def _metric(name: str, kind: Kind, text: str, *labels: str) -> Metric:
    metric = Metric(f"gpushare_{name}", kind, text, tuple(labels))
    _metrics.append(metric)
    return metric


LEADER = _metric(
    "pool_leader", Kind.GAUGE, "1 if this coordinator leads the pool and its store answers, else 0."
)
STANDBY_AGE = _metric(
    "pool_standby_age_seconds",
    Kind.GAUGE,
    "Age of what this coordinator knows while it stands by; absent while it leads.",
)
EPOCH = _metric("pool_epoch", Kind.GAUGE, "The epoch, which rises with each new leader.")
SETTLED = _metric("pool_settled", Kind.GAUGE, "1 if all nodes have reported since the start, else 0.")
MEMBERS = _metric("pool_members", Kind.GAUGE, "Nodes of the pool, without those that were forgotten.")
MEMBER_UP = _metric("pool_member_up", Kind.GAUGE, "1 if the node is connected, else 0.", "node")
MEMBER_HEARD = _metric(
    "pool_member_heard_seconds", Kind.GAUGE, "Time since the node's last message; absent before one.", "node"
)
MEMBER_DRAINED = _metric("pool_member_drained", Kind.GAUGE, "1 if the node gets no new jobs, else 0.", "node")
MEMBER_GPUS = _metric("pool_member_gpus", Kind.GAUGE, "GPUs and MIG instances of the node.", "node")
MEMBER_LEASES = _metric("pool_member_leases", Kind.GAUGE, "Leases on the node, local ones too.", "node")
JOBS = _metric("pool_jobs", Kind.GAUGE, "Jobs that are not over.", "state")
QUEUE_LENGTH = _metric("pool_queue_length", Kind.GAUGE, "Jobs that may be placed and wait.", "class")
QUEUE_OLDEST = _metric(
    "pool_queue_oldest_wait_seconds", Kind.GAUGE, "Wait of the job that waits longest.", "class"
)
PLACEMENT_SECONDS = _metric("pool_placement_seconds", Kind.HISTOGRAM, "Time of a pass over the queue.")
COMMIT_SECONDS = _metric("pool_store_commit_seconds", Kind.HISTOGRAM, "Time of a write to the store.")
LOOP_LAG = _metric(
    "pool_loop_lag_seconds", Kind.HISTOGRAM, "How late the coordinator's event loop runs a task."
)
AUDIT_LOST = _metric("pool_audit_lost_total", Kind.COUNTER, "Lines that the audit lost.")
TROUBLE = _metric("pool_trouble", Kind.GAUGE, "1 for each part of the coordinator with a trouble.", "part")
BUILD_INFO = _metric("pool_build_info", Kind.INFO, "The coordinator's version.", "version")

POOL_METRICS = tuple(_metrics)


class PoolMetrics:
    """Make pages of the newest state. ``config`` returns the newest configuration."""

    def __init__(
        self,
        loop: Callable[[], PoolLoop | None],
        troubles: Troubles,
        audit: AuditLog,
        config: Callable[[], CoordinatorConfig],
        standby: Callable[[], Standby | None] = lambda: None,
    ) -> None:
        self._standby = standby
        self._loop = loop
        self._troubles = troubles
        self._audit = audit
        self._config = config
        self._lag = Distribution(SHORT_SECONDS)
        self._pages = KeptPages()
        self._listener = MetricsListener(self._address, self.page, troubles)

    def page(self, _: Caller, accept: str) -> WebReply:
        """Return the page, which is the same for everybody."""
        form = format_of(accept)
        return self._pages.page(form, lambda: WebReply(200, write(self._families(), form), form.encode()))

    def reload(self) -> None:
        """Apply the settings that changed."""
        self._listener.reload()

    async def run(self) -> None:
        """Measure and listen for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(follow_lag(self._lag))
            group.create_task(self._listener.run())

    def _address(self) -> tuple[str, int] | None:
        return metrics_address(self._config().metrics.listen)

    def _families(self) -> list[Family]:
        page = _Page()
        loop, standby = self._loop(), self._standby()
        if loop is not None:
            troubles = self._troubles.by_part()
            page.add(LEADER, int("store" not in troubles and standby is None))
            page.add(STANDBY_AGE, None if standby is None else standby.age_seconds())
            page.add(EPOCH, loop.epoch or loop.state.epoch)
        if loop is not None and standby is None:
            page.add_members(loop.state, loop.now())
            page.add_jobs(loop.state)
            page.add_queue(loop.state, loop.now())
            page.add(PLACEMENT_SECONDS, loop.pass_seconds)
            page.add(COMMIT_SECONDS, loop.commit_seconds)
        page.add(LOOP_LAG, self._lag)
        page.add(AUDIT_LOST, self._audit.lost_total)
        for part in sorted(self._troubles.by_part()):
            page.add(TROUBLE, 1, part)
        page.add(BUILD_INFO, 1, gpushared.__version__)
        return list(page.families.values())


class _Page:
    def __init__(self) -> None:
        self.families: dict[str, Family] = {metric.name: Family(metric) for metric in POOL_METRICS}

    def add(self, metric: Metric, value: Value | None, *labels: str) -> None:
        self.families[metric.name].add(labels, value)

    def add_members(self, state: PoolState, now: float) -> None:
        members = [member for member in state.members.values() if member.forgotten_at is None]
        self.add(SETTLED, int(state.settled))
        self.add(MEMBERS, len(members))
        for member in members:
            self.add(MEMBER_UP, int(member.connected), member.name)
            heard = None if member.heard_at is None else max(0.0, now - member.heard_at)
            self.add(MEMBER_HEARD, heard, member.name)
            self.add(MEMBER_DRAINED, int(bool(member.drained_by)), member.name)
            if member.inventory is not None:
                self.add(MEMBER_GPUS, len(member.inventory.gpus), member.name)
            if member.heard_at is not None:
                self.add(MEMBER_LEASES, len(member.free.holdings), member.name)

    def add_jobs(self, state: PoolState) -> None:
        """Count the jobs on nodes one by one, and the waiting ones, which may be many, by their known sum."""
        under_way = {job for jobs in state.by_node.values() for job in jobs}
        jobs = (state.jobs.get(job) for job in under_way)
        counts = Counter(_state_name(type(job.state)) for job in jobs if job is not None)
        for name in (_state_name(kind) for kind in (Placing, Running, Cancelling)):
            self.add(JOBS, counts[name], name)
        self.add(JOBS, state.queued_count, _state_name(Queued))

    def add_queue(self, state: PoolState, now: float) -> None:
        """Look at each shape of jobs once: its length is known, and its first job has the lowest number.

        Many shapes would take the loop's time, so that these metrics are absent then.
        """
        if len(state.waiting.shapes) + len(state.gangs.shapes) > MAX_SHAPES:
            return
        lengths: Counter[str] = Counter(dict.fromkeys(LeaseClass, 0))
        oldest: dict[str, float] = {}
        for queue in (state.waiting, state.gangs):
            for shape, entries in queue.shapes.items():
                kind = str(shape.request.lease_class)
                lengths[kind] += len(entries)
                first = entries.first()
                job = None if first is None else state.jobs.get(first[1])
                if job is not None and isinstance(job.state, Queued):
                    oldest[kind] = min(oldest.get(kind, job.state.since), job.state.since)
        for kind, length in lengths.items():
            self.add(QUEUE_LENGTH, length, kind)
        for kind, since in oldest.items():
            self.add(QUEUE_OLDEST, max(0.0, now - since), kind)


def _state_name(kind: type[JobState]) -> str:
    return kind.__name__.lower()
