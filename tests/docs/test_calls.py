"""The page on trust answers for every call of a coordinator, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.redteam.pool.lab import CALLS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "trust.md"
TABLE = PAGE.read_text(encoding="utf-8").partition("## Every call")[2]


def test_every_call_of_a_coordinator_is_in_one_row_of_the_table() -> None:
    first_cells = re.findall(r"^\| (`[^|]+) \|", TABLE, re.MULTILINE)
    named = [name for cell in first_cells for name in re.findall(r"`(\w+/\w+)`", cell)]
    assert sorted(named) == sorted([*CALLS, "Health/Check"])


def test_every_row_names_tests_that_exist() -> None:
    rows = re.findall(r"^\| `.*\|$", TABLE, re.MULTILINE)
    for row in rows:
        named = re.findall(r"\((\.\./\.\./tests/[\w/.]+)\)", row.split("|")[-2])
        assert named, row
        assert [name for name in named if not (PAGE.parent / name).exists()] == []
