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
        0, GpuAmount(), "So many GPUs of this model it gets whenever it asks, instead of the general ones."
    )
    limit: int | None = setting(None, GpuAmount(optional=True), "So many of this model it never exceeds.")
    fixed: int = setting(
        0, GpuAmount(), "So many of this model are kept free for its `build` work, besides the guaranteed."
    )

    @property
    def quota(self) -> Quota:
        return Quota(self.guaranteed, self.limit, self.fixed)


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """A group of users that shares a quota."""

    users: tuple[str, ...] = setting(
        (), _USERS, "Whose requests count to it. Who is in several says which: `--project`."
    )
    weight: float = setting(
        1.0,
        Number(MIN_WEIGHT, MAX_WEIGHT),
        "Its part of what is not guaranteed to anybody, beside the others'.",
    )
    guaranteed: int = setting(
        0, GpuAmount(), "So many GPUs it gets whenever it asks; what it does not use is lent to others."
    )
    limit: int | None = setting(None, GpuAmount(optional=True), "So many GPUs it never exceeds.")
    fixed: int = setting(
        0, GpuAmount(), "So many GPUs are kept free for its `build` work, besides, and never lent."
    )
    models: Mapping[str, QuotaConfig] = field(default_factory=dict)
    idle: IdleConfig | None = None
    """The settings of the project's idle leases, completed from ``[idle]``; None: those of ``[idle]``."""
    quiet: QuietTimesConfig | None = None
    """The same in quiet times."""

    def project(self, name: str) -> Project:
        """Return the project as the policy reads it."""
        models = {model: one.quota for model, one in self.models.items()}
        quota = Quota(self.guaranteed, self.limit, self.fixed)
        return Project(name, self.weight, frozenset(self.users), quota, models)


@dataclass(frozen=True, slots=True)
class QueueOrderConfig:
    """These settings say in which order requests get GPUs, those of one node and the jobs of a pool."""

    preempt_notice_seconds: int = setting(
        60,
        Seconds(0, HOUR_SECONDS),
        "How long before it is stopped a program is told that it has to give way to others.",
    )
    preemption: PreemptionSetting = setting(
        PreemptionSetting.AUTO,
        Choice(PreemptionSetting),
        "`on` lets leases give way where projects, classes and fair share say so, `off` never does; "
        "`auto` is on where there are projects, here or set by `gpushare project set`, and elsewhere lets only "
        "those give way that lose nothing, which no job of a pool does.",
    )
    half_life_seconds: int = setting(
        24 * HOUR_SECONDS,
        Seconds(60, YEAR_SECONDS),
        "What a project used so long ago counts half for its fair share.",
    )
    patience_seconds: int = setting(
        2 * HOUR_SECONDS,
        Seconds(1, YEAR_SECONDS),
        "A request that waits longer may be its project's next turn, whatever its priority; so often there "
        "is one.",
    )
    turn_seconds: int = setting(
        HOUR_SECONDS,
        Seconds(0, YEAR_SECONDS),
        "So long a lease has held its GPUs before such a turn may take them, and so long a turn lasts.",
    )
    reservations: int = setting(
        4, Whole(1, 1000), "For so many requests that wait for room GPUs may be kept at a time."
    )
    drain_seconds: int = setting(
        4 * 24 * HOUR_SECONDS,
        Seconds(1, YEAR_SECONDS),
        "The request that has waited longest, if longer than this, has GPUs drained for it though no time "
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
        "`over_quota`: while its project holds more than it is guaranteed; `always`: besides, to every class "
        "that goes before; `never`: not at all, and so it is granted only what its project is guaranteed.",
    )
    min_run_seconds: int = setting(
        600, Seconds(0, YEAR_SECONDS), "A lease runs at least so long before it may have to give way."
    )
    time_limit_seconds: int = setting(
        0, Seconds(0, YEAR_SECONDS), "The `--time` of requests that name none; 0 is no limit."
    )
    long_run_seconds: int = setting(
        HOUR_SECONDS,
        Seconds(0, YEAR_SECONDS),
        "A lease that has held its GPUs for so long sinks below the others of its project, and again at four "
        "times as long; 0 is never.",
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
        "Who on the nodes is this person: user names with the realm (a node's own name, or one that several "
        'nodes share). In `[users."*"]`: `*@REALM`, whose users are the persons of the same names.',
    )
    admin: bool = setting(
        False, YesOrNo(), "May see and end everybody's jobs, drain nodes, and make and revoke tokens."
    )
