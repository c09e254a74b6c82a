"""Show projects to users, with their quotas, holdings and past use, and set them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from gpushared.api.v1 import projects_pb2
from gpushared.config.kinds import NO_LIMIT
from gpushared.domain.leases.events import ProjectSet
from gpushared.domain.leases.node_rules import IdlePolicy
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.lease import Lease, LeaseId
from gpushared.domain.model.request import Caller, LeaseClass
from gpushared.domain.model.units import parse_gpus
from gpushared.domain.scheduling.gpu_amounts import permille_of
from gpushared.domain.scheduling.projects import Project
from gpushared.domain.scheduling.use_over_time import Interval
from gpushared.node.runtime.loop import Loop

SET, CONFIGURED, USERS_OWN = "set", "config", "user"


class ProjectService:
    """Serve the calls ``Projects.List`` and ``Projects.Set``."""

    def __init__(self, loop: Loop, *, simulated: bool) -> None:
        self._loop = loop
        self._simulated = simulated

    async def list_projects(
        self, _: projects_pb2.ListProjectsRequest, __: Caller
    ) -> projects_pb2.ListProjectsResponse:
        return projects_pb2.ListProjectsResponse(projects=self._views(), simulated=self._simulated)

    async def set_project(
        self, message: projects_pb2.SetProjectRequest, caller: Caller
    ) -> projects_pb2.Project:
        """Set a project's values and return the project as it is now."""
        await self._loop.send(_event(message, caller))
        project = next((view for view in self._views() if view.name == message.name), None)
        return project or projects_pb2.Project(name=message.name, weight=1.0, origin=USERS_OWN)

    def _views(self) -> list[projects_pb2.Project]:
        state = self._loop.state
        policy = state.policy
        used = _decayed(state, self._loop.now())
        waiting = frozenset(lease.id for lease in state.waiting())
        leases: dict[str, list[Lease]] = defaultdict(list)
        for lease in state.leases.values():
            leases[lease.payer].append(lease)
        everything = sum(used.values())
        return [
            _view(policy.project(name), state, leases[name], waiting, used.get(name, 0.0), everything)
            for name in sorted({*policy.projects, *leases, *used})
        ]


def _event(message: projects_pb2.SetProjectRequest, caller: Caller) -> ProjectSet:
    return ProjectSet(
        message.name,
        caller,
        weight=message.weight if message.HasField("weight") else None,
        users=tuple(message.users.names) if message.HasField("users") else None,
        model=message.model,
        guaranteed=_gpus("guaranteed", message.guaranteed),
        limit=None if message.limit == NO_LIMIT else _gpus("limit", message.limit),
        no_limit=message.limit == NO_LIMIT,
        fixed=_gpus("fixed", message.fixed),
        unset=message.unset,
    )


def _gpus(field: str, text: str) -> int | None:
    try:
        return parse_gpus(text) if text else None
    except RequestError as error:
        raise RequestError(f"{field}: {error.message}", hint=error.hint) from None


def _decayed(state: NodeState, now: float) -> dict[str, float]:
    """Return the GPU-seconds of each project, with its present holdings."""
    running = [
        Interval(lease.payer, permille_of(lease.grants, state.gpus), lease.holds_since, now)
        for lease in state.holders()
        if lease.holds_since is not None
    ]
    return {project: used for project, used in state.usage.decayed(now, running).items() if used > 0}


def _view(
    project: Project,
    state: NodeState,
    leases: Sequence[Lease],
    waiting: AbstractSet[LeaseId],
    used: float,
    everything: float,
) -> projects_pb2.Project:
    held_by_pool, idle = _held_by_pool(project, leases, state), state.rules.idle_of(project.name)
    return projects_pb2.Project(
        name=project.name,
        users=sorted(project.users),
        weight=project.weight,
        quotas=[_quota(pool, project, held_by_pool.get(pool, 0)) for pool in _pools(project)],
        held_permille=sum(held_by_pool.values()),
        decayed_gpu_seconds=used,
        use_ratio=used / everything if everything else 0.0,
        origin=_origin(project.name, state),
        holding=[lease.id for lease in leases if lease.grants],
        waiting=[lease.id for lease in leases if lease.id in waiting],
        idle=_idle(idle.usual),
        quiet_idle=_idle(idle.quiet),
    )


def _idle(rules: Mapping[LeaseClass, IdlePolicy]) -> list[projects_pb2.IdlePolicy]:
    views = []
    for lease_class in sorted(rules):
        policy = rules[lease_class]
        view = projects_pb2.IdlePolicy(
            warn_seconds=policy.warn_seconds,
            lower_seconds=policy.lower_seconds,
            action=policy.action,
            action_seconds=policy.action_seconds,
        )
        setattr(view, "class", lease_class)
        views.append(view)
    return views


def _origin(name: str, state: NodeState) -> str:
    if name in state.projects:
        return SET
    return CONFIGURED if name in state.rules.policy.projects else USERS_OWN


def _pools(project: Project) -> list[str]:
    return ["", *sorted(project.models)]


def _held_by_pool(project: Project, leases: Iterable[Lease], state: NodeState) -> dict[str, int]:
    """Return a project's holdings in permille of a GPU, by the quota that they count to."""
    held_by_pool: dict[str, int] = defaultdict(int)
    for lease in leases:
        for grant in lease.grants:
            gpu = state.gpus.get(grant.gpu)
            pool = project.pool(gpu.name) if gpu else ""
            held_by_pool[pool] += permille_of([grant], state.gpus)
    return held_by_pool


def _quota(pool: str, project: Project, held_permille: int) -> projects_pb2.Quota:
    quota = project.quota_of(pool)
    return projects_pb2.Quota(
        model=pool,
        guaranteed_permille=quota.guaranteed,
        limit_permille=quota.limit,
        fixed_permille=quota.fixed,
        held_permille=held_permille,
    )
