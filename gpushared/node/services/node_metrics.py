"""Turn the state of a node into metrics: a function of one snapshot, without I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

import gpushared
from gpushared.daemon.measures import Distribution, Totals
from gpushared.domain.leases.idle_leases import idle_since
from gpushared.domain.leases.node_state import NodeState, waits
from gpushared.domain.model.gpu import WHOLE_PERMILLE, Gpu, GpuId
from gpushared.domain.model.lease import Ended, Lease, LeaseId, LeaseState, Waiting, state_name
from gpushared.domain.scheduling.gpu_amounts import permille_of
from gpushared.net.exposition import Family, Metric, Value
from gpushared.node.runtime.sampler import Sample
from gpushared.node.services import node_metric_names as names
from gpushared.node.services.node_counters import NodeCounters
from gpushared.node.services.views import mode_of
from gpushared.ports import GpuReading

UNKNOWN = "unknown"
OWN = "own"
"""This stands for the project of a user of its own, where the page hides the names of users."""
_STATES = tuple(state.__name__.lower() for state in get_args(LeaseState) if state is not Ended)


@dataclass(frozen=True, slots=True)
class Viewer:
    """Say what a page may name.

    ``uid`` is that of a caller who sees only the own leases; None sees all. ``names_users``: users and their
    own projects may be named.
    """

    uid: int | None = None
    names_users: bool = True


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """Hold the snapshot of which a page is made."""

    now: float
    state: NodeState
    sample: Sample
    reasons: Mapping[LeaseId, str]
    """Why leases wait; a lease that joined the queue since the last look has none."""
    counters: NodeCounters
    refusals: Totals
    pass_seconds: Distribution
    commit_seconds: Distribution
    loop_lag: Distribution
    troubles: Mapping[str, str]
    engine_up: bool
    audit_lost: int
    driver: str = ""
    simulated: bool = False

    @property
    def nvml_up(self) -> bool:
        return "gpus" not in self.troubles and self.sample.at > 0

    @property
    def readings(self) -> Mapping[GpuId, GpuReading]:
        """Return the readings; none while the driver does not answer, because the last ones are old."""
        return self.sample.readings if self.nvml_up else {}


def node_families(figures: NodeFigures, viewer: Viewer) -> list[Family]:
    """Return all metrics of the node that the viewer may see."""
    page = _Page(figures, viewer)
    page.add_gpus()
    page.add_leases()
    page.add_queue()
    page.add_projects_and_users()
    page.add_counts()
    page.add_daemon()
    return list(page.families.values())


class _Page:
    def __init__(self, figures: NodeFigures, viewer: Viewer) -> None:
        self.families: dict[str, Family] = {metric.name: Family(metric) for metric in names.NODE_METRICS}
        self._figures = figures
        self._state = figures.state
        self._viewer = viewer
        self._readings = figures.readings
        own = [lease for lease in self._state.leases.values() if lease.owner_uid == viewer.uid]
        self._own_names = {lease.owner_name for lease in own}
        self._own_projects = {lease.payer for lease in own}
        self._projects = self._state.policy.projects
        self._grants = {lease.id: grants for lease in self._state.leases.values() if (grants := lease.grants)}

    def _add(self, metric: Metric, value: Value | None, *labels: str) -> None:
        self.families[metric.name].add(labels, value)

    # --- GPUs ---

    def add_gpus(self) -> None:
        capacities, readings = self._state.capacities(), self._readings
        for gpu in self._state.gpus.values():
            drained, capacity = self._state.drain_of(gpu.id), capacities[gpu.id]
            mode = mode_of(capacity, drained)
            self._add(names.GPU_INFO, 1, gpu.id, gpu.label, gpu.name, self._figures.driver, mode)
            self._add(names.GPU_DRAINED, int(drained is not None), gpu.id)
            self._add(names.GPU_MEMORY, gpu.memory_total_bytes or None, gpu.id)
            if not gpu.split:
                leased_bytes = gpu.leasable_bytes - capacity.stray_bytes - capacity.free_bytes
                self._add(names.GPU_MEMORY_LEASED, leased_bytes, gpu.id)
                held_permille = WHOLE_PERMILLE - capacity.free_permille
                self._add(names.GPU_COMPUTE_LEASED, held_permille / WHOLE_PERMILLE, gpu.id)
            if (reading := readings.get(gpu.id)) is not None:
                self._add_reading(gpu, reading)
        for (gpu_id, number), count in self._figures.counters.xids.items():
            self._add(names.GPU_XIDS, count, gpu_id, str(number))
        if self._figures.nvml_up:
            self._add(names.UNMANAGED, len(self._figures.sample.strangers))

    def _add_reading(self, gpu: Gpu, reading: GpuReading) -> None:
        is_up = not reading.lost and reading.trouble is None and gpu.trouble is None
        self._add(names.GPU_UP, int(is_up), gpu.id)
        self._add(names.GPU_MEMORY_USED, reading.memory_used_bytes, gpu.id)
        self._add(names.GPU_UTILIZATION, reading.utilization_ratio, gpu.id)
        self._add(names.GPU_POWER, reading.power_watts, gpu.id)
        self._add(names.GPU_ENERGY, reading.energy_joules, gpu.id)
        self._add(names.GPU_TEMPERATURE, reading.temperature_celsius, gpu.id)

    # --- leases ---

    def add_leases(self) -> None:
        counts = Counter(state_name(lease.state) for lease in self._state.leases.values())
        for state in _STATES:
            self._add(names.LEASES, counts[state], state)
        for lease in self._state.leases.values():
            if self._viewer.uid in (None, lease.owner_uid):
                self._add_lease(lease)

    def _add_lease(self, lease: Lease) -> None:
        wall = lease.walls.memory_wall if lease.walls is not None else ""
        project, kind = self._project(lease.payer), lease.request.lease_class
        uses, readings = self._figures.sample.uses, self._readings
        self._add(names.LEASE_INFO, 1, lease.id, lease.owner_name, project, kind, lease.image, wall)
        for grant in self._grants.get(lease.id, ()):
            self._add(names.LEASE_MEMORY, grant.memory_bytes, lease.id, grant.gpu)
            self._add(names.LEASE_COMPUTE, grant.compute_permille / WHOLE_PERMILLE, lease.id, grant.gpu)
            use = uses.get((lease.id, grant.gpu))
            if use is not None and grant.gpu in readings:
                self._add(names.LEASE_MEMORY_USED, use.memory_bytes, lease.id, grant.gpu)
                self._add(names.LEASE_UTILIZATION, use.utilization_ratio, lease.id, grant.gpu)
        since = idle_since(lease, self._state)
        self._add(names.LEASE_IDLE, None if since is None else max(0.0, self._figures.now - since), lease.id)

    def add_queue(self) -> None:
        lengths: Counter[tuple[str, str]] = Counter()
        oldest: dict[str, float] = {}
        for lease in self._state.leases.values():
            if lease.id not in self._grants and isinstance(lease.state, Waiting) and waits(lease):
                kind, since = str(lease.request.lease_class), lease.state.since
                lengths[kind, self._figures.reasons.get(lease.id, UNKNOWN)] += 1
                oldest[kind] = min(oldest.get(kind, since), since)
        for (kind, reason), count in lengths.items():
            self._add(names.QUEUE_LENGTH, count, kind, reason)
        for kind, since in oldest.items():
            self._add(names.QUEUE_OLDEST, max(0.0, self._figures.now - since), kind)

    # --- projects and users ---

    def add_projects_and_users(self) -> None:
        counters = self._figures.counters
        counters.add_gpu_time()
        self._add_by_project(names.PROJECT_GPU_SECONDS, counters.gpu_seconds_by_project.items())
        held_permille: Counter[str] = Counter(dict.fromkeys(self._projects, 0))
        for lease, grants in self._grants.items():
            held_permille[self._state.leases[lease].payer] += permille_of(grants, self._state.gpus)
        shares = ((name, permille / WHOLE_PERMILLE) for name, permille in held_permille.items())
        self._add_by_project(names.PROJECT_HELD, shares)
        self._add_quotas()
        self._add_by_user(names.USER_GPU_SECONDS, counters.gpu_seconds_by_user)
        self._add_by_user(names.USER_IDLE_GPU_SECONDS, counters.idle_gpu_seconds_by_user)

    def _add_by_project(self, metric: Metric, sums: Iterable[tuple[str, float]]) -> None:
        shown: dict[str, float] = {}
        for name, value in sums:
            if self._viewer.uid is None or name in self._own_projects:
                shown[self._project(name)] = shown.get(self._project(name), 0.0) + value
        for name, value in shown.items():
            self._add(metric, value, name)

    def _add_quotas(self) -> None:
        for project in self._projects.values():
            if self._viewer.uid is not None and project.name not in self._own_projects:
                continue
            for model, quota in project.quotas():
                kinds = {"guaranteed": quota.guaranteed, "fixed": quota.fixed, "limit": quota.limit}
                for kind, permille in kinds.items():
                    if permille is not None and (permille or kind == "limit"):
                        value = permille / WHOLE_PERMILLE
                        self._add(names.PROJECT_QUOTA, value, project.name, model, kind)

    def _add_by_user(self, metric: Metric, sums: Totals) -> None:
        if not self._viewer.names_users:
            return
        for name, value in sums.items():
            if self._viewer.uid is None or name in self._own_names:
                self._add(metric, value, name)

    def _project(self, name: str) -> str:
        """Return a project's name; without a configuration a user's requests count to one of the same name."""
        return name if self._viewer.names_users or name in self._projects else OWN

    # --- counts and the daemon itself ---

    def add_counts(self) -> None:
        counters = self._figures.counters
        for lease_class, count in counters.grants.items():
            self._add(names.GRANTS, count, lease_class)
        for reason, total in self._figures.refusals.items():
            self._add(names.REFUSALS, total, reason)
        for code, total in counters.gate_refusals.items():
            self._add(names.GATE_REFUSALS, total, code)
        for step, count in counters.preemptions.items():
            self._add(names.PREEMPTIONS, count, step)
        self._add(names.OVER_LIMIT, counters.over_limit)
        for lease_class, waited in counters.waits.items():
            self._add(names.QUEUE_WAIT, waited, lease_class)
        for (lease_class, outcome), lasted in counters.durations.items():
            self._add(names.LEASE_DURATION, lasted, lease_class, outcome)

    def add_daemon(self) -> None:
        figures = self._figures
        self._add(names.PASS_SECONDS, figures.pass_seconds)
        self._add(names.COMMIT_SECONDS, figures.commit_seconds)
        self._add(names.LOOP_LAG, figures.loop_lag)
        self._add(names.ENGINE_UP, int(figures.engine_up))
        self._add(names.NVML_UP, int(figures.nvml_up))
        age = max(0.0, figures.now - figures.sample.at) if figures.sample.at else None
        self._add(names.SAMPLE_AGE, age)
        self._add(names.AUDIT_LOST, figures.audit_lost)
        for part in sorted(figures.troubles):
            self._add(names.TROUBLE, 1, part)
        self._add(names.BUILD_INFO, 1, gpushared.__version__, "true" if figures.simulated else "false")
