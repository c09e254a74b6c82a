"""``gpushare config``: the daemon's configuration without a daemon."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from gpushared.cli.config import MAIN_FILE
from gpushared.config import DEFAULT_PATH
from tests.cli.process import Gpushare
from tests.cli.standin import StandIn


def test_check_of_a_right_file_says_so(gpushare: Gpushare, standin: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[presets.small]\ngpu = "0.25"\n')
    done = gpushare("config", "check", "--config", str(file))
    assert (done.returncode, done.stdout) == (0, f"{file} is right\n")
    assert standin.calls == []


def test_check_tells_all_that_is_wrong_and_exits_with_2(gpushare: Gpushare, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[presets.small]\ngpu = "lots"\ncolour = "red"\n[nonsense]\nx = 1\n')
    done = gpushare("config", "check", "-c", str(file))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "presets.small.colour" in done.stderr
    assert "nonsense" in done.stderr
    assert "\\n" not in done.stderr


def test_a_named_file_must_exist(gpushare: Gpushare, tmp_path: Path) -> None:
    done = gpushare("config", "check", "-c", str(tmp_path / "none.toml"))
    assert done.returncode == 2
    assert "no such file" in done.stderr


def test_show_gives_a_file_that_gives_the_same_again(gpushare: Gpushare, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[presets.small]\ngpu = "0.25"\n')
    first = gpushare("config", "show", "-c", str(file)).stdout
    assert tomllib.loads(first)["presets"]["small"]["gpu"] == "0.25"
    file.write_text(first)
    assert gpushare("config", "show", "-c", str(file)).stdout == first


def test_show_with_origin_names_file_and_variable(gpushare: Gpushare, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[presets.small]\ngpu = "0.25"\n')
    words = ["config", "show", "-c", str(file)]
    environ = {"GPUSHARED_PRESETS__SMALL__TIME": "2h"}
    shown = gpushare(*words, "--origin", **environ).stdout
    assert f'gpu = "0.25"  # {file}' in shown
    assert "# environment GPUSHARED_PRESETS__SMALL__TIME" in shown
    data = json.loads(gpushare(*words, "-o", "json", **environ).stdout)
    assert data["schema"] == "gpushare.config/1"
    assert {item["origin"] for item in data["items"] if item["section"] == "presets.small"} >= {str(file)}


def test_the_command_line_knows_the_main_file_of_the_daemon() -> None:
    assert str(DEFAULT_PATH) == MAIN_FILE
