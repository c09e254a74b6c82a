"""Define the settings of the queue's order: projects, people, quotas, and the rules of each class."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushared.config.idle import IdleConfig, QuietTimesConfig
from gpushared.config.job_settings import is_realm
from gpushared.config.kinds import (
    HOUR_SECONDS,
    Choice,
    GpuAmount,
    Number,
    Seconds,
    Text,
    TextList,
    Whole,
    YesOrNo,
    setting,
)
from gpushared.config.notify import ProjectNotifyConfig
from gpushared.domain.leases.project_settings import MAX_WEIGHT, MIN_WEIGHT, is_user_name
from gpushared.domain.scheduling.projects import ClassRules, GivesWay, PreemptionSetting, Project, Quota

YEAR_SECONDS = 366 * 24 * HOUR_SECONDS
PROJECTS = "projects"
MODELS = "models"

_USERS = TextList(Text("the name of a user", is_user_name))
_ORDER = Whole(0, 100)
_PRIORITY = Whole(0, 500)
_ORDER_TEXT = "The lower goes first inside a project where priorities are equal."
_PRIORITY_TEXT = "`--priority` is added to it; it counts inside a project only."
MODEL_NAME = re.compile(r"[ -~]{1,96}")
"""NVML's names are printable ASCII of at most 96 characters (NVML_DEVICE_NAME_V2_BUFFER_SIZE)."""

USERS = "users"
EVERYBODY = "*"
"""With ``[users."*"]`` each user of these realms is the person of the same name."""


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """A quota of its own for the GPUs of one model, as NVML names it."""

    guaranteed: int = setting(
        0, GpuAmount(), "GPUs of this model that it gets whenever it asks, instead of the general ones."
    )
    limit: int | None = setting(None, GpuAmount(optional=True), "GPUs of this model that it never exceeds.")
    fixed: int = setting(0, GpuAmount(), "GPUs of this model kept free for its `build` work, besides.")

    @property
    def quota(self) -> Quota:
        return Quota(self.guaranteed, self.limit, self.fixed)


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """A group of users that shares a quota."""

    users: tuple[str, ...] = setting(
        (), _USERS, "Whose requests count to it; members of several name one by `--project`."
    )
    weight: float = setting(
        1.0,
        Number(MIN_WEIGHT, MAX_WEIGHT),
        "Its part of what nobody is guaranteed, beside the others'.",
    )
    guaranteed: int = setting(
        0, GpuAmount(), "GPUs that it gets whenever it asks; what it does not use is lent."
    )
    limit: int | None = setting(None, GpuAmount(optional=True), "GPUs that it never exceeds.")
    fixed: int = setting(0, GpuAmount(), "GPUs kept free for its `build` work, besides, and never lent.")
    models: Mapping[str, QuotaConfig] = field(default_factory=dict)
    idle: IdleConfig | None = None
    """The settings of the project's idle leases, completed from ``[idle]``; None: those of ``[idle]``."""
    quiet: QuietTimesConfig | None = None
    """The same in quiet times."""
    notify: ProjectNotifyConfig | None = None
    """Who is told of the project's leases; None: nobody but by the site's settings and the runs' own."""

    def project(self, name: str) -> Project:
        """Return the project as the policy reads it."""
        models = {model: quota.quota for model, quota in self.models.items()}
        quota = Quota(self.guaranteed, self.limit, self.fixed)
        return Project(name, self.weight, frozenset(self.users), quota, models)


@dataclass(frozen=True, slots=True)
class QueueOrderConfig:
    """These settings say in which order requests get GPUs, those of one node and the jobs of a pool."""

    preempt_notice_seconds: int = setting(
        60,
        Seconds(0, HOUR_SECONDS),
        "How long before its stop a program is told that it gives way.",
    )
    preemption: PreemptionSetting = setting(
        PreemptionSetting.AUTO,
        Choice(PreemptionSetting),
        "`on` lets leases give way where projects, classes and fair share say so, `off` never; `auto` is "
        "on where there are projects, here or by `gpushare project set`, and elsewhere takes only from "
        "leases that lose nothing, which no job of a pool does.",
    )
    half_life_seconds: int = setting(
        24 * HOUR_SECONDS,
        Seconds(60, YEAR_SECONDS),
        "Use so long ago counts half for fair share.",
    )
    patience_seconds: int = setting(
        2 * HOUR_SECONDS,
        Seconds(1, YEAR_SECONDS),
        "A request that waits longer may be its project's next turn, whatever its priority; turns come so "
        "often. A request for several GPUs that waits longer goes first where it fits at once. A quarter of it "
        "is the longest wait before leases lose their work for a guarantee or a priority.",
    )
    turn_seconds: int = setting(
        HOUR_SECONDS,
        Seconds(0, YEAR_SECONDS),
        "So long a lease keeps its GPUs before a turn may take them, and so long a turn lasts.",
    )
    reservations: int = setting(4, Whole(1, 1000), "GPUs are kept for at most so many waiting requests.")
    drain_seconds: int = setting(
        7 * 24 * HOUR_SECONDS,
        Seconds(1, YEAR_SECONDS),
        "GPUs are drained for the request that has waited longest, if longer than this, even where no time "
        "limit tells its start.",
    )


@dataclass(frozen=True, slots=True)
class ClassConfig:
    """These settings hold for all leases of a class."""

    order: int = setting(0, _ORDER, _ORDER_TEXT)
    priority: int = setting(100, _PRIORITY, _PRIORITY_TEXT)
    gives_way: GivesWay = setting(
        GivesWay.OVER_QUOTA,
        Choice(GivesWay),
        "`over_quota`: while its project holds more than it is guaranteed; `always`: besides, to every "
        "class that goes before; `never`: not at all, so it gets only what its project is guaranteed.",
    )
    min_run_seconds: int = setting(
        600, Seconds(0, YEAR_SECONDS), "A lease runs at least so long before it gives way."
    )
    time_limit_seconds: int = setting(
        0, Seconds(0, YEAR_SECONDS), "The `--time` of requests without one; 0: no limit."
    )
    long_run_seconds: int = setting(
        HOUR_SECONDS,
        Seconds(0, YEAR_SECONDS),
        "A lease that has held its GPUs for so long sinks below the others of its project, and again at "
        "four times as long; so much work is lost to no priority; 0: never.",
    )

    @property
    def rules(self) -> ClassRules:
        """Return the rules as the policy reads them."""
        return ClassRules(
            order=self.order,
            priority=self.priority,
            gives_way=self.gives_way,
            min_run_seconds=float(self.min_run_seconds),
            time_limit_seconds=self.time_limit_seconds or None,
            long_run_seconds=float(self.long_run_seconds) or None,
        )


@dataclass(frozen=True, slots=True)
class BuildConfig(ClassConfig):
    """Interactive work: somebody sits before it."""


@dataclass(frozen=True, slots=True)
class InferConfig(ClassConfig):
    """Serving."""

    order: int = setting(1, _ORDER, _ORDER_TEXT)
    priority: int = setting(80, _PRIORITY, _PRIORITY_TEXT)


@dataclass(frozen=True, slots=True)
class TrainConfig(ClassConfig):
    """Batch work, and requests that name no class."""

    order: int = setting(2, _ORDER, _ORDER_TEXT)
    priority: int = setting(50, _PRIORITY, _PRIORITY_TEXT)


def is_principal(text: str) -> bool:
    """Return True if the text is ``USER@REALM``, or ``*@REALM``."""
    user, at, realm = text.partition("@")
    return bool(at) and (user == EVERYBODY or is_user_name(user)) and is_realm(realm)


@dataclass(frozen=True, slots=True)
class UserConfig:
    """One person. A principal that no person lists is a person of their own of that name: ``ada@ws3``."""

    principals: tuple[str, ...] = setting(
        (),
        TextList(Text("a principal such as `ada@lab`", is_principal)),
        "The user names of this person, with the realm (a node's name, or one that several nodes share). "
        'In `[users."*"]`: `*@REALM`, whose users are the persons of the same names.',
    )
    admin: bool = setting(
        False, YesOrNo(), "May see and end everybody's jobs, drain nodes, make and revoke tokens."
    )
