"""The rules for idle leases from the configuration, and whether it is a quiet time now."""

from __future__ import annotations

import time

from gpushared.config.calendar import Calendar, read_days, read_hours
from gpushared.config.model import Config, IdleQuietConfig
from gpushared.domain.request import LeaseClass
from gpushared.domain.rules import IdleAction, IdlePolicy


def idle_of(config: Config) -> dict[LeaseClass, IdlePolicy]:
    """What idle time leads to, by class."""
    idle = config.idle
    own = {LeaseClass.BUILD: idle.build, LeaseClass.TRAIN: idle.train, LeaseClass.INFER: idle.infer}
    return {
        lease_class: IdlePolicy(
            idle.warn_seconds, idle.lower_seconds, IdleAction(action or idle.action), idle.action_seconds
        )
        for lease_class, action in own.items()
    }


def quiet_idle_of(config: Config) -> dict[LeaseClass, IdlePolicy]:
    """The same for quiet times, for the classes for which it differs then."""
    quiet = config.idle_quiet
    policy = IdlePolicy(quiet.warn_seconds, quiet.lower_seconds, quiet.action, quiet.action_seconds)
    return {LeaseClass(name): policy for name in quiet.classes}


def is_quiet(quiet: IdleQuietConfig, now: float) -> bool:
    """Whether the configured hours or days hold at ``now`` (epoch seconds), in the machine's time zone.

    By the clock on the wall and not by lengths, so an hour that comes twice, or not at all, is no matter.
    """
    local = time.localtime(now)
    calendar = Calendar(read_hours(quiet.hours), read_days(quiet.days))
    return calendar.covers(local.tm_wday, local.tm_hour * 60 + local.tm_min)
