"""The figures of the configuration that the rules need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpushared.domain.fleet.policies import PolicyName, Together
from gpushared.domain.gpu import MIB
from gpushared.domain.policy.projects import Policy, Project, without_preemption
from gpushared.domain.request import LeaseClass


class MpsMode(StrEnum):
    """What is wanted of MPS.

    ``auto``: used where its program is installed; then on a real GPU a daemon that does not work refuses new
    shared leases, and on a simulated one they go without walls. ``required``: no shared lease without it.
    ``off``: nothing but the watchdog holds parts of GPUs.
    """

    AUTO = "auto"
    REQUIRED = "required"
    OFF = "off"


class Action(StrEnum):
    """What is done to a container whose lease is over its memory."""

    WARN = "warn"
    STOP = "stop"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class WatchdogPolicy:
    """``tolerance_bytes`` per GPU is no overuse; ``patience_seconds``: how long overuse may last."""

    action: Action = Action.KILL
    tolerance_bytes: int = 256 * MIB
    patience_seconds: float = 0.0


class IdleAction(StrEnum):
    """What is done to a lease that stays idle."""

    NONE = "none"
    SUSPEND = "suspend"
    """It is taken off its GPUs where that works, else ended."""
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """What idle time leads to, each after so many seconds of it; 0 = never."""

    warn_seconds: float = 1800.0
    lower_seconds: float = 3600.0
    action: IdleAction = IdleAction.NONE
    action_seconds: float = 7200.0


@dataclass(frozen=True, slots=True)
class IdleRules:
    """What idle time leads to, by class; ``quiet``: for the classes for which it differs in quiet times."""

    usual: Mapping[LeaseClass, IdlePolicy]
    quiet: Mapping[LeaseClass, IdlePolicy] = field(default_factory=dict)


class Preemption(StrEnum):
    """Whether leases give way to others."""

    AUTO = "auto"
    """Where there are projects: a node that nobody has configured must not stop people's work."""
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Rules:
    """The figures of the configuration that the rules need; times in seconds."""

    claim_seconds: int = 60
    create_seconds: int = 600
    """A create may pull an image; so long a claimed lease is kept for it."""
    start_seconds: int = 60
    stop_grace_seconds: int = 10
    stop_retry_seconds: int = 15
    notice_seconds: int = 300
    """How long before its end a program is told of it."""
    fault_patience_seconds: float = 30.0
    """How long processes may hold on to an MPS server that met a fault."""
    policy: Policy = field(default_factory=Policy)
    """Who goes next, by the configuration alone; what holds is ``policy_with``."""
    preemption: Preemption = Preemption.AUTO
    placement: PolicyName = PolicyName.PACK
    """Which of the GPUs that fit is taken."""
    together: Together = Together.OFF
    """Whose leases are put together, of GPUs that are worth about the same."""
    counts_host: bool = True
    """Whether the host's CPU and memory may run out."""
    preempt_notice_seconds: int = 60
    """How long before it is stopped a program is told that it has to give way."""
    suspend_seconds: int = 60
    """How long moving GPU memory to the host's, or back, may take before it is asked for again."""
    max_queued: int = 1000
    max_queued_per_user: int = 100
    watchdog: Mapping[LeaseClass, WatchdogPolicy] = field(
        default_factory=lambda: dict.fromkeys(LeaseClass, WatchdogPolicy())
    )
    idle: Mapping[LeaseClass, IdlePolicy] = field(
        default_factory=lambda: dict.fromkeys(LeaseClass, IdlePolicy())
    )
    quiet_idle: Mapping[LeaseClass, IdlePolicy] = field(default_factory=dict)
    """What holds instead in quiet times, at night or at weekends."""
    project_idle: Mapping[str, IdleRules] = field(default_factory=dict)
    """What holds instead of both for leases of projects that have their own."""

    def idle_of(self, project: str) -> IdleRules:
        """What idle time leads to for leases of a project."""
        return self.project_idle.get(project) or IdleRules(self.idle, self.quiet_idle)

    def policy_with(self, projects: Mapping[str, Project]) -> Policy:
        """Who goes next, where these projects were set at run time, which wins over the configuration."""
        policy = self.policy
        if projects:
            policy = replace(policy, projects={**policy.projects, **projects})
        if self.preemption is Preemption.ON or (self.preemption is Preemption.AUTO and policy.projects):
            return policy
        return without_preemption(policy)
