"""Every check of the doctor is in the reference, with what it comes after and what helps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpushared.cli.caller_checks import CALLER_CHECKS
from gpushared.doctor.checks import CHECKS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "reference" / "checks.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([a-z-]+)` \| (.*?) ?\| (.*) \| (.*?) \|$", PAGE[PAGE.index("## ") :], re.MULTILINE)
AFTER = {name: tuple(re.findall(r"`([a-z-]+)`", after)) for name, after, _, _ in ROWS}
CHECKS_BY_NAME = {one.name: one.after for one in CALLER_CHECKS} | {one.name: one.after for one in CHECKS}


def test_exactly_the_checks_that_exist_are_described_each_once() -> None:
    assert sorted(name for name, *_ in ROWS) == sorted(CHECKS_BY_NAME)


def test_the_readme_says_how_many_there_are() -> None:
    assert f"{len(CHECKS_BY_NAME)} checks" in README


@pytest.mark.parametrize("name", CHECKS_BY_NAME)
def test_the_reference_says_what_a_check_comes_after(name: str) -> None:
    assert AFTER[name] == CHECKS_BY_NAME[name]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_each_check_says_what_is_wrong_and_what_helps(row: tuple[str, str, str, str]) -> None:
    _, _, wrong, helps = row
    assert len(wrong.split()) > 4
    assert helps
