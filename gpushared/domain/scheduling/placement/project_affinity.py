"""Keep leases of one project together: a preference among GPUs that cost about the same.

The preference never breaks into a GPU that nobody uses if a used one fits, nor does it weigh against one more
whole GPU that a host keeps free: the policy alone judges these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import nsmallest
from typing import Protocol

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import Grant
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.placement.gpu_choice import Score

HOSTS_RATED = 32
"""At most so many hosts with leases of the project, the cheapest ones, are rated again with the
preference."""


class AffinityHolder(Protocol):
    """Describe the request and the grants of a lease."""

    @property
    def request(self) -> Request: ...
    @property
    def grants(self) -> Sequence[Grant]: ...


class ProjectAffinity:
    """Count the leases of each project on each GPU; a lease's request names its project."""

    def __init__(self, gpus: Mapping[str, Mapping[GpuId, int]] | None = None) -> None:
        self._gpus = {project: Counter(counts) for project, counts in (gpus or {}).items()}

    def copy(self) -> ProjectAffinity:
        return ProjectAffinity(self._gpus)

    def change(self, before: AffinityHolder | None, after: AffinityHolder | None) -> None:
        """Replace one holding of a lease by another."""
        if before is not None and before.request.project:
            counts = self._gpus[before.request.project]
            counts.subtract(grant.gpu for grant in before.grants)
            self._gpus[before.request.project] = +counts
        if after is not None and after.request.project:
            counts = self._gpus.setdefault(after.request.project, Counter())
            counts.update(grant.gpu for grant in after.grants)

    def gpus(self, project: str) -> Collection[GpuId]:
        """Return the GPUs with leases of the project."""
        return self._gpus[project].keys() if project in self._gpus else ()


def worth_rating(costs: Mapping[int, Score], best: Score, worth: float) -> Sequence[int]:
    """Return the hosts with leases of the project that may be the better place despite their cost."""
    near = ((cost, at) for at, cost in costs.items() if cost[0] <= best[0] and cost[1] - worth <= best[1])
    return [at for _, at in nsmallest(HOSTS_RATED, near)]
