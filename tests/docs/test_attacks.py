"""The attacks that the documentation lists are those that are tried, with the answers that they get."""

from __future__ import annotations

import re
from pathlib import Path

from tests.redteam.catalogue import modules

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
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
