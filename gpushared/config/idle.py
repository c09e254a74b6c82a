"""Define the settings of idle leases: for everybody, for quiet times, and for single projects.

A project's tables take the place of the general ones setting by setting: a setting that the project does not
name is the general one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gpushared.config.calendar import is_days, is_hours
from gpushared.config.fields import HOUR_SECONDS, setting
from gpushared.config.kinds import Choice, Seconds, Text, TextList
from gpushared.domain.leases.node_rules import IdleAction
from gpushared.domain.model.request import LeaseClass

IDLE, QUIET = "idle", "quiet"

_IDLE_SECONDS = Seconds(0, 366 * 24 * HOUR_SECONDS)
_IDLE_ACTION_SECONDS = Seconds(1, 366 * 24 * HOUR_SECONDS)
_IDLE_ACTION_OR_EMPTY = Text(
    "`none`, `suspend`, `stop`, or empty for `action`", lambda text: not text or text in set(IdleAction)
)


@dataclass(frozen=True, slots=True)
class IdleConfig:
    """Leases that run and do nothing on their GPUs."""

    warn_seconds: int = setting(
        1800,
        _IDLE_SECONDS,
        "A lease that was idle for so long is told so, with what will follow; 0 is never.",
    )
    lower_seconds: int = setting(
        3600,
        _IDLE_SECONDS,
        "One that was idle for so long is not protected from giving way any more; 0 is never.",
    )
    action: IdleAction = setting(  # noqa: RUF009 - makes a field
        IdleAction.NONE,
        Choice(IdleAction),
        "`suspend` takes it off its GPUs until somebody resumes it, or ends it where that does not work; "
        "`stop` ends it.",
    )
    build: str = setting("", _IDLE_ACTION_OR_EMPTY, "Another action for the class `build`.")
    train: str = setting("", _IDLE_ACTION_OR_EMPTY, "Another action for the class `train`.")
    infer: str = setting("", _IDLE_ACTION_OR_EMPTY, "Another action for the class `infer`.")
    action_seconds: int = setting(
        7200,
        _IDLE_ACTION_SECONDS,
        "The action comes when it was idle for so long, "
        "and at least `queue.preempt_notice_seconds` after it was told.",
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
    action: IdleAction = setting(  # noqa: RUF009 - makes a field
        IdleAction.SUSPEND, Choice(IdleAction), "As in `[idle]`."
    )
    action_seconds: int = setting(1800, _IDLE_ACTION_SECONDS, "As in `[idle]`.")


@dataclass(frozen=True, slots=True)
class IdleQuietConfig(QuietTimesConfig):
    """Nights and weekends, in which other times hold for idle leases; by the clock of the machine."""

    hours: str = setting(
        "", Text("hours like `20:00-07:00`, or empty", is_hours), "Quiet hours of every day; empty is none."
    )
    days: str = setting(
        "", Text("days like `sat,sun`, or empty", is_days), "Days that are quiet from midnight to midnight."
    )


def idle_with(general: IdleConfig, said: Mapping[str, Any]) -> IdleConfig:
    """Put a project's own settings over the general ones.

    The project's action holds for all classes that the project does not name.
    """
    if "action" in said:
        general = replace(general, build="", train="", infer="")
    return replace(general, **said)


def quiet_with(general: QuietTimesConfig, said: Mapping[str, Any]) -> QuietTimesConfig:
    """Put a project's own settings over those of quiet times; the quiet hours are the same for everybody."""
    held = {one.name: getattr(general, one.name) for one in fields(QuietTimesConfig)}
    return QuietTimesConfig(**{**held, **said})
