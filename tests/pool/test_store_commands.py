"""``gpushared-pool store`` finds the store wherever its options stand on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpushared.pool.coordinator.main import main


@pytest.mark.parametrize(
    "words",
    [
        ("--config", "pool.toml", "--state-dir", "s", "store", "check"),
        ("--state-dir", "s", "store", "check", "--config", "pool.toml"),
        ("store", "check", "--config", "pool.toml", "--state-dir", "s"),
        ("--state-dir", "nowhere", "store", "check", "--config", "pool.toml", "--state-dir", "s"),
    ],
)
def test_the_options_may_stand_before_and_behind_the_command(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "pool.toml").write_text("[log]\nlevel = 'warning'\n")
    words = tuple(
        word if word.startswith("--") or word in {"store", "check"} else str(tmp_path / word)
        for word in words
    )
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.output.splitlines()[0]) == (0, "0 records: none")
    missing = CliRunner().invoke(main, [word.replace("pool.toml", "none.toml") for word in words])
    assert (missing.exit_code, "none.toml: there is no such file" in missing.output) == (2, True)
