"""Quiet times: how they are written, and when they hold by the clock on the wall."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from gpushared.config import load, to_toml
from gpushared.config.idle import Calendar, IdleQuietConfig, read_days, read_hours
from gpushared.domain.leases.node_rules import IdleAction, IdlePolicy, IdleRules
from gpushared.domain.model.errors import ConfigError
from gpushared.domain.model.request import LeaseClass
from gpushared.node.runtime.configured import idle_of, is_quiet, project_idle_of, quiet_idle_of

FRIDAY, SATURDAY, SUNDAY, MONDAY = 4, 5, 6, 0


def at(clock: str) -> int:
    hour, minute = clock.split(":")
    return int(hour) * 60 + int(minute)


@pytest.mark.parametrize(
    ("hours", "days", "weekday", "clock", "quiet"),
    [
        ("20:00-07:00", "", FRIDAY, "19:59", False),
        ("20:00-07:00", "", FRIDAY, "20:00", True),
        ("20:00-07:00", "", FRIDAY, "23:59", True),
        ("20:00-07:00", "", SATURDAY, "00:00", True),
        ("20:00-07:00", "", SATURDAY, "06:59", True),
        ("20:00-07:00", "", SATURDAY, "07:00", False),
        ("12:00-13:30", "", MONDAY, "11:59", False),
        ("12:00-13:30", "", MONDAY, "12:00", True),
        ("12:00-13:30", "", MONDAY, "13:30", False),
        ("00:00-24:00", "", MONDAY, "23:59", True),
        ("", "sat,sun", FRIDAY, "23:59", False),
        ("", "sat,sun", SATURDAY, "00:00", True),
        ("", "sat,sun", SUNDAY, "23:59", True),
        ("", "sat,sun", MONDAY, "00:00", False),
        ("20:00-07:00", "sat, sun", SUNDAY, "12:00", True),
        ("", "", SUNDAY, "03:00", False),
    ],
)
def test_a_time_is_quiet_or_not(hours: str, days: str, weekday: int, clock: str, quiet: bool) -> None:
    assert Calendar(read_hours(hours), read_days(days)).covers(weekday, at(clock)) is quiet


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the machine's time zone."""

    def set_zone(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = IdleQuietConfig(hours="20:00-07:00")


@pytest.mark.parametrize(
    ("moment", "quiet"),
    [
        (datetime(2026, 1, 15, 19, 59, tzinfo=BERLIN), False),
        (datetime(2026, 1, 15, 20, 0, tzinfo=BERLIN), True),
        (datetime(2026, 7, 15, 6, 59, tzinfo=BERLIN), True),
        (datetime(2026, 7, 15, 7, 0, tzinfo=BERLIN), False),
        (datetime(2026, 3, 29, 6, 59, tzinfo=BERLIN), True),  # the night that lacks an hour
        (datetime(2026, 3, 29, 7, 0, tzinfo=BERLIN), False),
        (datetime(2026, 10, 25, 2, 30, fold=0, tzinfo=BERLIN), True),  # the night that has one twice
        (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), True),
        (datetime(2026, 10, 25, 7, 0, tzinfo=BERLIN), False),
    ],
)
def test_it_goes_by_the_clock_on_the_wall_also_when_that_is_changed(
    zone: Callable[[str], None], moment: datetime, quiet: bool
) -> None:
    zone("Europe/Berlin")
    assert is_quiet(NIGHT, moment.timestamp()) is quiet


def test_the_same_moment_is_quiet_in_one_zone_and_not_in_another(zone: Callable[[str], None]) -> None:
    moment = datetime(2026, 1, 15, 20, 0, tzinfo=BERLIN).timestamp()
    zone("Europe/Berlin")
    assert is_quiet(NIGHT, moment)
    zone("UTC")
    assert not is_quiet(NIGHT, moment)


# --- in the configuration ------------------------------------------------------------------------------

FILE = """
[idle]
warn_seconds = "20m"
action = "stop"
build = "suspend"

[idle.quiet]
hours = "20:00-07:00"
days = "sat,sun"
classes = ["build", "infer"]
action_seconds = "15m"
"""


def test_the_sections_become_rules_by_class(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(FILE)
    config = load(file).config
    assert idle_of(config) == {
        LeaseClass.BUILD: IdlePolicy(1200, 3600, IdleAction.SUSPEND, 7200),
        LeaseClass.TRAIN: IdlePolicy(1200, 3600, IdleAction.STOP, 7200),
        LeaseClass.INFER: IdlePolicy(1200, 3600, IdleAction.STOP, 7200),
    }
    quiet = IdlePolicy(600, 900, IdleAction.SUSPEND, 900)
    assert quiet_idle_of(config) == {LeaseClass.BUILD: quiet, LeaseClass.INFER: quiet}


PROJECTS = """
[projects.vision]
users = ["alice"]
[projects.vision.idle]
action = "none"
train = "stop"
action_seconds = "1h"
[projects.sound.idle.quiet]
classes = ["train"]
warn_seconds = "5m"
[projects.plain]
weight = 2
"""
BY_DAY = {
    LeaseClass.BUILD: IdlePolicy(1200, 3600, IdleAction.SUSPEND, 7200),
    LeaseClass.TRAIN: IdlePolicy(1200, 3600, IdleAction.STOP, 7200),
    LeaseClass.INFER: IdlePolicy(1200, 3600, IdleAction.STOP, 7200),
}
OF_VISION = {
    LeaseClass.BUILD: IdlePolicy(1200, 3600, IdleAction.NONE, 3600),
    LeaseClass.TRAIN: IdlePolicy(1200, 3600, IdleAction.STOP, 3600),
    LeaseClass.INFER: IdlePolicy(1200, 3600, IdleAction.NONE, 3600),
}
AT_NIGHT = IdlePolicy(600, 900, IdleAction.SUSPEND, 900)


def test_a_project_s_tables_win_setting_by_setting_and_the_rest_is_as_for_all(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(FILE + PROJECTS)
    config = load(file).config
    night = {LeaseClass.BUILD: AT_NIGHT, LeaseClass.INFER: AT_NIGHT}
    assert project_idle_of(config) == {
        "vision": IdleRules(OF_VISION, night),
        "sound": IdleRules(BY_DAY, {LeaseClass.TRAIN: replace(AT_NIGHT, warn_seconds=300)}),
    }
    assert config.projects["vision"].users == ("alice",)


def test_a_project_has_no_quiet_time_where_none_is_quiet(tmp_path: Path) -> None:
    config = load(
        tmp_path / "none.toml", environ={"GPUSHARED_PROJECTS__VISION__IDLE__QUIET__ACTION": "stop"}
    ).config
    assert config.projects["vision"].quiet is not None
    assert project_idle_of(config)["vision"].quiet == {}


def test_the_tables_of_projects_are_shown_as_they_were_written(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(FILE + PROJECTS)
    shown = to_toml(load(first), origins=True)
    second.write_text(shown)
    assert load(second).config == load(first).config
    assert "[projects.sound.idle.quiet]\nclasses" in shown
    assert "[projects.sound.idle]" not in shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[projects.ml.idle]\naktion = "stop"', "projects.ml.idle.aktion is not a setting (did you mean"),
        ('[projects.ml.idle]\naction = "halt"', "projects.ml.idle.action must be one of none, suspend, stop"),
        ("[projects.ml.idle]\nwarn_seconds = -1", "projects.ml.idle.warn_seconds must be 0 to"),
        ('[projects.ml.idle.quiet]\nhours = "20:00-07:00"', "projects.ml.idle.quiet.hours is not a setting"),
        ('[projects.ml.idle.quiet]\nclasses = ["play"]', "projects.ml.idle.quiet.classes must be"),
        ('[projects.ml]\nidle = "stop"', "projects.ml.idle is not a project with settings"),
        ('[projects.ml.idle]\nquiet = "stop"', "projects.ml.idle.quiet is not a project with settings"),
    ],
)
def test_what_is_wrong_in_a_project_s_tables_is_told(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        load(file)
    assert says in f"{refusal.value.message} ({refusal.value.hint})"


def test_by_default_nothing_is_done_and_no_time_is_quiet(tmp_path: Path) -> None:
    config = load(tmp_path / "none.toml").config
    assert {policy.action for policy in idle_of(config).values()} == {IdleAction.NONE}
    assert not is_quiet(config.idle_quiet, 0.0)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('hours = "20-7"', "idle.quiet.hours must be hours like `20:00-07:00`"),
        ('hours = "20:00-20:00"', "idle.quiet.hours"),
        ('hours = "24:00-07:00"', "idle.quiet.hours"),
        ('hours = "20:00-24:01"', "idle.quiet.hours"),
        ('hours = "20:60-07:00"', "idle.quiet.hours"),
        ('days = "saturday"', "idle.quiet.days must be days like `sat,sun`"),
        ('days = "sat,,sun"', "idle.quiet.days"),
        ('classes = ["night"]', "idle.quiet.classes must be `build`, `train` or `infer`"),
        ("action_seconds = 0", "idle.quiet.action_seconds must be 1 to"),
        ('hour = "20:00-07:00"', "did you mean idle.quiet.hours"),
        ("[idle.quiet.more]\nx = 1", "idle.quiet.more is not a setting"),
        ("[idle.quite]\nx = 1", "idle.quite is not a setting"),
    ],
)
def test_what_is_wrong_is_told_with_its_path(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[idle.quiet]\n{line}\n")
    with pytest.raises(ConfigError) as wrong:
        load(file)
    assert says in f"{wrong.value.message} {wrong.value.hint}"


def test_a_value_where_a_section_belongs_says_so(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[idle]\nquiet = true\n")
    with pytest.raises(ConfigError, match=r"idle\.quiet is a section, not a value"):
        load(file)


def test_the_environment_reaches_into_the_section(tmp_path: Path) -> None:
    environ = {"GPUSHARED_IDLE__QUIET__HOURS": "22:00-06:00", "GPUSHARED_IDLE__ACTION": "stop"}
    loaded = load(tmp_path / "none.toml", environ=environ)
    assert loaded.config.idle_quiet.hours == "22:00-06:00"
    assert loaded.origin("idle.quiet.hours") == "environment GPUSHARED_IDLE__QUIET__HOURS"
