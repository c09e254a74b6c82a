"""The daemon is killed before and after every write of a scenario with real containers."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

from tests.bed import parts
from tests.node.conftest import NewDaemon
from tests.node.daemon import ANSWER_SECONDS, OWN_LABEL, DaemonProcess, Json, Refused

SECONDS = 300
"""For the whole scenario with its about a hundred lives."""
AGAIN_SECONDS = 0.05
HOLDING = {"reserved", "starting", "active", "paused", "draining"}
Shown = tuple[float, list[str], int, int | None, int]
"""A project's weight, members, and what of it is guaranteed, its limit and fixed, in permille."""
ON_TERM = 'trap "exit 3" TERM; sleep 1000 & wait'
CONFIG = """
[queue]
claim_seconds = {claim_seconds}
[engine]
stop_grace_seconds = 1
"""
CLAIMED_AT_LEISURE = CONFIG.format(claim_seconds=60)
"""A container needs several lives of the daemon and several commands, each of which a busy machine delays."""
SHORT_SECONDS = 45
"""From the grant, so that the container must have started by then; meanwhile the others go on."""
FORGOTTEN_SOON = CONFIG.format(claim_seconds=5)


def test_whatever_write_it_is_killed_at_nothing_is_sold_twice_touched_or_lost(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    """Every lease ends as it should, and each container is started exactly as often as it was told to."""
    daemon = new_daemon(
        engine=docker_engine,
        simulate="h100",
        config=CLAIMED_AT_LEISURE,
        command=(sys.executable, "-m", "tests.node.dying_node"),
        environment={"PYTHONPATH": str(parts.ROOT)},
    )
    with killed_again_and_again(daemon) as node:
        play(node)
        administer(node)
    deaths = (daemon.directory / "deaths").read_text().splitlines()
    for when in ("before", "after"):
        marks = [line.removeprefix(f"{when} ") for line in deaths if line.startswith(when)]
        states = {line.split()[1].rstrip(":") for line in marks if not line.startswith("projects")}
        assert states == {"queued", "reserved", "starting", "active", "paused", "draining", "ended"}
        assert len([line for line in marks if line.startswith("projects")]) == len(SETTINGS) + 1


def play(node: KilledNode) -> None:
    """Somebody stubborn does one thing after the other, and does it again where the daemon died of it."""
    serving = node.ask("serving", "0.25")
    node.run("serving", serving, "--restart", "always", command="sleep 1000")
    batch = node.ask("batch", "0.5")
    node.run("batch", batch, command=ON_TERM)
    short = node.ask("short", "0.25", time=f"{SHORT_SECONDS}s")
    node.run("short", short, command="sleep 1000")
    queued = node.ask("queued", "0.5")
    forgotten = node.ask("forgotten", "0.75")
    assert node.lease(queued)["state"] == "queued"

    node.until(lambda: node.make("pause", "batch", batch, "paused"))
    node.until(lambda: node.make("unpause", "batch", batch, "active"))
    node.until(lambda: node.make("kill", "serving", serving, "active", restarts=1))
    node.until(lambda: node.make("stop", "batch", batch, "ended"))
    assert node.lease(batch)["outcome"]["exit_code"] == 3

    node.until(lambda: node.lease(queued)["state"] != "queued")
    node.run("queued", queued, command="sleep 1000")
    node.until(lambda: node.outcome(short) == "expired")
    # Each life reads the configuration, and the daemon dies of the grant that nobody claims.
    (node.daemon.directory / "config.toml").write_text(FORGOTTEN_SOON)
    node.until(lambda: node.call("Leases/Stop", lease_id=queued, grace_seconds=0)["state"] == "ended")
    node.until(lambda: node.call("Leases/Stop", lease_id=serving, grace_seconds=0)["state"] == "ended")
    node.until(lambda: node.outcome(forgotten) == "never_claimed")
    node.until(lambda: node.call("Gpus/List")["gpus"][0]["compute_free_permille"] == 1000)
    assert [node.outcome(one) for one in (serving, batch, short, queued)] == [
        *("stopped", "finished", "expired", "stopped")
    ]
    node.note_starts(node.containers())
    times = {"serving": 2, "batch": 1, "short": 1, "queued": 1}
    assert {name: len(starts) for name, starts in node.starts.items()} == times


SETTINGS: tuple[Json, ...] = (
    {"weight": 2.0, "guaranteed": "0.5"},
    {"limit": "1"},
    {"users": {"names": ["alice"]}, "fixed": "0.25"},
)
SHOWN: tuple[Shown, ...] = (
    (2.0, [], 500, None, 0),
    (2.0, [], 500, 1000, 0),
    (2.0, ["alice"], 500, 1000, 250),
)
"""The project after each."""


def administer(node: KilledNode) -> None:
    """A project is set again and again, and unset: what was answered holds, and nothing comes in parts."""
    for said, shown in zip(SETTINGS, SHOWN, strict=True):
        node.answer(partial(node.call, "Projects/Set", name="vision", **said))
        assert node.project("vision") == shown
    node.until(lambda: node.unset("vision"))
    assert node.project("vision") is None


@contextmanager
def killed_again_and_again(daemon: DaemonProcess) -> Iterator[KilledNode]:
    """The daemon, started again whenever it died, and looked at while it is dead."""
    node = KilledNode(daemon)
    daemon.launch(piped=True)
    reviver = threading.Thread(target=node.revive)
    reviver.start()
    try:
        yield node
    finally:
        node.over.set()
        if daemon.process:
            daemon.process.terminate()
        reviver.join()
    assert not node.wrong, node.wrong


class KilledNode:
    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon
        self.over = threading.Event()
        self.wrong: list[str] = []
        self.began_at = time.monotonic()
        self.starts: defaultdict[str, set[str]] = defaultdict(set)
        """When the engine started each container, by the end of its name."""

    # --- the daemon's lives ---

    def revive(self) -> None:
        process = self.daemon.process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            for status in process.stdout:
                if self.over.is_set():
                    return
                if status != b"-9\n":
                    self.wrong.append(f"it ended with {status!r}:\n{self.daemon.text()[-3000:]}")
                    return
                self.check_disk()
                process.stdin.write(b"again\n")
                process.stdin.flush()

    def check_disk(self) -> None:
        """What is on disk while nobody runs: nothing sold twice, and no container up without its lease."""
        leases = self.journal()
        held = [lease for lease in leases if lease["state"]["kind"] in HOLDING]
        sold = sum(grant["compute_permille"] for lease in held for grant in lease["state"]["grants"])
        if sold > 1000:
            self.wrong.append(f"{sold} permille are sold: {held}")
        if self.projects() not in ([], *([shown] for shown in SHOWN)):
            self.wrong.append(f"projects are set in parts, or came back: {self.projects()}")
        devices = {lease["device_name"] for lease in held}
        containers = self.containers()
        self.note_starts(containers)
        for container in containers:
            device = container["Config"]["Labels"].get("gpushare.device")
            if container["State"]["Running"] and device not in devices:
                self.wrong.append(f"{container['Name']} runs without a lease")

    def note_starts(self, containers: list[Json]) -> None:
        for container in containers:
            at = container["State"]["StartedAt"]
            if not at.startswith("0001"):
                self.starts[container["Name"].rpartition("-")[2]].add(at)

    def journal(self) -> list[Json]:
        path = self.daemon.state_dir / "journal.db"
        if not path.exists():
            return []
        with closing(sqlite3.connect(path)) as db:
            return [json.loads(body) for (body,) in db.execute("SELECT body FROM lease")]

    def projects(self) -> list[Shown]:
        """Those that were set, as the disk has them."""
        path = self.daemon.state_dir / "journal.db"
        if not path.exists():
            return []
        with closing(sqlite3.connect(path)) as db:
            bodies = [json.loads(body) for (body,) in db.execute("SELECT body FROM project")]
        return [
            (body["weight"], body["users"], *(body["quota"][key] for key in ("guaranteed", "limit", "fixed")))
            for body in bodies
        ]

    # --- the engine's view ---

    def containers(self) -> list[Json]:
        label = f"{OWN_LABEL}={self.daemon.directory.name}"
        filters = quote(json.dumps({"label": [label]}))
        listed = self.engine(f"/containers/json?all=1&filters={filters}")
        return [self.engine(f"/containers/{one['Id']}/json") for one in listed]

    def engine(self, path: str) -> Any:
        """An answer of the engine itself; its command would take longer to start than this does."""
        connection = HTTPConnection("localhost", timeout=ANSWER_SECONDS)
        connection.sock = socket.socket(socket.AF_UNIX)
        with closing(connection):
            connection.sock.connect(str(self.daemon.engine))
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())

    # --- a stubborn user ---

    def unset(self, name: str) -> bool:
        """Whether it is gone, by this call or by one before whose answer was lost."""
        if self.project(name) is not None:
            self.call("Projects/Set", name=name, unset=True)
        return True

    def project(self, name: str) -> Shown | None:
        """Its figures as the daemon shows them."""
        listed = self.answer(lambda: self.call("Projects/List"))["projects"]
        found = next((one for one in listed if one["name"] == name), None)
        if found is None:
            return None
        (quota,) = found["quotas"]
        return (
            found["weight"],
            found.get("users", []),
            quota["guaranteed_permille"],
            quota.get("limit_permille"),
            quota["fixed_permille"],
        )

    def until(self, done: Callable[[], bool]) -> None:
        while True:
            try:
                if done():
                    return
            except (OSError, Refused, ValueError, subprocess.TimeoutExpired):
                pass
            assert not self.wrong, self.wrong
            assert time.monotonic() - self.began_at < SECONDS, self.daemon.text()[-5000:]
            time.sleep(AGAIN_SECONDS)

    def call(self, call: str, **message: Any) -> Json:
        return self.daemon.call(call, message)

    def ask(self, name: str, gpu: str, time: str = "") -> str:
        """Ask until it is answered, always by the same request id."""
        return str(self.answer(lambda: self.daemon.request(gpu, request_id=name, time=time))["id"])

    def lease(self, lease: str) -> Json:
        return self.answer(lambda: self.daemon.lease(lease))

    def answer(self, ask: Callable[[], Json]) -> Json:
        answers: list[Json] = []

        def answered() -> bool:
            answers.append(ask())
            return True

        self.until(answered)
        return answers[0]

    def outcome(self, lease: str) -> str:
        return str((self.lease(lease).get("outcome") or {}).get("kind", ""))

    def run(self, name: str, lease: str, *options: str, command: str) -> None:
        container = f"{self.daemon.directory.name}-{name}"
        words = self.daemon.container_options(
            "--name", container, "--label", f"gpushare.lease={lease}", *options
        )

        def runs() -> bool:
            state = self.lease(lease)["state"]
            if state == "active":
                return True
            assert state != "ended", json.dumps(self.call("Leases/Explain", lease_id=lease))
            if self.daemon.docker("run", "-d", *words, "sh", "-c", command).returncode:
                self.daemon.docker("start", container)
            return False

        self.until(runs)

    def make(self, word: str, name: str, lease: str, state: str, restarts: int = 0) -> bool:
        """One docker command, if what it is to lead to is not so yet."""
        container = f"{self.daemon.directory.name}-{name}"
        found = self.daemon.container(container)
        done = {
            "pause": found["State"]["Paused"],
            "unpause": not found["State"]["Paused"],
            "stop": not found["State"]["Running"],
            "kill": found["RestartCount"] >= restarts > 0,
        }[word]
        if not done and word == "kill":
            # A user's kill would count as a stop; a crash is one of the process itself.
            os.kill(found["State"]["Pid"], 9)
        elif not done:
            self.daemon.docker(word, *(("-t", "5") if word == "stop" else ()), container)
        return bool(done) and self.lease(lease)["state"] == state
