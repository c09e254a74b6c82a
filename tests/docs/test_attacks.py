"""The pages on security and trust count the attacks that are tried, and answer for every call of a coordinator."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.redteam.catalogue import attacks
from tests.redteam.pool.lab import CALLS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
TRUST = ROOT / "docs" / "explanation" / "trust.md"
CALLS_TABLE = TRUST.read_text(encoding="utf-8").partition("## Every call")[2]
ROWS = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)


def test_the_page_says_how_many_attacks_of_each_kind_are_tried() -> None:
    tried = Counter((attack.threat.value, bool(attack.refused)) for attack in attacks())
    told = {
        (threat, is_refused): int(n)
        for threat, *counts in ROWS
        for is_refused, n in zip((True, False), counts, strict=True)
    }
    assert {key: count for key, count in told.items() if count} == tried


def test_no_two_attacks_have_one_name() -> None:
    assert [name for name, count in Counter(attack.name for attack in attacks()).items() if count > 1] == []


def test_every_call_of_a_coordinator_is_in_one_row_of_the_table() -> None:
    first_cells = re.findall(r"^\| (`[^|]+) \|", CALLS_TABLE, re.MULTILINE)
    named = [name for cell in first_cells for name in re.findall(r"`(\w+/\w+)`", cell)]
    assert sorted(named) == sorted([*CALLS, "Health/Check"])


def test_every_row_names_tests_that_exist() -> None:
    rows = re.findall(r"^\| `.*\|$", CALLS_TABLE, re.MULTILINE)
    for row in rows:
        named = re.findall(r"\((\.\./\.\./tests/[\w/.]+)\)", row.split("|")[-2])
        assert named, row
        assert [name for name in named if not (TRUST.parent / name).exists()] == []
