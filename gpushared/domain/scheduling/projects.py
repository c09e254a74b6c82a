"""Define projects, their quotas, the rules of each class, and the project that a request counts to.

GPUs are counted in permille: 1000 are one GPU. A part of a GPU counts as its share of the memory or of the
compute, whichever is larger, so that nobody gets a GPU's memory for the price of a little compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.domain.model.gpu import WHOLE_PERMILLE
from gpushared.domain.model.request import LeaseClass
from gpushared.domain.model.units import shown

HOUR = 3600.0
DAY = 24 * HOUR


class GivesWay(StrEnum):
    """Say when leases of a class may be taken back."""

    NEVER = "never"
    """A lease is never taken back; so it is granted only within its project's guarantee."""
    OVER_QUOTA = "over_quota"
    """A lease may be taken back while its project holds more than its guarantee; inside a project, by a
    higher priority."""
    ALWAYS = "always"
    """A lease also gives way to every class that goes before its own: best effort."""


class PreemptionSetting(StrEnum):
    """Say if leases give way to others."""

    AUTO = "auto"
    """Leases give way by all rules where there are projects. Elsewhere only leases that lose nothing give
    way: a node that nobody has configured must not end people's work."""
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class ClassRules:
    """Hold the rules for all leases of a class.

    Attributes:
        order: The lower goes first if priorities are equal.
        priority: The priority of requests that name none; it counts inside a project only.
        min_run_seconds: A lease runs at least so long before it may be preempted.
        time_limit_seconds: The limit of requests that name none; None = unlimited.
        long_run_seconds: A lease that has held its GPUs for so long sinks below the others of its project,
            and once more each time that it has held them four times as long, so that short work need not
            wait for it; None = never.
    """

    order: int
    priority: int
    gives_way: GivesWay = GivesWay.OVER_QUOTA
    min_run_seconds: float = 600.0
    time_limit_seconds: int | None = None
    long_run_seconds: float | None = HOUR


DEFAULT_CLASSES: Mapping[LeaseClass, ClassRules] = {
    LeaseClass.BUILD: ClassRules(order=0, priority=100),
    LeaseClass.INFER: ClassRules(order=1, priority=80),
    LeaseClass.TRAIN: ClassRules(order=2, priority=50),
}


@dataclass(frozen=True, slots=True)
class Quota:
    """Hold amounts of GPUs, in permille.

    Attributes:
        guaranteed: The project gets so much whenever it asks; lent to others meanwhile.
        limit: No request of the project is granted beyond it; None = no limit. A pool's limit counts the
            pool's jobs, a node's limit all that starts on the node.
        fixed: Besides, so much is kept free for the project's build work and never lent.
    """

    guaranteed: int = 0
    limit: int | None = None
    fixed: int = 0


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class Project:
    """Describe a group of users that shares a quota.

    ``quota`` holds for GPUs of all models; ``models`` gives a model a quota of its own, whose guarantee and
    fixed part take the place of the general ones there. The general limit holds for all models together.
    """

    name: str
    weight: float = 1.0
    users: frozenset[str] = frozenset()
    quota: Quota = NO_QUOTA
    models: Mapping[str, Quota] = field(default_factory=dict, hash=False)

    def pool(self, model: str) -> str:
        """Return the name of the quota that GPUs of this model count to; empty for the general one."""
        return model if model in self.models else ""

    def quota_of(self, pool: str) -> Quota:
        return self.models.get(pool, self.quota)

    @property
    def has_fixed(self) -> bool:
        return any(quota.fixed for _, quota in self.quotas())

    @property
    def has_limit(self) -> bool:
        return any(quota.limit is not None for _, quota in self.quotas())

    @property
    def is_guaranteed_something(self) -> bool:
        return any(quota.fixed or quota.guaranteed for _, quota in self.quotas())

    def quotas(self) -> Iterable[tuple[str, Quota]]:
        """Return every quota with the name of its pool."""
        return (("", self.quota), *self.models.items())


@dataclass(frozen=True, slots=True)
class Policy:
    """Hold the figures of the configuration that decide who goes next; times in seconds.

    Attributes:
        half_life_seconds: Use so long ago counts half.
        lookahead_seconds: A project's present holdings count as if it had held them so much longer.
        patience_seconds: A request that waits longer may be its project's next turn; so often there is one. A
            request for several GPUs that waits longer goes first where it fits at once.
        turn_seconds: A lease has held its GPUs so long before a turn may take them.
        notice_seconds: The time from the notice of a preemption to the signal that ends the container.
        grace_seconds: The time from that signal to its end by force.
        reservations: So many requests may have GPUs kept for them at a time.
        drain_seconds: A request that waits longer, and whose start nobody can foresee, has a host drained for
            it; one request at a time.
        lossless_only: True if only leases that lose nothing give way.
    """

    projects: Mapping[str, Project] = field(default_factory=dict)
    classes: Mapping[LeaseClass, ClassRules] = field(default_factory=lambda: dict(DEFAULT_CLASSES))
    half_life_seconds: float = DAY
    lookahead_seconds: float = 600.0
    patience_seconds: float = 2 * HOUR
    turn_seconds: float = HOUR
    notice_seconds: float = 30.0
    grace_seconds: float = 10.0
    reservations: int = 4
    drain_seconds: float = 7 * DAY
    lossless_only: bool = False

    def project(self, name: str) -> Project:
        """Return a project by name; one that is not configured is a user's own, with nothing guaranteed."""
        return self.projects.get(name) or Project(name)


def without_preemption(policy: Policy) -> Policy:
    """Return the same order without preemption: a node that nobody configured must not stop people's work."""
    never = float("inf")
    classes = {name: replace(rules, min_run_seconds=never) for name, rules in policy.classes.items()}
    return replace(policy, classes=classes, turn_seconds=never)


def with_preemption(policy: Policy, setting: PreemptionSetting) -> Policy:
    """Return the policy in which leases give way as the setting says."""
    match setting:
        case PreemptionSetting.ON:
            return policy
        case PreemptionSetting.AUTO:
            return policy if policy.projects else without_losses(policy)
        case PreemptionSetting.OFF:
            return without_preemption(policy)
    assert_never(setting)


def without_losses(policy: Policy) -> Policy:
    """Return the same order in which only leases that lose nothing give way."""
    return replace(policy, lossless_only=True)


def project_of(user: str, name: str, policy: Policy) -> str:
    """Return the project that a user's request counts to.

    The project is the one that was asked for, else the first one that names the user, else the user's own.

    Raises:
        RequestError: There is no such project.
        PermissionRefused: The user is not in it.
    """
    own_projects = [project.name for project in policy.projects.values() if user in project.users]
    if not name:
        return own_projects[0] if own_projects else user
    if name in own_projects or (name == user and (not own_projects or name not in policy.projects)):
        return name
    hint = f"{user} is in " + (", ".join(own_projects) or f"a project of their own, {user}")
    if name not in policy.projects:
        raise RequestError(f"there is no project {shown(name)}", hint=hint)
    raise PermissionRefused(f"{user} is not in project {name}", hint=hint)


def may_use(policy: Policy, person: str, project: str) -> bool:
    """Return True if the person is in the project, or if it is the person's own."""
    configured = policy.projects.get(project)
    return project == person if configured is None else person in configured.users


def problems(policy: Policy, capacity_permille: Mapping[str, int]) -> tuple[str, ...]:
    """Return the faults of a policy, as sentences; empty if the policy can be kept.

    ``capacity_permille``: the GPUs of each model that there are; empty if that is not known yet.
    """
    sentences = [text for project in policy.projects.values() for text in _project_problems(project)]
    sentences += [f"class {name} has no rules" for name in LeaseClass if name not in policy.classes]
    sentences += _figure_problems(policy)
    if capacity_permille:
        sentences += _promised_too_much(policy, capacity_permille)
    return tuple(sentences)


def _project_problems(project: Project) -> Iterable[str]:
    if not project.weight > 0:
        yield f"project {project.name} has weight {project.weight:g}; it must be above 0"
    for pool, quota in project.quotas():
        where = f"project {project.name}" + (f" on {pool}" if pool else "")
        if min(quota.guaranteed, quota.fixed, quota.limit or 0) < 0:
            yield f"{where} has a quota below 0"
        if quota.limit is not None and quota.guaranteed + quota.fixed > quota.limit:
            promised = gpus(quota.guaranteed + quota.fixed)
            yield f"{where} is guaranteed {promised}, more than its limit of {gpus(quota.limit)}"


def _figure_problems(policy: Policy) -> Iterable[str]:
    for name in ("half_life_seconds", "patience_seconds", "reservations", "drain_seconds"):
        if not getattr(policy, name) > 0:
            yield f"{name} must be above 0"
    for name in ("lookahead_seconds", "turn_seconds", "notice_seconds", "grace_seconds"):
        if getattr(policy, name) < 0:
            yield f"{name} must not be below 0"


def _promised_too_much(policy: Policy, capacity: Mapping[str, int]) -> Iterable[str]:
    """Yield a sentence for each set of guarantees that could not all be kept at the same time."""
    promised = dict.fromkeys(capacity, 0)
    total = 0
    for project in policy.projects.values():
        for pool, quota in project.quotas():
            total += quota.guaranteed + quota.fixed
            if pool:
                promised[pool] = promised.get(pool, 0) + quota.guaranteed + quota.fixed
    for model, amount in promised.items():
        if amount > capacity.get(model, 0):
            available = _there_are(capacity.get(model, 0))
            yield f"the projects are guaranteed {gpus(amount)} of model {model}, but {available}"
    if total > sum(capacity.values()):
        available = _there_are(sum(capacity.values()))
        yield f"the projects are guaranteed {gpus(total)}, but {available}"


def _there_are(permille: int) -> str:
    return f"there {'is' if permille == WHOLE_PERMILLE else 'are'} {gpus(permille)}"


def gpus(permille: int) -> str:
    """Write ``1 GPU``, ``2.5 GPUs``."""
    return f"{permille / WHOLE_PERMILLE:g} GPU" + ("" if permille == WHOLE_PERMILLE else "s")
