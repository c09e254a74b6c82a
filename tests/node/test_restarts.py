"""Ends around a container while its lease is in each state that has one: the container is none the worse.

One daemon has leases in all states at once, of root and of an ordinary user. It is ended, upgraded, and its
engine is, in one life of both.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import pytest

from gpushared.domain.model.lease import (
    TRANSITIONS,
    Active,
    Draining,
    LeaseState,
    Paused,
    Requeued,
    Resuming,
    Starting,
    Suspended,
    Suspending,
    WithContainer,
)
from gpushared.node.parts import JOURNAL_NAME
from tests.bed import parts
from tests.bed.engine import PrivateEngine, UnifiedEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, wait_until

pytestmark = [pytest.mark.docker, pytest.mark.skipif(os.getuid() != 0, reason="acts as other users")]
ALICE = 61051
USERS = {"root": 0, "confined": ALICE}
SHARED, WHOLE = "h100", "t4"
"""The models of the GPU that leases share, and of those that have one each."""
SIZE = "0.05"
LONG_GRACE_SECONDS = 300
HASTY = {
    "GPUSHARED_QUEUE__PREEMPT_NOTICE_SECONDS": "1",
    "GPUSHARED_ENGINE__STOP_GRACE_SECONDS": "1",
}
FLEETING = frozenset({"token", "idle_since", "waiting"})
"""Fields of a lease that change by themselves."""


@dataclass(frozen=True)
class Row:
    """A lease's state when the end comes; its state and the engine's word of its container afterwards."""

    before: type[LeaseState]
    after: str
    container: str


ROWS = {
    "created": Row(Starting, "starting", "created"),
    "runs": Row(Active, "active", "running"),
    "paused by docker": Row(Paused, "paused", "paused"),
    "on its way off its GPUs": Row(Suspending, "suspended", "paused"),
    "off its GPUs": Row(Suspended, "suspended", "paused"),
    "on its way back": Row(Resuming, "active", "running"),
    "being stopped": Row(Draining, "draining", "running"),
    "queued again": Row(Requeued, "requeued", "exited"),
}
MOVING = ("on its way off its GPUs", "on its way back")
Key = tuple[str, str]
"""A row and a user."""
Leases = dict[Key, Json]


def test_the_rows_are_all_states_that_have_a_container() -> None:
    known = {state for pair in TRANSITIONS for state in pair if state in get_args(WithContainer)}
    assert {row.before for row in ROWS.values()} == known


# --- the ends ------------------------------------------------------------------------------------------


@dataclass
class Node:
    daemon: DaemonProcess
    engine: PrivateEngine

    def hurry(self) -> None:
        (self.daemon.directory / "slow").unlink()

    def dawdle(self) -> None:
        (self.daemon.directory / "slow").touch()


def terminate(node: Node) -> None:
    node.daemon.terminate()
    node.hurry()
    node.daemon.start()


def kill(node: Node) -> None:
    node.daemon.kill()
    node.hurry()
    node.daemon.start()


def upgrade(node: Node) -> None:
    """The release before wrote what a container was created with only where a resize had changed it."""
    node.daemon.terminate()
    node.hurry()
    journal = node.daemon.state_dir / JOURNAL_NAME
    with sqlite3.connect(journal) as connection:
        for sequence, body in connection.execute("SELECT sequence, body FROM lease").fetchall():
            older = json.dumps({**json.loads(body), "baked": []})
            connection.execute("UPDATE lease SET body = ? WHERE sequence = ?", (older, sequence))
    connection.close()
    node.daemon.start()


def restart_engine(node: Node) -> None:
    node.engine.kill()
    wait_until(node.daemon.troubles, "the daemon sees that the engine is away")
    node.engine.start()
    node.hurry()
    wait_until(lambda: not node.daemon.troubles(), "the daemon has found the engine again")


ENDS: dict[str, Callable[[Node], None]] = {
    "SIGTERM": terminate,
    "SIGKILL": kill,
    "engine restart": restart_engine,
    "upgrade": upgrade,
}


# --- the states ----------------------------------------------------------------------------------------


def containers(daemon: DaemonProcess, leases: Leases) -> dict[Key, tuple[str, int]]:
    """What the engine says of each lease's container: how it is, and its process."""
    shown = parts.docker(daemon.engine, "inspect", *(lease["container_id"] for lease in leases.values()))
    assert shown.returncode == 0, shown.stderr
    states = [found["State"] for found in json.loads(shown.stdout)]
    return {key: (state["Status"], state["Pid"]) for key, state in zip(leases.keys(), states, strict=True)}


def hold(daemon: DaemonProcess, gpu: str, model: str, uid: int) -> Json:
    """A lease whose container runs."""
    lease = daemon.request(gpu, uid=uid, models=[model])
    daemon.run_container("--label", f"gpushare.lease={lease['id']}", uid=uid)
    return daemon.wait_lease(lease["id"], "active")


def created(daemon: DaemonProcess, uid: int) -> Json:
    lease = daemon.request(SIZE, uid=uid, models=[SHARED])
    daemon.create_container("--label", f"gpushare.lease={lease['id']}", uid=uid)
    return daemon.wait_lease(lease["id"], "starting")


def queued_again(daemon: DaemonProcess, uid: int) -> Json:
    """Docker's pause keeps it from being suspended, and a drained GPU from being started again."""
    lease = hold(daemon, "1", WHOLE, uid)
    daemon.check("pause", lease["container_id"], uid=uid)
    daemon.wait_lease(lease["id"], "paused")
    daemon.call("Gpus/Drain", {"gpu": lease["grants"][0]["gpu_uuid"], "reason": "a test"})
    daemon.call("Leases/Preempt", {"lease_id": lease["id"]})
    return lease


def leases_in_all_states(daemon: DaemonProcess) -> Leases:
    """Those on the move, and those that are only created, come with each end."""
    leases: Leases = {}
    for user, uid in USERS.items():
        leases["queued again", user] = queued_again(daemon, uid)
    for user, uid in USERS.items():
        for row in ROWS.keys() - {"queued again", "created"}:
            leases[row, user] = hold(daemon, SIZE, SHARED, uid)
        daemon.check("pause", leases["paused by docker", user]["container_id"], uid=uid)
        daemon.call("Leases/Pause", {"lease_id": leases["off its GPUs", user]["id"]}, uid=uid)
        daemon.call("Leases/Pause", {"lease_id": leases["on its way back", user]["id"]}, uid=uid)
        asked = {"lease_id": leases["being stopped", user]["id"], "grace_seconds": LONG_GRACE_SECONDS}
        daemon.call("Leases/Stop", asked, uid=uid)
    return leases


def set_in_motion(node: Node, leases: Leases) -> None:
    """Bring all leases into their states."""
    daemon = node.daemon
    for user, uid in USERS.items():
        leases["created", user] = created(daemon, uid)
        daemon.wait_lease(leases["on its way back", user]["id"], "suspended")
    node.dawdle()
    for user, uid in USERS.items():
        daemon.call("Leases/Pause", {"lease_id": leases["on its way off its GPUs", user]["id"]}, uid=uid)
        daemon.call("Leases/Resume", {"lease_id": leases["on its way back", user]["id"]}, uid=uid)
    for (row, _), lease in leases.items():
        daemon.wait_lease(lease["id"], ROWS[row].before.__name__.lower())


def looked_at(daemon: DaemonProcess, leases: Leases, log: int) -> None:
    """Wait until the daemon has looked at each container that runs, in this life of it."""
    running = [
        leases[key]["container_id"][:12] for key, (_, pid) in containers(daemon, leases).items() if pid
    ]

    def all_looked_at() -> bool:
        text = daemon.text()[log:]
        return all(f"looked container={each} " in text for each in running)

    wait_until(all_looked_at, "every container has been looked at")


# --- the matrix ----------------------------------------------------------------------------------------


@pytest.fixture(params=["plain", "CDI"])
def engine(request: pytest.FixtureRequest) -> Iterator[PrivateEngine]:
    """One whose containers outlive it."""
    request.getfixturevalue("docker_cli")
    own = PrivateEngine("--live-restore")
    if request.param == "CDI":
        parts.need_file("cdi-engine", parts.CDI_ROOT)
        own = UnifiedEngine("--live-restore")
    try:
        own.start()
        own.load_busybox()
        yield own
    finally:
        own.dispose()


@pytest.fixture
def node(engine: PrivateEngine, new_daemon: NewDaemon) -> Node:
    """The containers are removed before their engine ends, which cannot kill what is frozen."""
    daemon = new_daemon(
        engine=engine.socket,
        simulate=f"{SHARED},{WHOLE}:2",
        environment=HASTY,
        command=(sys.executable, "-m", "tests.node.slow_checkpoints"),
    )
    daemon.start()
    return Node(daemon, engine)


def test_no_container_is_the_worse_for_an_end_around_it(node: Node) -> None:
    daemon = node.daemon
    leases = leases_in_all_states(daemon)
    for name, end in ENDS.items():
        set_in_motion(node, leases)
        before = {key: daemon.lease(lease["id"]) for key, lease in leases.items()}
        were = containers(daemon, leases)
        log = len(daemon.text())
        end(node)
        if name != "engine restart":
            looked_at(daemon, leases, log)
        for key in leases:
            check_lease(daemon, key, before[key], f"{name}: {key}")
        are = {key: (ROWS[key[0]].container, pid) for key, (_, pid) in were.items()}
        assert containers(daemon, leases) == are, name
        assert daemon.troubles() == "", name
        assert "mismatch" not in daemon.text()[log:], name
        next_round(daemon, leases)


def check_lease(daemon: DaemonProcess, key: Key, before: Json, what: str) -> None:
    after = daemon.wait_lease(before["id"], ROWS[key[0]].after)
    if key[0] not in MOVING:
        assert _lasting(after) == _lasting(before), what
    assert after["container_id"] == before["container_id"], what


def _lasting(lease: Json) -> dict[str, Any]:
    return {name: value for name, value in lease.items() if name not in FLEETING}


def next_round(daemon: DaemonProcess, leases: Leases) -> None:
    """Those that left their GPUs are to come back in the next round, and the other way round."""
    for user in USERS:
        off, back = ((row, user) for row in MOVING)
        leases[off], leases[back] = leases[back], leases[off]
        lease = leases.pop(("created", user))
        daemon.check("rm", "--force", lease["container_id"])
