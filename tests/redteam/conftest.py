"""The machines under attack: one with an engine of today's stable systems, one whose engine knows CDI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bed import parts
from tests.bed.engine import PrivateEngine, UnifiedEngine
from tests.redteam.attack import Engines
from tests.redteam.attacked_machine import AttackedMachine
from tests.redteam.oracle import Oracle

ENGINES = {Engines.PLAIN: PrivateEngine, Engines.CDI: UnifiedEngine}


class AttackedMachines:
    """Makes a machine when the first attack on it comes; all of them go at the end."""

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._tried: set[Engines] = set()
        self._made: dict[Engines, tuple[AttackedMachine, Oracle]] = {}

    def of(self, kind: Engines) -> tuple[AttackedMachine, Oracle]:
        if kind not in self._made:
            assert kind not in self._tried, "this machine could not be made"
            self._tried.add(kind)
            engine = ENGINES[kind]()
            self._ends.callback(engine.dispose)
            engine.start()
            engine.load_busybox()
            machine = AttackedMachine(engine)
            self._ends.callback(machine.dispose)
            self._made[kind] = machine, Oracle(machine)
        return self._made[kind]

    def close(self) -> None:
        self._ends.close()


@pytest.fixture(scope="module")
def machines(docker_cli: Path, _swept: None) -> Iterator[AttackedMachines]:
    parts.need_file("image", parts.BUSYBOX_TAR)
    parts.need_file("cdi-engine", parts.CDI_ROOT)
    made = AttackedMachines()
    yield made
    made.close()
