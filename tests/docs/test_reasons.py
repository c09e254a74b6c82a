"""Every reason, outcome and check that a user may see is explained in the reference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from gpushared.cli.caller_checks import CALLER_CHECKS
from gpushared.doctor.checks import CHECKS
from gpushared.domain.model.errors import Code
from gpushared.domain.model.lease import Outcome
from gpushared.domain.scheduling.placement.free_capacity import Reason
from gpushared.jobs.job_reasons import JobReason
from gpushared.net.error_answers import Broken
from gpushared.node.pool.pool_jobs import POOL_AWAY
from gpushared.node.runtime.container_verifier import MISMATCH

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "reasons.md").read_text(encoding="utf-8")
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHECKS_PAGE = (ROOT / "docs" / "reference" / "checks.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| `([a-z-]+)` \| (.*?) ?\| (.*) \| (.*?) \|$", CHECKS_PAGE[CHECKS_PAGE.index("## ") :], re.MULTILINE
)
AFTER = {name: tuple(re.findall(r"`([a-z-]+)`", after)) for name, after, _, _ in ROWS}
CHECKS_BY_NAME = {one.name: one.after for one in CALLER_CHECKS} | {one.name: one.after for one in CHECKS}


def test_exactly_the_reasons_that_exist_are_explained() -> None:
    assert set(re.findall(r"^## `(\w+)`", PAGE, re.MULTILINE)) == set(Reason)


def test_each_reason_says_what_to_do() -> None:
    parts = re.split(r"^## `\w+`", PAGE, flags=re.MULTILINE)[1:]
    assert all("What helps:" in part for part in parts)


def test_exactly_the_outcomes_that_exist_are_explained() -> None:
    section = PAGE.partition("# Outcomes")[2].partition("# The audit")[0]
    rows = re.findall(r"^\| `(\w+)", section, re.MULTILINE)
    assert {row.replace("_", "") for row in rows} == {one.__name__.lower() for one in get_args(Outcome)}


def test_exactly_the_reasons_of_jobs_are_explained() -> None:
    rows = re.findall(r"^\| `(\w+)`", PAGE.partition("# Jobs")[2].partition("# Outcomes")[0], re.MULTILINE)
    assert set(rows) == {*JobReason, POOL_AWAY}


def test_exactly_the_codes_of_refusals_in_the_audit_are_explained() -> None:
    rows = re.findall(r"^\| `([\w-]+)`", PAGE.partition("# The audit")[2], re.MULTILINE)
    assert set(rows) == {*Broken, *Code, MISMATCH}


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
