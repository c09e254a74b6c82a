"""Count jobs that run on nodes which have not reported to this coordinator yet: their grants are unknown.

A coordinator that starts anew knows from its store which jobs run where, and learns from the nodes what each of
them holds. Until a node has reported, its jobs count towards the limits of their projects with the most that
they may hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.node_holdings import part_id
from gpushared.domain.jobs.quota_owners import NOBODYS, payer_of
from gpushared.domain.model.gpu import WHOLE_PERMILLE
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.holder_index import HolderIndex


def unreported_permille(index: HolderIndex, state: PoolState) -> Mapping[str, int]:
    """Return, for each project with a limit, the most that its jobs hold without being in the index."""
    limited = {project.name for project in state.policy.projects.values() if project.has_limit}
    permille_by_project: dict[str, int] = defaultdict(int)
    if not limited:
        return permille_by_project
    for node, names in state.by_node.items():
        for job in (state.jobs[name] for name in names):
            if job.project not in limited or payer_of(job) == NOBODYS:
                continue
            part = next(part for part in job.parts if part.node == node)
            if part_id(job, part) not in index:
                permille_by_project[job.project] += _most_of(part.request)
    return permille_by_project


def _most_of(request: Request) -> int:
    """Return the most that a request can count for, on whatever GPUs it runs."""
    shares = (request.compute_permille, request.memory_permille)
    has_share = request.memory_bytes is None and any(share is not None for share in shares)
    each = max(share or 0 for share in shares) if has_share else WHOLE_PERMILLE
    return (len(request.gpus) or request.gpu_count) * each
