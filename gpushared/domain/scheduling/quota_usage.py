"""Count each project's holdings during a pass, its open guarantees, and its leases over quota."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpushared.domain.model.gpu import WHOLE_PERMILLE, Gpu
from gpushared.domain.model.request import LeaseClass, Request
from gpushared.domain.scheduling.capacity_port import CapacityPort
from gpushared.domain.scheduling.gpu_amounts import permille_on
from gpushared.domain.scheduling.holder_index import FIXED_CLASS, HolderIndex
from gpushared.domain.scheduling.pass_records import PendingRequest, RunningLease
from gpushared.domain.scheduling.placement.free_capacity import need_on
from gpushared.domain.scheduling.projects import Quota, gpus
from gpushared.domain.scheduling.use_over_time import Usage


def size_on(request: Request, gpu: Gpu) -> int:
    """Return the size of a request on GPUs like this one, in permille of a GPU."""
    return permille_on(need_on(request, gpu), gpu) * (len(request.gpus) or request.gpu_count)


@dataclass(frozen=True, slots=True)
class Edge:
    """Mark the priority at which a project's guarantee runs out, and by how much, in permille of a GPU."""

    priority: int
    excess: int


class QuotaUsage:
    """Count holdings by project and pool; the counts grow and shrink within a pass."""

    def __init__(self, holder_index: HolderIndex, usage: Usage, now: float) -> None:
        """Copy ``holder_index``, which stays as it is: a pass changes the copy."""
        self.policy = holder_index.policy
        self.holder_index = holder_index.copy()
        self._known_edges: dict[str, Mapping[str, Edge]] = {}
        self._decayed = usage.decayed(now, holder_index.running)
        self.waiting: Collection[str] = ()
        """The projects that wait for something."""
        self._all_held = (-1, 0.0)

    def add(self, holder: RunningLease) -> None:
        """Count a holder in."""
        self.holder_index.add(holder)
        self._known_edges.pop(holder.project, None)

    def remove(self, holder: RunningLease) -> None:
        """Count a holder out."""
        self.holder_index.remove(holder.lease.id)
        self._known_edges.pop(holder.project, None)

    def held(self, project: str) -> int:
        """Return all that a project holds."""
        return self.holder_index.all(project)

    def fair(self, project: str) -> float:
        """Return the figure of fair share: decayed GPU-seconds by weight, with a lookahead.

        Present holdings count as if they had been held for the lookahead time too.
        """
        ahead = self.holder_index.all(project) / WHOLE_PERMILLE * self.policy.lookahead_seconds
        return (self._decayed.get(project, 0.0) + ahead) / self.policy.project(project).weight

    def fair_share(self, project: str) -> float:
        """Return the project's part, by weight, of all that is held, in permille of a GPU.

        The others that count are the projects that hold something or wait.
        """
        if self._all_held[0] != self.holder_index.version:
            names = {*self.holder_index.projects(), *self.waiting}
            weights = sum(self.policy.project(name).weight for name in names)
            self._all_held = (
                self.holder_index.version,
                sum(self.holder_index.all(name) for name in names) / max(1e-9, weights),
            )
        return self._all_held[1] * self.policy.project(project).weight

    def keeps_share(self, victims: Sequence[RunningLease]) -> bool:
        """Return True if a project holds its fair share when all but the last of these leases are gone."""
        project = victims[0].project
        sizes = [sum(self.holder_index.sizes(one.lease.id).values()) for one in victims]
        return self.holder_index.all(project) - sum(sizes) + max(sizes) > self.fair_share(project)

    def filled(self, project: str) -> float:
        """Return the part of its guarantees that a project holds; the lowest claims first."""
        promised = sum(quota.guaranteed + quota.fixed for _, quota in self.policy.project(project).quotas())
        return self.holder_index.all(project) / max(1, promised)

    def fixed_left(self, project: str, pool: str) -> int:
        """Return the part of a fixed quota that no build work holds at the moment."""
        fixed = self.policy.project(project).quota_of(pool).fixed
        return max(0, fixed - self.holder_index.fixed(project, pool))

    def entitled(self, project: str, model: str, lease_class: LeaseClass) -> int:
        """Return how much more of a model's GPUs the project is guaranteed for such work."""
        known = self.policy.project(project)
        pool = known.pool(model)
        quota = known.quota_of(pool)
        in_fixed = min(quota.fixed, self.holder_index.fixed(project, pool))
        left = max(0, quota.guaranteed - (self.holder_index.held(project, pool) - in_fixed))
        return left + (quota.fixed - in_fixed if lease_class is FIXED_CLASS else 0)

    def left_to_limit(self, project: str, model: str, lease_class: LeaseClass) -> int | None:
        """Return how much more of a model's GPUs the project may hold for such work; None = no limit.

        The part that is fixed for build work stays within the limit whenever that work comes.
        """
        known = self.policy.project(project)
        others = lease_class is not FIXED_CLASS
        limits = []
        if known.quota.limit is not None:
            kept = self._all_fixed_left(project) if others else 0
            limits.append(known.quota.limit - self.holder_index.limited(project) - kept)
        own = known.models.get(model)
        if own is not None and own.limit is not None:
            kept = self.fixed_left(project, model) if others else 0
            limits.append(own.limit - self.holder_index.limited(project, model) - kept)
        return min(limits, default=None)

    def _all_fixed_left(self, project: str) -> int:
        return sum(self.fixed_left(project, pool) for pool, _ in self.policy.project(project).quotas())

    def limit_sentence(self, project: str) -> str:
        """Return a sentence on what counts towards the project's limit, and the limit."""
        known = self.policy.project(project)
        said = [
            gpus(quota.limit) + (f" of model {pool}" if pool else "")
            for pool, quota in known.quotas()
            if quota.limit is not None
        ]
        left = self._all_fixed_left(project)
        fixed = (
            f", and {gpus(left)} more {'is' if left == WHOLE_PERMILLE else 'are'} fixed for its build work"
        )
        holds = f"project {project} holds {gpus(self.holder_index.limited(project))}{fixed if left else ''}"
        return f"{holds}; its limit is {' and '.join(said)}"

    def over_quota(self, holder: RunningLease) -> bool:
        """Return True if the project's guarantees do not cover the lease.

        Guarantees cover the highest priorities first. At the priority where a guarantee runs out any lease
        may go, but not more than ``may_lose`` allows.
        """
        return any(
            edge is not None and holder.priority <= edge.priority
            for edge in map(self._edges(holder.project).get, self._pools(holder))
        )

    def may_lose(self, victims: Sequence[RunningLease]) -> bool:
        """Return True if a project keeps its guarantees when these leases, all its own, go together.

        The last of them may reach below the guarantee, if leases are larger than the excess.
        """
        project = victims[0].project
        for pool, edge in self._edges(project).items():
            sizes = [self._pools(one).get(pool, 0) for one in victims if one.priority == edge.priority]
            if sizes and sum(sizes) - max(sizes) >= edge.excess:
                return False
        return True

    def _pools(self, holder: RunningLease) -> Mapping[str, int]:
        known = self.policy.project(holder.project)
        pools: dict[str, int] = defaultdict(int)
        for model, size in self.holder_index.sizes(holder.lease.id).items():
            pools[known.pool(model)] += size
        return pools

    def _edges(self, project: str) -> Mapping[str, Edge]:
        if project not in self._known_edges:
            known = self.policy.project(project)
            found = {pool: self._edge(project, pool, quota) for pool, quota in known.quotas()}
            self._known_edges[project] = {pool: edge for pool, edge in found.items() if edge is not None}
        return self._known_edges[project]

    def _edge(self, project: str, pool: str, quota: Quota) -> Edge | None:
        """Return where the guarantees of a pool run out; None if they cover all holdings."""
        levels: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for holder in self.holder_index.of(project):
            build = holder.lease.request.lease_class is FIXED_CLASS
            levels[holder.priority][int(build)] += self._pools(holder).get(pool, 0)
        fixed, left = quota.fixed, quota.guaranteed
        for priority in sorted(levels, reverse=True):
            others, builds = levels[priority]
            in_fixed = min(fixed, builds)
            fixed -= in_fixed
            left -= others + builds - in_fixed
            if left < 0:
                return Edge(priority, -left)
        return None

    def claims(self, candidate: PendingRequest, places: CapacityPort) -> tuple[str, ...]:
        """Return the models on which a request is within its project's guarantee."""
        request = candidate.lease.request
        return tuple(
            model
            for model, gpu in places.models().items()
            if (not request.models or model in request.models)
            and size_on(request, gpu) <= self.entitled(candidate.project, model, request.lease_class)
            and (not self.holder_index.unreported or self._is_within_limit(candidate, gpu))
        )

    def within_limit(self, candidate: PendingRequest, places: CapacityPort) -> tuple[str, ...]:
        """Return the models on which a request stays within its project's limits."""
        request = candidate.lease.request
        found = []
        for model, gpu in places.models().items():
            if request.models and model not in request.models:
                continue
            if self._is_within_limit(candidate, gpu):
                found.append(model)
        return tuple(found)

    def _is_within_limit(self, candidate: PendingRequest, gpu: Gpu) -> bool:
        request = candidate.lease.request
        left = self.left_to_limit(candidate.project, gpu.name, request.lease_class)
        return left is None or size_on(request, gpu) <= left
