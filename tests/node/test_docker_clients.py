"""Docker's clients of other languages before a real daemon, with all that they send beside what they mean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.bed import parts
from tests.node.conftest import NewDaemon
from tests.node.daemon import OWN_LABEL, DaemonProcess, name

PROGRAMS: Final = Path(__file__).with_name("docker_clients")
ALICE: Final = 1500
LIFE_SECONDS: Final = 120
# A restart finds the container's files as they are.
PROGRAM: Final = "rm -f /tmp/up; trap 'exit 9' TERM; trap : USR1; touch /tmp/up; while :; do sleep 0.05; done"
SEEN: Final = {
    "up": [3, "from outside"],
    "resized": True,
    "renamed": True,
    "running": True,
    "code": 9,
    "listed": True,
}


@pytest.fixture(
    params=[pytest.param("plain", marks=pytest.mark.docker), pytest.param("cdi", marks=pytest.mark.cdi)]
)
def machine(request: pytest.FixtureRequest, new_daemon: NewDaemon) -> DaemonProcess:
    """A daemon before each of the bed's engines."""
    if request.param == "plain":
        engine = str(request.getfixturevalue("docker_engine"))
    else:
        engine = request.getfixturevalue("cdi_engine").socket
    daemon = new_daemon(engine=engine)
    daemon.start()
    return daemon


def live(daemon: DaemonProcess, uid: int, *command: str, **environment: str) -> dict[str, object]:
    """What the program saw, as this user."""
    called = name()
    mark = f"{OWN_LABEL}={daemon.directory.name}"
    done = subprocess.run(
        [*command, str(uid), str(daemon.socket), parts.BUSYBOX_IMAGE, called, mark, PROGRAM],
        capture_output=True,
        text=True,
        timeout=LIFE_SECONDS,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )
    assert done.returncode == 0, done.stderr + daemon.text()[-3000:]
    seen: dict[str, object] = json.loads(done.stdout)
    return seen


def without_line_ends(seen: dict[str, object]) -> dict[str, object]:
    """Terminals end lines in a way of their own."""
    up = seen["up"]
    assert isinstance(up, Sequence)
    return {**seen, "up": [up[0], str(up[1]).strip()]}


CALLERS = pytest.mark.parametrize("uid", [0, ALICE], ids=["trusted", "confined"])


@CALLERS
def test_a_container_lives_and_ends_with_dockerode(machine: DaemonProcess, uid: int, programs: Path) -> None:
    seen = live(
        machine, uid, "node", str(PROGRAMS / "dockerode.js"), NODE_PATH=str(programs / "node_modules")
    )
    assert without_line_ends(seen) == {**SEEN, "answered": "said\n"}


@CALLERS
def test_a_container_lives_and_ends_with_aiodocker(machine: DaemonProcess, uid: int) -> None:
    seen = live(machine, uid, sys.executable, str(PROGRAMS / "with_aiodocker.py"))
    assert without_line_ends(seen) == {**SEEN, "answered": "said\n"}


@CALLERS
def test_a_container_lives_and_ends_with_docker_for_python(machine: DaemonProcess, uid: int) -> None:
    seen = live(machine, uid, sys.executable, str(PROGRAMS / "with_docker_py.py"))
    assert without_line_ends(seen) == SEEN
