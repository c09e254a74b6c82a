"""Count each project's holdings during a pass, its open guarantees, and its leases over quota."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpushared.domain.model.gpu import WHOLE_PERMILLE, Gpu
from gpushared.domain.model.request import LeaseClass, Request
from gpushared.domain.scheduling.capacity_port import CapacityPort
from gpushared.domain.scheduling.gpu_amounts import permille_on
from gpushared.domain.scheduling.holder_index import FIXED_CLASS, HolderIndex
from gpushared.domain.scheduling.pass_records import PassDecision, PendingRequest, RunningLease, WaitReason
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
        sizes = [sum(self.holder_index.sizes(holder.lease.id).values()) for holder in victims]
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
        settings = self.policy.project(project)
        pool = settings.pool(model)
        quota = settings.quota_of(pool)
        in_fixed = min(quota.fixed, self.holder_index.fixed(project, pool))
        open_guarantee = max(0, quota.guaranteed - (self.holder_index.held(project, pool) - in_fixed))
        return open_guarantee + (quota.fixed - in_fixed if lease_class is FIXED_CLASS else 0)

    def left_to_limit(self, project: str, model: str, lease_class: LeaseClass) -> int | None:
        """Return how much more of a model's GPUs the project may hold for such work; None = no limit.

        The part that is fixed for build work stays within the limit whenever that work comes.
        """
        settings = self.policy.project(project)
        is_build = lease_class is FIXED_CLASS
        limits = []
        if settings.quota.limit is not None:
            fixed = 0 if is_build else self._all_fixed_left(project)
            limits.append(settings.quota.limit - self.holder_index.limited(project) - fixed)
        own_quota = settings.models.get(model)
        if own_quota is not None and own_quota.limit is not None:
            fixed = 0 if is_build else self.fixed_left(project, model)
            limits.append(own_quota.limit - self.holder_index.limited(project, model) - fixed)
        return min(limits, default=None)

    def _all_fixed_left(self, project: str) -> int:
        return sum(self.fixed_left(project, pool) for pool, _ in self.policy.project(project).quotas())

    def beyond_limit(
        self, project: str, request: Request, models: Iterable[Gpu], nodes: int = 1
    ) -> PassDecision:
        """Return the decision on a request that the project's limits forbid on all of these models now.

        ``nodes``: the job asks for the request on each of so many nodes.
        """
        sizes = {gpu.name: size_on(request, gpu) * nodes for gpu in models}
        if any(size <= self._most(project, name, request.lease_class) for name, size in sizes.items()):
            return PassDecision(WaitReason.PROJECT_LIMIT, self.limit_sentence(project))
        fixed = sum(quota.fixed for _, quota in self.policy.project(project).quotas())
        if request.lease_class is FIXED_CLASS:
            fixed = 0
        verb = "is" if fixed == WHOLE_PERMILLE else "are"
        kept = f", of which {gpus(fixed)} {verb} fixed for its build work" if fixed else ""
        text = (
            f"asks for {gpus(min(sizes.values()))}, more than project {project} may ever hold: its limit is "
            f"{self._limits(project)}{kept}; ask for less, or have an administrator raise the limit"
        )
        return PassDecision(WaitReason.PROJECT_LIMIT, text, lasting=True)

    def _most(self, project: str, model: str, lease_class: LeaseClass) -> float:
        """Return what a project that holds nothing may hold of a model's GPUs for such work."""
        settings = self.policy.project(project)
        is_build = lease_class is FIXED_CLASS
        limits: list[int] = []
        if settings.quota.limit is not None:
            fixed = 0 if is_build else sum(quota.fixed for _, quota in settings.quotas())
            limits.append(settings.quota.limit - fixed)
        own_quota = settings.models.get(model)
        if own_quota is not None and own_quota.limit is not None:
            limits.append(own_quota.limit - (0 if is_build else own_quota.fixed))
        return min(limits, default=math.inf)

    def _limits(self, project: str) -> str:
        quotas = self.policy.project(project).quotas()
        return " and ".join(
            gpus(quota.limit) + (f" of model {pool}" if pool else "")
            for pool, quota in quotas
            if quota.limit is not None
        )

    def limit_sentence(self, project: str) -> str:
        """Return a sentence on what counts towards the project's limit, and the limit."""
        holds = f"project {project} holds {gpus(self.holder_index.limited(project))}"
        if fixed := self._all_fixed_left(project):
            verb = "is" if fixed == WHOLE_PERMILLE else "are"
            holds += f", and {gpus(fixed)} more {verb} fixed for its build work"
        return f"{holds}; its limit is {self._limits(project)}"

    def over_quota(self, holder: RunningLease) -> bool:
        """Return True if the project's guarantees do not cover the lease.

        Guarantees cover the highest priorities first. At the priority where a guarantee runs out any lease
        may go, but not more than ``may_lose`` allows.
        """
        edges = self._edges(holder.project)
        return any(pool in edges and holder.priority <= edges[pool].priority for pool in self._pools(holder))

    def may_lose(self, victims: Sequence[RunningLease]) -> bool:
        """Return True if a project keeps its guarantees when these leases, all its own, go together.

        The last of them may reach below the guarantee, if leases are larger than the excess.
        """
        project = victims[0].project
        for pool, edge in self._edges(project).items():
            sizes = [
                self._pools(holder).get(pool, 0) for holder in victims if holder.priority == edge.priority
            ]
            if sizes and sum(sizes) - max(sizes) >= edge.excess:
                return False
        return True

    def _pools(self, holder: RunningLease) -> Mapping[str, int]:
        settings = self.policy.project(holder.project)
        pools: dict[str, int] = defaultdict(int)
        for model, size in self.holder_index.sizes(holder.lease.id).items():
            pools[settings.pool(model)] += size
        return pools

    def _edges(self, project: str) -> Mapping[str, Edge]:
        if project not in self._known_edges:
            settings = self.policy.project(project)
            edges = ((pool, self._edge(project, pool, quota)) for pool, quota in settings.quotas())
            self._known_edges[project] = {pool: edge for pool, edge in edges if edge is not None}
        return self._known_edges[project]

    def _edge(self, project: str, pool: str, quota: Quota) -> Edge | None:
        """Return where the guarantees of a pool run out; None if they cover all holdings."""
        levels: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for holder in self.holder_index.of(project):
            build = holder.lease.request.lease_class is FIXED_CLASS
            levels[holder.priority][int(build)] += self._pools(holder).get(pool, 0)
        fixed, guaranteed = quota.fixed, quota.guaranteed
        for priority in sorted(levels, reverse=True):
            other_work, builds = levels[priority]
            in_fixed = min(fixed, builds)
            fixed -= in_fixed
            guaranteed -= other_work + builds - in_fixed
            if guaranteed < 0:
                return Edge(priority, -guaranteed)
        return None

    def claims(self, candidate: PendingRequest, capacity: CapacityPort) -> tuple[str, ...]:
        """Return the models on which a request is within its project's guarantee."""
        request = candidate.lease.request
        return tuple(
            model
            for model, gpu in capacity.models().items()
            if (not request.models or model in request.models)
            and size_on(request, gpu) <= self.entitled(candidate.project, model, request.lease_class)
            and (not self.holder_index.unreported or self._is_within_limit(candidate, gpu))
        )

    def within_limit(self, candidate: PendingRequest, capacity: CapacityPort) -> tuple[str, ...]:
        """Return the models on which a request stays within its project's limits."""
        request = candidate.lease.request
        return tuple(
            model
            for model, gpu in capacity.models().items()
            if (not request.models or model in request.models) and self._is_within_limit(candidate, gpu)
        )

    def _is_within_limit(self, candidate: PendingRequest, gpu: Gpu) -> bool:
        request = candidate.lease.request
        remaining = self.left_to_limit(candidate.project, gpu.name, request.lease_class)
        return remaining is None or size_on(request, gpu) <= remaining
