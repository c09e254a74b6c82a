"""Leases that go with the process that asked for them, as long as no container was created in them."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.bed import parts
from tests.node.conftest import NewDaemon
from tests.node.daemon import GPUSHARE, DaemonProcess, Json, wait_until

ASKS = """
import json, os
from gpushared.client import Client
print(json.dumps(Client({socket!r}).call("Leases/Request", {message!r})), flush=True)
os.execvp("sleep", ["sleep", "1000"])
"""
"""Asks for a lease, says which it got, and becomes another program, as `gpushare run` becomes docker."""

Asks = Callable[..., tuple["subprocess.Popen[str]", Json]]


@pytest.fixture
def asks() -> Iterator[Asks]:
    """Starts a process that asks a daemon for a lease and stays; the process, and its lease."""
    started: list[subprocess.Popen[str]] = []

    def ask(daemon: DaemonProcess, gpu: str, **fields: object) -> tuple[subprocess.Popen[str], Json]:
        message = {"gpu": gpu, "ends_with_caller": True, **fields}
        words = ASKS.format(socket=f"unix://{daemon.socket}", message=message)
        process = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())

    yield ask
    for process in started:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def is_over(daemon: DaemonProcess, lease: Json) -> Callable[[], bool]:
    return lambda: lease["id"] not in daemon.leases()


def test_a_lease_is_given_back_when_the_process_that_holds_it_ends(daemon: DaemonProcess, asks: Asks) -> None:
    """Long before the minute is over that a reservation is otherwise held for its container."""
    holds, reserved = asks(daemon, "2")
    waits, queued = asks(daemon, "1")
    _, next_one = asks(daemon, "1")
    assert (reserved["state"], queued["state"]) == ("reserved", "queued")
    end(waits)
    wait_until(is_over(daemon, queued), "the queue is left")
    assert daemon.lease(reserved["id"])["state"] == "reserved"
    end(holds)
    wait_until(is_over(daemon, reserved), "the reservation is given back")
    assert daemon.lease(reserved["id"])["outcome"]["kind"] == "stopped"
    assert "whoever asked for it ended without a container" in " ".join(daemon.story(reserved["id"]))
    daemon.wait_lease(next_one["id"], "reserved")


def test_a_lease_that_is_handed_on_does_not_end_with_who_asked(daemon: DaemonProcess, asks: Asks) -> None:
    """A script may ask with one program, and create the container with another one."""
    process, lease = asks(daemon, "1", ends_with_caller=False)
    goes, watched = asks(daemon, "1")
    end(process)
    end(goes)
    wait_until(is_over(daemon, watched), "the other one is given back")
    assert daemon.lease(lease["id"])["state"] == "reserved"


def test_a_container_does_not_end_with_who_asked_for_its_lease(daemon: DaemonProcess, asks: Asks) -> None:
    process, lease = asks(daemon, "1")
    goes, watched = asks(daemon, "1")
    daemon.run_container("--label", f"gpushare.lease={lease['id']}")
    end(process)
    end(goes)
    wait_until(is_over(daemon, watched), "the other one is given back")
    assert daemon.wait_lease(lease["id"], "active")["state"] == "active"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_who_ends_while_the_daemon_is_away_is_granted_nothing_by_the_next(
    daemon: DaemonProcess, asks: Asks, number: signal.Signals
) -> None:
    """Ten dead requests would else stand before the live one, and each hold the GPUs for a minute."""
    holder, reserved = asks(daemon, "2")
    dead = [asks(daemon, "2") for _ in range(4)]
    _, alive = asks(daemon, "2")
    daemon.signal(number)
    daemon.wait()
    for process, _ in [(holder, reserved), *dead]:
        end(process)
    daemon.start()
    daemon.wait_lease(alive["id"], "reserved")
    for lease in [reserved, *(lease for _, lease in dead)]:
        assert daemon.lease(lease["id"])["state"] == "ended"
    assert not any("granted" in " ".join(daemon.story(lease["id"])) for _, lease in dead)


def test_a_process_with_the_number_of_one_that_ended_holds_nothing(
    new_daemon: NewDaemon, asks: Asks, docker_engine: str
) -> None:
    """After a reboot any number may be anybody's; here the holder is made to be of an earlier boot."""
    daemon = new_daemon(engine=docker_engine)
    daemon.start()
    _, lease = asks(daemon, "1")
    daemon.kill()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with closing(sqlite3.connect(daemon.state_dir / "journal.db")) as journal, journal:
        changed = journal.execute("UPDATE lease SET body = replace(body, ?, 'another')", (boot_id,))
        assert changed.rowcount == 1
    daemon.start()
    wait_until(is_over(daemon, lease), "it is given back")


# --- the command -----------------------------------------------------------------------------------------


def command(daemon: DaemonProcess, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """`gpushare run`, without a terminal."""
    return subprocess.run(
        [str(GPUSHARE), "run", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            "PATH": f"{path or parts.DOCKER.parent}:{os.environ['PATH']}",
            "HOME": "/tmp",
            "DOCKER_CONFIG": "/nonexistent",
            "GPUSHARE_HOST": f"unix://{daemon.socket}",
        },
    )


TYPOS = [
    ("--gpuu", "0.25"),
    ("-it",),
    ("-p", "99999:1"),
    ("--env-file", "/nosuch"),
]


@pytest.mark.parametrize("engine", ["docker_engine", "cdi_engine"])
def test_a_typing_error_costs_nobody_anything(
    new_daemon: NewDaemon, engine: str, request: pytest.FixtureRequest
) -> None:
    """Docker's own message, perhaps a guess, and no lease: none was ever asked for."""
    found = request.getfixturevalue(engine)
    daemon = new_daemon(engine=getattr(found, "socket", found))
    daemon.start()
    for words in TYPOS:
        done = command(daemon, "--gpu", "0.25", *words, parts.BUSYBOX_IMAGE, "true")
        assert done.returncode in {125, 1}, done.stderr
        assert "gpushare:" not in done.stderr.replace("gpushare: did you mean", "")
    assert daemon.call("Leases/List", {"ended": True})["leases"] == []


def test_a_docker_that_makes_no_container_gives_the_lease_back_by_its_end(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    """Whatever it refuses, and whenever."""
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "docker").chmod(0o755)
    assert command(daemon, "--gpu", "1", parts.BUSYBOX_IMAGE, path=str(tmp_path)).returncode == 3
    wait_until(lambda: daemon.leases() == {}, "the lease is given back")
    (lease,) = daemon.call("Leases/List", {"ended": True})["leases"]
    assert lease["outcome"]["kind"] == "stopped"
