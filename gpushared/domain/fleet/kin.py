"""Leases of one project together: a preference among places that are worth about the same.

It never breaks into a GPU that nobody uses where a used one fits, nor does it count against a whole GPU more
or less that a host keeps free: of these the policy judges alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import nsmallest
from typing import Protocol

from gpushared.domain.fleet.choice import Score
from gpushared.domain.gpu import GpuId
from gpushared.domain.lease import Grant
from gpushared.domain.request import Request

HOSTS_RATED = 32
"""So many hosts with leases of the project are asked again, with them in mind: those that cost least."""


class Held(Protocol):
    """What a lease holds."""

    @property
    def request(self) -> Request: ...
    @property
    def grants(self) -> Sequence[Grant]: ...


class Kin:
    """On which GPUs the leases of each project are, and how many; whose one is, its request says."""

    def __init__(self, gpus: Mapping[str, Mapping[GpuId, int]] | None = None) -> None:
        self._gpus = {project: Counter(held) for project, held in (gpus or {}).items()}

    def copy(self) -> Kin:
        return Kin(self._gpus)

    def change(self, before: Held | None, after: Held | None) -> None:
        """A lease held the one and holds the other."""
        if before is not None and before.request.project:
            left = self._gpus[before.request.project]
            left.subtract(grant.gpu for grant in before.grants)
            self._gpus[before.request.project] = +left
        if after is not None and after.request.project:
            held = self._gpus.setdefault(after.request.project, Counter())
            held.update(grant.gpu for grant in after.grants)

    def gpus(self, project: str) -> Collection[GpuId]:
        """Where its leases are."""
        return self._gpus[project].keys() if project in self._gpus else ()


def worth_rating(costs: Mapping[int, Score], best: Score, worth: float) -> Sequence[int]:
    """Of the hosts with leases of the project, those that may be the better place for all that they cost."""
    near = ((cost, at) for at, cost in costs.items() if cost[0] <= best[0] and cost[1] - worth <= best[1])
    return [at for _, at in nsmallest(HOSTS_RATED, near)]
