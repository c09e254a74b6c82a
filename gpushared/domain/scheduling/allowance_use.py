"""Count how much of the pool's limits a node's own leases hold while a pass runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from gpushared.domain.model.gpu import Gpu
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.allowance import Allowance
from gpushared.domain.scheduling.pass_records import PendingRequest, RunningLease
from gpushared.domain.scheduling.projects import gpus
from gpushared.domain.scheduling.quota_usage import size_on


class Drawn:
    """Follow a pass, counting holders in and out; without an allowance nothing is counted."""

    def __init__(self, allowance: Allowance | None) -> None:
        self._allowance = allowance
        self._held: dict[tuple[str, str], int] = defaultdict(int)

    def count(self, holder: RunningLease, sizes: Mapping[str, int], sign: int = 1) -> None:
        """Count a holder in, or out if ``sign`` is negative."""
        for model, size in sizes.items() if holder.draws_on else ():
            self._held[holder.draws_on, ""] += sign * size
            if model:
                self._held[holder.draws_on, model] += sign * size

    def within(self, one: PendingRequest, models: Mapping[str, Gpu]) -> Request | None:
        """Return the request on the models that keep it within the shares; None if no model does."""
        request = one.lease.request
        if not one.draws_on or self._allowance is None:
            return request
        wanted = [gpu for name, gpu in models.items() if not request.models or name in request.models]
        found = tuple(gpu.name for gpu in wanted if self._is_within(one, gpu))
        if len(found) == len(wanted):
            return request
        return replace(request, models=found) if found else None

    def _is_within(self, one: PendingRequest, gpu: Gpu) -> bool:
        assert self._allowance is not None, "somebody draws on it"
        size = size_on(one.lease.request, gpu)
        most = {model: self._allowance.most(one.draws_on, model) for model in ("", gpu.name)}
        return all(
            limit is None or self._held[one.draws_on, model] + size <= limit for model, limit in most.items()
        )

    def sentence(self, project: str) -> str:
        """Return a sentence on the node's share of the limit, its use, and who could allow more."""
        allowance = self._allowance
        assert allowance is not None, "somebody draws on it"
        shares = [
            gpus(one.permille) + (f" of model {one.model}" if one.model else "")
            for one in allowance.shares
            if one.project == project
        ]
        head = (
            f"pool {allowance.pool} limits project {project}, and lets this node give it "
            f"{' and '.join(shares)} by itself, of which {gpus(self._held[project, ''])} is held"
        )
        if allowance.ended:
            return f"{head}; its coordinator has been away for too long for this node to give any of it"
        if allowance.away:
            return f"{head}; its coordinator, which could allow more, is away"
        return f"{head}; its coordinator is asked for more, and has it when others of the project give back"
