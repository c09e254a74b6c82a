"""Define the settings of idle leases, and read the times of the week in them.

A project's tables take the place of the general ones setting by setting: a setting that the project does not
name is the general one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gpushared.config.kinds import HOUR_SECONDS, Choice, Seconds, Text, TextList, setting
from gpushared.domain.leases.node_rules import IdleAction
from gpushared.domain.model.request import LeaseClass

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTES_OF_A_DAY = 24 * 60
_HOURS = re.compile(r"([0-9]{2}):([0-5][0-9])-([0-9]{2}):([0-5][0-9])")
IDLE, QUIET = "idle", "quiet"

_IDLE_SECONDS = Seconds(0, 366 * 24 * HOUR_SECONDS)
_IDLE_ACTION_SECONDS = Seconds(1, 366 * 24 * HOUR_SECONDS)
_IDLE_ACTION_OR_EMPTY = Text(
    "`none`, `suspend`, `stop`, or empty for `action`", lambda text: not text or text in set(IdleAction)
)


@dataclass(frozen=True, slots=True)
class Calendar:
    """Hold hours of every day, from a minute of the day until before another, and whole days (Monday is 0).

    Hours that end before they begin go on over midnight.
    """

    hours: tuple[int, int] | None = None
    days: frozenset[int] = frozenset()

    def covers(self, weekday: int, minute: int) -> bool:
        """Return True if the calendar covers this minute of this day, by the clock on the wall."""
        if weekday in self.days:
            return True
        if self.hours is None:
            return False
        begin, end = self.hours
        return begin <= minute < end if begin < end else not end <= minute < begin


def read_hours(text: str) -> tuple[int, int] | None:
    """Read ``20:00-07:00`` as minutes of the day; None for an empty text. Raises ValueError."""
    if not text:
        return None
    match = _HOURS.fullmatch(text)
    if match is None:
        raise ValueError(text)
    begin = int(match[1]) * 60 + int(match[2])
    end = int(match[3]) * 60 + int(match[4])
    if begin >= MINUTES_OF_A_DAY or end > MINUTES_OF_A_DAY or begin == end:
        raise ValueError(text)
    return begin, end


def read_days(text: str) -> frozenset[int]:
    """Read ``sat,sun`` as numbers of days. Raises ValueError."""
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    return frozenset(DAYS.index(name) for name in names)


def is_hours(text: str) -> bool:
    return _reads(read_hours, text)


def is_days(text: str) -> bool:
    return _reads(read_days, text)


def _reads(reader: Callable[[str], object], text: str) -> bool:
    try:
        reader(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class IdleConfig:
    """Leases that run and do nothing on their GPUs."""

    warn_seconds: int = setting(
        1800,
        _IDLE_SECONDS,
        "A lease that is idle for so long is told so, with what will follow; 0: never.",
    )
    lower_seconds: int = setting(
        3600,
        _IDLE_SECONDS,
        "One that is idle for so long is the first to give way; 0: never.",
    )
    action: IdleAction = setting(
        IdleAction.NONE,
        Choice(IdleAction),
        "`suspend` takes it off its GPUs until somebody resumes it, or else ends it; `stop` ends it.",
    )
    build: str = setting("", _IDLE_ACTION_OR_EMPTY, "Another action for the class `build`.")
    train: str = setting("", _IDLE_ACTION_OR_EMPTY, "Another action for the class `train`.")
    infer: str = setting("", _IDLE_ACTION_OR_EMPTY, "Another action for the class `infer`.")
    action_seconds: int = setting(
        7200,
        _IDLE_ACTION_SECONDS,
        "The idle time before the action, which comes at least `queue.preempt_notice_seconds` after the lease "
        "was told.",
    )


@dataclass(frozen=True, slots=True)
class QuietTimesConfig:
    """These settings hold for idle leases in quiet times."""

    classes: tuple[str, ...] = setting(
        (LeaseClass.BUILD.value,),
        TextList(Text("`build`, `train` or `infer`", lambda text: text in set(LeaseClass))),
        "For which classes these times hold instead of those of `[idle]`.",
    )
    warn_seconds: int = setting(600, _IDLE_SECONDS, "As in `[idle]`.")
    lower_seconds: int = setting(900, _IDLE_SECONDS, "As in `[idle]`.")
    action: IdleAction = setting(IdleAction.SUSPEND, Choice(IdleAction), "As in `[idle]`.")
    action_seconds: int = setting(1800, _IDLE_ACTION_SECONDS, "As in `[idle]`.")


@dataclass(frozen=True, slots=True)
class IdleQuietConfig(QuietTimesConfig):
    """Nights and weekends, in which other times hold for idle leases; by the clock of the machine."""

    hours: str = setting(
        "", Text("hours like `20:00-07:00`, or empty", is_hours), "Quiet hours of every day."
    )
    days: str = setting("", Text("days like `sat,sun`, or empty", is_days), "Days that are quiet as a whole.")


def idle_with(general: IdleConfig, settings: Mapping[str, Any]) -> IdleConfig:
    """Put a project's own settings over the general ones.

    The project's action holds for all classes that the project does not name.
    """
    if "action" in settings:
        general = replace(general, build="", train="", infer="")
    return replace(general, **settings)


def quiet_with(general: QuietTimesConfig, settings: Mapping[str, Any]) -> QuietTimesConfig:
    """Put a project's own settings over those of quiet times; the quiet hours are the same for everybody."""
    general_settings = {field.name: getattr(general, field.name) for field in fields(QuietTimesConfig)}
    return QuietTimesConfig(**{**general_settings, **settings})
