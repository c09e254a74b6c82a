"""List all attacks: the lists called ``ATTACKS`` of the modules ``attacks_*.py`` beside this one.

``python -m tests.redteam.catalogue`` prints each with the words of its refusal, or with the reason why it is harmless.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from tests.redteam.attack import Attack, Threat

HERE = Path(__file__).parent


def modules() -> dict[str, list[Attack]]:
    """The attacks by the file in which they stand."""
    return {
        file.name: import_module(f"tests.redteam.{file.stem}").ATTACKS
        for file in sorted(HERE.glob("attacks_*.py"))
    }


def attacks() -> list[Attack]:
    return [attack for listed in modules().values() for attack in listed]


def main() -> None:
    for threat in Threat:
        sys.stdout.write(f"{threat.value}:\n")
        for attack in (one for one in attacks() if one.threat is threat):
            answer = f"refused: {attack.refused}" if attack.refused else attack.harmless
            sys.stdout.write(f"  {attack.name}: {answer}\n")


if __name__ == "__main__":
    main()
