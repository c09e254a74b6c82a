"""Settings of notifications: how they are written, what is refused, and who is told because of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushared.config import Config, load, to_toml
from gpushared.config.notify import ProjectNotifyConfig
from gpushared.config.pool_settings import load_pool
from gpushared.domain.model.errors import ConfigError
from gpushared.node.runtime.configured import notify_routes, rules_of

FULL = """
[notify]
webhooks = ["https://hooks.example.org/gpus"]
mail = ["gpu-admins@lab.example", "root"]
keep = "2h"
ends_soon = 0
allow = []
command = ["/usr/local/bin/tell", "--short"]
[projects.vision.notify]
webhooks = ["http://127.0.0.1:8000/"]
events = ["ended", "idle"]
digest = true
"""


def loaded(folder: Path, text: str) -> Config:
    path = folder / "config.toml"
    path.write_text(text)
    return load(path).config


def test_receivers_of_the_site_and_of_a_project_are_read_and_shown_again(tmp_path: Path) -> None:
    config = loaded(tmp_path, FULL)
    assert config.notify.keep_seconds == 7200
    vision = config.projects["vision"].notify
    assert vision == ProjectNotifyConfig(("http://127.0.0.1:8000/",), events=("ended", "idle"), digest=True)
    assert notify_routes(config).configured == {
        "site webhook https://hooks.example.org/gpus",
        "site mail gpu-admins@lab.example",
        "site mail root",
        "site command",
        "project:vision webhook http://127.0.0.1:8000/",
    }
    assert notify_routes(config).digests == ("vision",)
    (tmp_path / "config.toml").write_text(FULL)
    again = to_toml(load(tmp_path / "config.toml"))
    assert loaded(tmp_path, again) == config


def test_users_may_name_mail_only_where_a_program_takes_it(tmp_path: Path) -> None:
    program = tmp_path / "sendmail"
    text = f'[notify]\nallow = ["mail", "https://a.example/"]\nsendmail = "{program}"\n'
    assert rules_of(loaded(tmp_path, text)).notify_allowed == ("https://a.example/",)
    program.touch(mode=0o755)
    assert rules_of(loaded(tmp_path, text)).notify_allowed == ("mail", "https://a.example/")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('webhooks = ["hooks.example.org"]', "must be a URL"),
        ('webhooks = ["https://user:word@a.example/"]', "must be a URL"),
        ('events = ["started"]', "must be an event"),
        ('mail = ["-oQ/tmp"]', "must be a mail address"),
        ('allow = ["sms"]', "must be `mail`, or the beginning of a URL"),
        ('secret_file = "key"', "must be an absolute path"),
        ('command = ["tell"]', "'tell' is not an absolute path"),
        ('keep = "8d"', "must be 60 to 604800"),
    ],
)
def test_what_could_not_work_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, f"[notify]\n{text}\n")


def test_a_word_that_is_no_event_is_answered_with_the_events(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, '[notify]\nevents = ["started"]\n')
    assert raised.value.hint.startswith("events: granted, ")
    assert "gpu-unhealthy" in raised.value.hint


def test_a_pool_runs_no_command(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_text('[notify]\nwebhooks = ["https://a.example/"]\n')
    assert load_pool(path).notify.webhooks == ("https://a.example/",)
    path.write_text('[notify]\ncommand = ["/bin/true"]\n')
    with pytest.raises(ConfigError, match="is not a setting"):
        load_pool(path)
