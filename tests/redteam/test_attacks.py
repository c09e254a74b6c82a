"""Attacks of an ordinary local user on a real daemon before a real engine: none reaches anything."""

from __future__ import annotations

import os
import re

import pytest

from tests.redteam.attack import Attack, Engines
from tests.redteam.catalogue import attacks
from tests.redteam.conftest import AttackedMachines

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody without rights"),
]
LONGEST_SENTENCE = 600
CASES = [pytest.param(attack, kind, id=f"{attack.name}-{kind}") for attack in attacks() for kind in attack.on]


@pytest.mark.parametrize(("attack", "kind"), CASES)
def test_an_attack_reaches_nothing_and_is_answered_in_words(
    machines: AttackedMachines, attack: Attack, kind: Engines
) -> None:
    machine, oracle = machines.of(kind)
    try:
        response = attack.how(machine)
    finally:
        harm = oracle.look()
    assert harm == []
    if attack.refused:
        assert response.is_refusal, response
        assert attack.refused in response.message, response
        assert len(response.message) < LONGEST_SENTENCE
        assert "Traceback" not in response.message
    else:
        assert response.is_success, response


def test_there_are_at_least_eighty_attacks_with_names_of_their_own() -> None:
    names = [attack.name for attack in attacks()]
    assert len(names) >= 80
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name)] == []
