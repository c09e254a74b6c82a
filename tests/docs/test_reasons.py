"""Every reason and every outcome a user may see is explained in the reference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from gpushared.domain.model.errors import Code
from gpushared.domain.model.lease import Outcome
from gpushared.domain.scheduling.placement.free_capacity import Reason
from gpushared.jobs.job_reasons import JobReason
from gpushared.net.error_answers import Broken
from gpushared.node.pool.pool_jobs import POOL_AWAY
from gpushared.node.runtime.container_verifier import MISMATCH

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "reasons.md").read_text(encoding="utf-8")


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
