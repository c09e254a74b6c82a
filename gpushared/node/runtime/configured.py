"""Build the state and the figures for the start of core and gate from configuration, machine and journal."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

import psutil

from gpushared.config.idle import (
    Calendar,
    IdleConfig,
    IdleQuietConfig,
    QuietTimesConfig,
    read_days,
    read_hours,
)
from gpushared.config.model import Config, HostMode
from gpushared.config.queue_policy import queue_policy_of
from gpushared.daemon.clocks import boot_id
from gpushared.domain.leases.node_machine import restore
from gpushared.domain.leases.node_rules import (
    Action,
    IdleAction,
    IdlePolicy,
    IdleRules,
    Rules,
    WatchdogPolicy,
)
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.host import HostSize
from gpushared.domain.model.lease import Lease
from gpushared.domain.model.request import LeaseClass
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.policy import site_presets
from gpushared.net.limits import UserLimits
from gpushared.notify.targets import Routes, routes_of
from gpushared.ports import Clock, JournalSnapshot

FIRST_SEQUENCES = 2**19
"""Half of the ids of four characters (see ``lease_id``)."""


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
        notify_allowed=notify_routes(config).allowed,
        fault_patience_seconds=config.sharing.fault_patience_seconds,
        policy=queue_policy_of(config, stop_grace_seconds=config.engine.stop_grace_seconds),
        preemption=config.queue.preemption,
        placement=config.placement.policy,
        together=config.placement.together,
        counts_host=config.placement.host is HostMode.AUTO,
    )


def notify_routes(config: Config) -> Routes:
    """Return the configured receivers of notifications."""
    return routes_of(config.notify, {name: project.notify for name, project in config.projects.items()})


def watchdog_of(config: Config) -> dict[LeaseClass, WatchdogPolicy]:
    """Return the watchdog's policy for each class."""
    actions = {
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
        for lease_class, action in actions.items()
    }


def limits_of(config: Config) -> UserLimits:
    """Return the limits on one user's connections, requests and creates at one time."""
    gate = config.gate
    return UserLimits(
        connections=gate.connections_per_user,
        requests=gate.requests_per_user,
        creates=gate.creates_per_user,
    )


def policy_of(config: Config) -> SitePolicy:
    """Return the gate's rules for confined callers."""
    return site_presets.policy_of(config.gate, host_size(), config.presets)


def host_size() -> HostSize:
    """Return the machine's CPU threads and main memory; CPU is None if the kernel does not report it."""
    cpus = psutil.cpu_count()
    return HostSize(None if cpus is None else 1000 * cpus, psutil.virtual_memory().total)


def idle_of(config: Config) -> dict[LeaseClass, IdlePolicy]:
    """Return the idle policy of each class."""
    return _by_class(config.idle)


def quiet_idle_of(config: Config) -> dict[LeaseClass, IdlePolicy]:
    """Return the idle policy in quiet times of the classes for which it differs then."""
    return _when_quiet(config.idle_quiet, config)


def project_idle_of(config: Config) -> dict[str, IdleRules]:
    """Return both policies for the projects that have rules of their own."""
    return {
        name: IdleRules(
            _by_class(project.idle or config.idle), _when_quiet(project.quiet or config.idle_quiet, config)
        )
        for name, project in config.projects.items()
        if project.idle is not None or project.quiet is not None
    }


def _by_class(idle: IdleConfig) -> dict[LeaseClass, IdlePolicy]:
    actions = {LeaseClass.BUILD: idle.build, LeaseClass.TRAIN: idle.train, LeaseClass.INFER: idle.infer}
    return {
        lease_class: IdlePolicy(
            idle.warn_seconds, idle.lower_seconds, IdleAction(action or idle.action), idle.action_seconds
        )
        for lease_class, action in actions.items()
    }


def _when_quiet(quiet: QuietTimesConfig, config: Config) -> dict[LeaseClass, IdlePolicy]:
    """Return the policy in quiet times, empty if no time is quiet."""
    if not (config.idle_quiet.hours or config.idle_quiet.days):
        return {}
    policy = IdlePolicy(quiet.warn_seconds, quiet.lower_seconds, quiet.action, quiet.action_seconds)
    return {LeaseClass(name): policy for name in quiet.classes}


def is_quiet(quiet: IdleQuietConfig, now: float) -> bool:
    """Return True if the configured hours or days cover ``now`` (epoch seconds) in the machine's time zone.

    The local time of day counts and not the length of the day, so an hour that comes twice, or not at all,
    makes no difference.
    """
    local = time.localtime(now)
    calendar = Calendar(read_hours(quiet.hours), read_days(quiet.days))
    return calendar.covers(local.tm_wday, local.tm_hour * 60 + local.tm_min)


def restored_state(
    config: Config,
    clock: Clock,
    snapshot: JournalSnapshot,
    ended: Sequence[Lease],
) -> NodeState:
    """Return the state from the journal. ``ended``: leases that are over, the newest first."""
    now, ahead = clock.now(), clock.ahead()
    state = NodeState(
        rules=rules_of(config),
        quiet=is_quiet(config.idle_quiet, now + ahead),
        ahead_seconds=ahead,
        host=host_size(),
        boot_id=boot_id(),
    )
    return restore(
        state,
        snapshot.leases,
        first_sequence(snapshot),
        reversed(ended),
        snapshot.drained,
        snapshot.accounts,
        snapshot.attempts,
        snapshot.contacts,
    )


def first_sequence(snapshot: JournalSnapshot) -> int:
    """Return the next lease's number; a new journal begins at a random number.

    Containers bear the names of leases. The names from another journal, lost or on the same engine, must not
    equal ours.
    """
    new = snapshot.next_sequence == 1 and not snapshot.leases
    return 1 + secrets.randbelow(FIRST_SEQUENCES) if new else snapshot.next_sequence
