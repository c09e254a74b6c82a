"""Read the rules for idle leases and the quiet times from the configuration."""

from __future__ import annotations

import time

from gpushared.config.calendar import Calendar, read_days, read_hours
from gpushared.config.idle import IdleConfig, IdleQuietConfig, QuietTimesConfig
from gpushared.config.model import Config
from gpushared.domain.leases.node_rules import IdleAction, IdlePolicy, IdleRules
from gpushared.domain.model.request import LeaseClass


def idle_of(config: Config) -> dict[LeaseClass, IdlePolicy]:
    """Return the idle policy of each class."""
    return _by_class(config.idle)


def quiet_idle_of(config: Config) -> dict[LeaseClass, IdlePolicy]:
    """Return the idle policy in quiet times of the classes for which it differs then."""
    return _when_quiet(config.idle_quiet, config)


def project_idle_of(config: Config) -> dict[str, IdleRules]:
    """Both for the projects that have rules of their own."""
    return {
        name: IdleRules(
            _by_class(one.idle or config.idle), _when_quiet(one.quiet or config.idle_quiet, config)
        )
        for name, one in config.projects.items()
        if one.idle is not None or one.quiet is not None
    }


def _by_class(idle: IdleConfig) -> dict[LeaseClass, IdlePolicy]:
    own = {LeaseClass.BUILD: idle.build, LeaseClass.TRAIN: idle.train, LeaseClass.INFER: idle.infer}
    return {
        lease_class: IdlePolicy(
            idle.warn_seconds, idle.lower_seconds, IdleAction(action or idle.action), idle.action_seconds
        )
        for lease_class, action in own.items()
    }


def _when_quiet(quiet: QuietTimesConfig, config: Config) -> dict[LeaseClass, IdlePolicy]:
    """Nothing where no time is quiet."""
    if not (config.idle_quiet.hours or config.idle_quiet.days):
        return {}
    policy = IdlePolicy(quiet.warn_seconds, quiet.lower_seconds, quiet.action, quiet.action_seconds)
    return {LeaseClass(name): policy for name in quiet.classes}


def is_quiet(quiet: IdleQuietConfig, now: float) -> bool:
    """Return True if the configured hours or days cover ``now`` (epoch seconds) in the machine's time zone.

    The clock on the wall counts and not the length of the day, so an hour that comes twice, or not at all,
    makes no difference.
    """
    local = time.localtime(now)
    calendar = Calendar(read_hours(quiet.hours), read_days(quiet.days))
    return calendar.covers(local.tm_wday, local.tm_hour * 60 + local.tm_min)
