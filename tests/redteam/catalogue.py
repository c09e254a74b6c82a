"""All attacks: the lists called ``ATTACKS`` of the modules ``attacks_*.py`` beside this one."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.redteam.attack import Attack

HERE = Path(__file__).parent


def modules() -> dict[str, list[Attack]]:
    """The attacks by the file in which they stand."""
    return {
        file.name: import_module(f"tests.redteam.{file.stem}").ATTACKS
        for file in sorted(HERE.glob("attacks_*.py"))
    }


def attacks() -> list[Attack]:
    return [attack for listed in modules().values() for attack in listed]
