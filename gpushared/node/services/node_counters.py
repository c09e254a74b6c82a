"""Count what happens on a node since the daemon's start: grants, ends, GPU time, the driver's errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gpushared.daemon.measures import LONG_SECONDS, Distribution, Totals
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.leases.requeue import PreemptionStep
from gpushared.domain.model.gpu import WHOLE_PERMILLE, GpuId
from gpushared.domain.model.lease import (
    Draining,
    Ended,
    Lease,
    LeaseId,
    OverLimit,
    Queued,
    Requeued,
    outcome_kind,
)
from gpushared.domain.model.request import LeaseClass
from gpushared.domain.scheduling.gpu_amounts import permille_of
from gpushared.node.runtime.sampler import Sample
from gpushared.storage.audit.line import AuditLine

MAX_NAMES = 200
"""So many users and projects have a sum of their own; more of them share one."""
MAX_XIDS_OF_GPU = 64


class NodeCounters:
    """Follow the loop's steps and the samples; ``now`` is the loop's clock."""

    def __init__(self, state: NodeState, now: Callable[[], float]) -> None:
        self.grants: Counter[LeaseClass] = Counter(dict.fromkeys(LeaseClass, 0))
        self.preemptions: Counter[PreemptionStep] = Counter(dict.fromkeys(PreemptionStep, 0))
        self.over_limit = 0
        self.gate_refusals = Totals(MAX_NAMES)
        self.xids: Counter[tuple[GpuId, int]] = Counter()
        self.waits: dict[LeaseClass, Distribution] = {kind: Distribution(LONG_SECONDS) for kind in LeaseClass}
        self.durations: dict[tuple[LeaseClass, str], Distribution] = {}
        self.gpu_seconds_by_project = Totals(MAX_NAMES)
        self.gpu_seconds_by_user = Totals(MAX_NAMES)
        self.idle_gpu_seconds_by_user = Totals(MAX_NAMES)
        self._now = now
        self._added_until = now()
        self._holdings = _Holdings(state)

    def observe(self, before: NodeState, step: Step) -> None:
        """Count a step that is on disk."""
        resting = step.state.resting
        is_new_rest = before.resting.keys() != resting.keys()
        for lease in step.changed:
            old = before.leases.get(lease.id)
            self._count(old, lease)
            if lease.grants != (old.grants if old is not None else ()):
                self.add_gpu_time()
                self._holdings.put(lease, step.state)
                is_new_rest |= lease.id in resting
        if is_new_rest:
            self.add_gpu_time()
            self._holdings.count_idle(step.state)

    def observe_sample(self, sample: Sample) -> None:
        """Count the errors that the driver reported."""
        for gpu, reading in sample.readings.items():
            for number in reading.xids:
                count = sum(xid_gpu == gpu for xid_gpu, _ in self.xids)
                if (gpu, number) in self.xids or count < MAX_XIDS_OF_GPU:
                    self.xids[gpu, number] += 1

    def observe_audit(self, line: AuditLine) -> None:
        """Count a request to the engine that the gate refused."""
        if line.refused and line.method in _GATE_METHODS:
            self.gate_refusals.add(line.code, 1)

    def add_gpu_time(self) -> None:
        """Add the GPU time since the last call to the sums."""
        now, holdings = self._now(), self._holdings
        seconds = max(0.0, now - self._added_until)
        self._added_until = now
        for totals, rates in (
            (self.gpu_seconds_by_project, holdings.by_project),
            (self.gpu_seconds_by_user, holdings.by_user),
            (self.idle_gpu_seconds_by_user, holdings.idle_by_user),
        ):
            for name, permille in rates.items():
                totals.add(name, seconds * permille / WHOLE_PERMILLE)

    def _count(self, before: Lease | None, lease: Lease) -> None:
        kind = lease.request.lease_class
        if lease.grants and (before is None or not before.grants):
            self.grants[kind] += 1
            self._count_wait(before, lease)
        if before is None:
            return
        if lease.preemption.count > before.preemption.count:
            self.preemptions[_step(before, lease)] += 1
        if _is_over_limit(lease) and not _is_over_limit(before):
            self.over_limit += 1
        if isinstance(lease.state, Ended) and before.grants:
            key = (kind, outcome_kind(lease.state.outcome))
            lasted = self.durations.setdefault(key, Distribution(LONG_SECONDS))
            lasted.add(lease.preemption.served_seconds)

    def _count_wait(self, before: Lease | None, lease: Lease) -> None:
        granted_at = lease.holds_since
        if granted_at is None:
            return
        if before is None:
            self.waits[lease.request.lease_class].add(0.0)
        elif isinstance(before.state, Queued | Requeued):
            self.waits[lease.request.lease_class].add(max(0.0, granted_at - before.state.since))


class _Holdings:
    """Hold the permille of GPUs that projects and users hold, and the idle part of each user."""

    def __init__(self, state: NodeState) -> None:
        self.by_project: Counter[str] = Counter()
        self.by_user: Counter[str] = Counter()
        self.idle_by_user: Counter[str] = Counter()
        self._permille: dict[LeaseId, int] = {}
        for lease in state.holders():
            self.put(lease, state)
        self.count_idle(state)

    def put(self, lease: Lease, state: NodeState) -> None:
        """Replace the amount that a lease held by the amount that it holds now."""
        permille, before = permille_of(lease.grants, state.gpus), self._permille.pop(lease.id, 0)
        if permille:
            self._permille[lease.id] = permille
        for rates, name in ((self.by_project, lease.payer), (self.by_user, lease.owner_name)):
            rates[name] += permille - before
            if not rates[name]:
                del rates[name]

    def count_idle(self, state: NodeState) -> None:
        """Count the leases that do nothing, as the state has them."""
        self.idle_by_user.clear()
        for lease in state.resting:
            if lease in self._permille and lease in state.leases:
                self.idle_by_user[state.leases[lease].owner_name] += self._permille[lease]


_GATE_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})


def _is_over_limit(lease: Lease) -> bool:
    return isinstance(lease.state, Draining | Ended) and isinstance(lease.state.outcome, OverLimit)


def _step(before: Lease, lease: Lease) -> PreemptionStep:
    """Return the step by which the lease gave way just now: only a suspension keeps the program's work."""
    if lease.preemption.begun_anew == before.preemption.begun_anew:
        return PreemptionStep.SUSPEND
    return PreemptionStep.REQUEUE if lease.preemption.requeues else PreemptionStep.STOP
