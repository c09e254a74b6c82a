"""Turn the configuration into the figures that the core and the gate need."""

from __future__ import annotations

from gpushared.config.model import Config, HostMode
from gpushared.config.queue_policy import queue_policy_of
from gpushared.domain.leases.node_rules import Action, Rules, WatchdogPolicy
from gpushared.domain.model.request import LeaseClass
from gpushared.gate.limits import UserLimits
from gpushared.gate.policy import presets
from gpushared.gate.policy.site import Policy
from gpushared.node.host import host_size
from gpushared.node.idle_rules import idle_of, project_idle_of, quiet_idle_of


def rules_of(config: Config) -> Rules:
    """Return the figures for the core."""
    return Rules(
        claim_seconds=config.queue.claim_seconds,
        notice_seconds=config.queue.notice_seconds,
        preempt_notice_seconds=config.queue.preempt_notice_seconds,
        stop_grace_seconds=config.engine.stop_grace_seconds,
        max_queued=config.queue.max_queued,
        max_queued_per_user=config.queue.max_queued_per_user,
        watchdog=watchdog_of(config),
        idle=idle_of(config),
        quiet_idle=quiet_idle_of(config),
        project_idle=project_idle_of(config),
        fault_patience_seconds=config.sharing.fault_patience_seconds,
        policy=queue_policy_of(config, stop_grace_seconds=config.engine.stop_grace_seconds),
        preemption=config.queue.preemption,
        placement=config.placement.policy,
        together=config.placement.together,
        counts_host=config.placement.host is HostMode.AUTO,
    )


def watchdog_of(config: Config) -> dict[LeaseClass, WatchdogPolicy]:
    """Return the watchdog's policy for each class."""
    own = {
        LeaseClass.BUILD: config.watchdog.build,
        LeaseClass.TRAIN: config.watchdog.train,
        LeaseClass.INFER: config.watchdog.infer,
    }
    return {
        lease_class: WatchdogPolicy(
            Action(action or config.watchdog.action),
            config.watchdog.tolerance_bytes,
            config.watchdog.patience_seconds,
        )
        for lease_class, action in own.items()
    }


def limits_of(config: Config) -> UserLimits:
    """Return the limits on one user's connections, requests and creates at one time."""
    gate = config.gate
    return UserLimits(
        connections=gate.connections_per_user,
        requests=gate.requests_per_user,
        creates=gate.creates_per_user,
    )


def policy_of(config: Config) -> Policy:
    """Return the gate's rules for confined callers."""
    return presets.policy_of(config.gate, host_size(), config.presets)
