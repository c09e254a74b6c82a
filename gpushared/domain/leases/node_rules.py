"""Hold the figures of the configuration that the rules need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.request import LeaseClass
from gpushared.domain.scheduling.placement.policies import PolicyName, Together
from gpushared.domain.scheduling.projects import Policy, PreemptionSetting, Project, with_preemption


class MpsMode(StrEnum):
    """Say how far MPS is wanted.

    ``auto``: MPS is used if its program is installed. Then on a real GPU a daemon that does not work refuses
    new shared leases, and on a simulated one they go without walls. ``required``: no shared lease starts
    without MPS. ``off``: nothing but the watchdog holds parts of GPUs.
    """

    AUTO = "auto"
    REQUIRED = "required"
    OFF = "off"


class Action(StrEnum):
    """Name the action on a container whose lease is over its memory."""

    WARN = "warn"
    STOP = "stop"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class WatchdogPolicy:
    """Bound overuse: ``tolerance_bytes`` per GPU are allowed, and overuse may last ``patience_seconds``."""

    action: Action = Action.KILL
    tolerance_bytes: int = 256 * MIB
    patience_seconds: float = 0.0


class IdleAction(StrEnum):
    """Name the action on a lease that stays idle."""

    NONE = "none"
    SUSPEND = "suspend"
    """The lease is taken off its GPUs if that works, else ended."""
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """Set the consequences of idle time, each after this many seconds; 0 means never."""

    warn_seconds: float = 1800.0
    lower_seconds: float = 3600.0
    action: IdleAction = IdleAction.NONE
    action_seconds: float = 7200.0


@dataclass(frozen=True, slots=True)
class IdleRules:
    """Set the consequences of idle time by class.

    ``quiet`` holds the classes with other rules in quiet times.
    """

    usual: Mapping[LeaseClass, IdlePolicy]
    quiet: Mapping[LeaseClass, IdlePolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rules:
    """Hold the figures of the configuration that the rules need; times are in seconds."""

    claim_seconds: int = 60
    create_seconds: int = 600
    """A create may pull an image; a claimed lease is kept for the create this long."""
    start_seconds: int = 60
    stop_grace_seconds: int = 10
    stop_retry_seconds: int = 15
    notice_seconds: int = 300
    """A program is notified of its end this long before."""
    fault_patience_seconds: float = 30.0
    """Processes may hold on this long to an MPS server that met a fault."""
    policy: Policy = field(default_factory=Policy)
    """The policy by the configuration alone; ``policy_with`` returns the policy that holds."""
    preemption: PreemptionSetting = PreemptionSetting.AUTO
    placement: PolicyName = PolicyName.PACK
    """The rule that chooses one of the GPUs that fit."""
    together: Together = Together.OFF
    """The leases that are put together, among GPUs that are worth about the same."""
    counts_host: bool = True
    """True if the host's CPU and memory may run out."""
    preempt_notice_seconds: int = 60
    """A program that has to give way is notified this long before it is stopped."""
    suspend_seconds: int = 60
    """A move of GPU memory to the host's, or back, may take this long before the daemon asks for it again."""
    max_queued: int = 1000
    max_queued_per_user: int = 100
    notify_allowed: tuple[str, ...] = ()
    """Requests may name these targets of notifications: ``mail``, and URLs that begin like these."""
    watchdog: Mapping[LeaseClass, WatchdogPolicy] = field(
        default_factory=lambda: dict.fromkeys(LeaseClass, WatchdogPolicy())
    )
    idle: Mapping[LeaseClass, IdlePolicy] = field(
        default_factory=lambda: dict.fromkeys(LeaseClass, IdlePolicy())
    )
    quiet_idle: Mapping[LeaseClass, IdlePolicy] = field(default_factory=dict)
    """These rules hold instead in quiet times, at night or at weekends."""
    project_idle: Mapping[str, IdleRules] = field(default_factory=dict)
    """These rules hold instead of both for leases of projects that have their own."""

    def idle_of(self, project: str) -> IdleRules:
        """Return the idle rules for leases of a project."""
        return self.project_idle.get(project) or IdleRules(self.idle, self.quiet_idle)

    def policy_with(self, projects: Mapping[str, Project]) -> Policy:
        """Return the policy with the projects set at run time, which win over the configuration."""
        policy = self.policy
        if projects:
            policy = replace(policy, projects={**policy.projects, **projects})
        return with_preemption(policy, self.preemption)
