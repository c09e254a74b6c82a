"""The pages on security and trust list the attacks that are tried, and answer for every call of a coordinator."""

from __future__ import annotations

import re
from pathlib import Path

from tests.redteam.catalogue import modules
from tests.redteam.pool.lab import CALLS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
TRUST = ROOT / "docs" / "explanation" / "trust.md"
CALLS_TABLE = TRUST.read_text(encoding="utf-8").partition("## Every call")[2]
SECTIONS = re.findall(r"^### (.+?)\n(.+?)(?=^### |\Z)", PAGE, re.MULTILINE | re.DOTALL)
ROWS = [
    (name, threat, answer)
    for threat, section in SECTIONS
    for answer, names in re.findall(r"^- (.+): (`[\w`, -]+`)$", section, re.MULTILINE)
    for name in re.findall(r"`([\w-]+)`", names)
]
"""The words of a refusal stand in quotation marks."""


def test_exactly_the_attacks_that_are_tried_are_listed_with_their_answers() -> None:
    tried = {
        attack.name: (
            attack.threat.value[0].upper() + attack.threat.value[1:],
            f"“{attack.refused.strip()}”" if attack.refused else attack.harmless,
        )
        for listed in modules().values()
        for attack in listed
    }
    assert {name: (threat, answer) for name, threat, answer in ROWS} == tried


def test_no_attack_is_listed_twice() -> None:
    names = [name for name, _, _ in ROWS]
    assert len(set(names)) == len(names)


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
