"""Projects, classes and the figures of the queue: how they are written, and what the node makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.config import Config, load, to_toml
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.model.errors import ConfigError
from gpushared.domain.model.request import LeaseClass
from gpushared.domain.scheduling.projects import (
    DEFAULT_CLASSES,
    GivesWay,
    Policy,
    PreemptionSetting,
    Project,
    Quota,
)
from gpushared.node.runtime.configured import rules_of

FULL = """
[projects.vision]
users = ["alice", "bob"]
weight = 2
guaranteed = 1.5
limit = "4"
fixed = "0.25"
[projects.vision.models."NVIDIA H100 80GB HBM3"]
guaranteed = 1
limit = 2
fixed = 0.5
[projects.Audio_2]
limit = "none"
[projects.cam.models.L4]
fixed = 1
[classes.infer]
gives_way = "never"
[classes.train]
priority = 20
gives_way = "always"
min_run_seconds = "5m"
time_limit_seconds = "8h"
long_run_seconds = 7200
[queue]
preemption = "on"
half_life_seconds = "12h"
patience_seconds = "1h"
turn_seconds = 0
reservations = 2
preempt_notice_seconds = 20
[engine]
stop_grace_seconds = 5
"""


def loaded(folder: Path, text: str) -> Config:
    path = folder / "config.toml"
    path.write_text(text)
    return load(path).config


def rules(folder: Path, text: str) -> Rules:
    return rules_of(loaded(folder, text))


def test_without_projects_nothing_is_guaranteed_and_nobody_loses_work() -> None:
    """The defaults of the configuration are those of the policy."""
    made = rules_of(Config())
    expected = Policy(notice_seconds=60.0)
    assert made.policy == expected
    assert made.preemption is PreemptionSetting.AUTO
    assert made.policy_with({}) == replace(expected, lossless_only=True)


def test_projects_are_read_with_their_quotas(tmp_path: Path) -> None:
    assert rules(tmp_path, FULL).policy.projects == {
        "vision": Project(
            "vision",
            2.0,
            frozenset({"alice", "bob"}),
            Quota(1500, 4000, 250),
            {"NVIDIA H100 80GB HBM3": Quota(1000, 2000, 500)},
        ),
        "Audio_2": Project("Audio_2"),
        "cam": Project("cam", models={"L4": Quota(fixed=1000)}),
    }


def test_projects_stand_in_the_order_of_the_file(tmp_path: Path) -> None:
    """Because who is in several counts to the first."""
    assert list(rules(tmp_path, FULL).policy.projects) == ["vision", "Audio_2", "cam"]


def test_classes_and_figures_reach_the_policy(tmp_path: Path) -> None:
    made = rules(tmp_path, FULL)
    train = made.policy.classes[LeaseClass.TRAIN]
    assert (train.order, train.priority, train.gives_way) == (2, 20, GivesWay.ALWAYS)
    assert (train.min_run_seconds, train.time_limit_seconds, train.long_run_seconds) == (300, 28800, 7200)
    assert made.policy.classes[LeaseClass.INFER].gives_way is GivesWay.NEVER
    assert made.policy.classes[LeaseClass.BUILD] == DEFAULT_CLASSES[LeaseClass.BUILD]
    assert made.preemption is PreemptionSetting.ON
    assert (made.policy.half_life_seconds, made.policy.patience_seconds) == (43200.0, 3600.0)
    assert (made.policy.turn_seconds, made.policy.reservations) == (0.0, 2)
    assert (made.policy.notice_seconds, made.policy.grace_seconds) == (20.0, 5.0)


def test_what_is_shown_reads_back_as_the_same(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(FULL)
    second.write_text(to_toml(load(first), origins=True))
    assert load(second).config == load(first).config
    assert '[projects.vision.models."NVIDIA H100 80GB HBM3"]' in second.read_text()


def test_the_environment_sets_projects_too(tmp_path: Path) -> None:
    environ = {"GPUSHARED_PROJECTS__ML__GUARANTEED": "1.5", "GPUSHARED_PROJECTS__ML__USERS": "alice, bob"}
    config = load(tmp_path / "none.toml", environ=environ).config
    assert config.projects["ml"].project("ml") == Project(
        "ml", users=frozenset({"alice", "bob"}), quota=Quota(1500)
    )


WRONG = (
    ("[projects.ml]\nguaranteed = 3\nlimit = 2", "project ml is guaranteed 3 GPUs, more than its limit of 2"),
    ("[projects.ml.models.L4]\nfixed = 3\nlimit = 2", "project ml on L4 is guaranteed 3 GPUs, more than"),
    ("[projects.ml]\nguaranteed = -1", "projects.ml.guaranteed must be GPUs like"),
    ('[projects.ml]\nguaranteed = "many"', "'many' is not an amount of GPUs"),
    ('[projects.ml]\nguaranteed = "none"', "'none' is not an amount of GPUs"),
    ("[projects.ml]\nlimit = nan", "'nan' is not an amount of GPUs"),
    ("[projects.ml]\nlimit = true", "projects.ml.limit must be GPUs like"),
    ("[projects.ml]\nweight = 0", "projects.ml.weight must be 0.001 to 1000"),
    ('[projects.ml]\nusers = ["alice smith"]', "must be the name of a user, not 'alice smith'"),
    ("[projects.ml]\nguarantee = 1", "projects.ml.guarantee is not a setting (did you mean"),
    ("[projects.ml.models.L4]\nfix = 1", "projects.ml.models.L4.fix is not a setting (did you mean"),
    ('[projects."a/b"]\nlimit = 1', "'a/b' cannot be a project's name"),
    ("[projects]\nml = 1", "projects.ml is not a project with settings"),
    ("[projects.ml]\nmodels = 3", "projects.ml.models is not a project with settings"),
    ("[projects.ml.models]\nL4 = 3", "projects.ml.models.L4 is not a project with settings"),
    ("[classes.play]\npriority = 1", "classes.play is not a setting"),
    ('[classes.train]\ngives_way = "sometimes"', "must be one of never, over_quota, always"),
    ("[classes.train]\npriority = 501", "classes.train.priority must be 0 to 500"),
    ('[queue]\npreemption = "maybe"', "queue.preemption must be one of auto, on, off"),
    ("[queue]\nhalf_life_seconds = 0", "queue.half_life_seconds must be 60 to"),
)


@pytest.mark.parametrize(("text", "sentence"), WRONG)
def test_what_is_wrong_is_said_as_a_sentence_with_its_file(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        load(path)
    assert refusal.value.message.startswith(f"{path}: ")
    assert sentence in f"{refusal.value.message} ({refusal.value.hint})"


def test_a_preset_may_name_project_and_priority_and_is_checked(tmp_path: Path) -> None:
    preset = loaded(tmp_path, '[presets.p]\ngpu = "0.5"\nproject = "vision"\npriority = "10"\n').presets["p"]
    assert (preset.spec.project, preset.spec.priority) == ("vision", "10")
    with pytest.raises(ConfigError, match="is not a priority"):
        loaded(tmp_path, '[presets.p]\ngpu = "0.5"\npriority = "high"\n')
