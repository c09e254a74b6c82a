"""The coordinator's service under a real systemd: with no rights, and with the unit's walls in force."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.parts import ROOT
from tests.systemd.node import COMMANDS, Node

FILES = ("gpushared-pool.service", "gpushared-pool.sysusers.conf", "gpushared-pool.tmpfiles.conf")
CONFIG = "/etc/gpushared/pool.toml"
SOCKET = "/run/gpushared-pool/gpushared-pool.sock"
STATE = "/var/lib/gpushared-pool"
DROP_IN = "/etc/systemd/system/gpushared-pool.service.d/test.conf"


class Coordinator:
    """The machine, as whoever administers its coordinator sees it."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def check(self, *words: str) -> str:
        return self.node.check(*words)

    def show(self, what: str) -> str:
        return self.check("systemctl", "show", "--value", "--property", what, "gpushared-pool.service")

    def wait_until(self, what: str, holds: Callable[[], bool]) -> None:
        try:
            self.node.wait_until(what, holds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def log(self) -> str:
        return self.check("journalctl", "--unit", "gpushared-pool", "--no-pager", "--lines", "40")

    def status(self) -> dict[str, Any]:
        """What it says of itself to root."""
        program = (
            "import http.client, socket\n"
            "call = http.client.HTTPConnection('x')\n"
            "call.sock = socket.socket(socket.AF_UNIX)\n"
            f"call.sock.connect('{SOCKET}')\n"
            "call.request('POST', '/gpushare.v1.PoolAdmin/Status', '{}')\n"
            "print(call.getresponse().read().decode())"
        )
        document: dict[str, Any] = json.loads(self.check("python3", "-c", program))
        return document

    def main_pid(self) -> str:
        return self.show("MainPID")

    def clear(self) -> None:
        self.node.machine.run("systemctl", "stop", "gpushared-pool.service")
        self.node.machine.run("systemctl", "reset-failed", "gpushared-pool.service")
        self.node.shell(f"rm -rf {DROP_IN} {CONFIG} {STATE}/* {STATE}/.[!.]*")
        self.check("systemctl", "daemon-reload")


@pytest.fixture
def pool(_machine: Node) -> Iterator[Coordinator]:
    """The package is installed, and the pool begun; the service is not started."""
    _machine.check(f"{COMMANDS}/gpushared-pool", "install")
    made = Coordinator(_machine)
    _machine.check(f"{COMMANDS}/gpushare", "pool", "init", "lab")
    yield made
    made.clear()


@pytest.fixture
def running(pool: Coordinator) -> Coordinator:
    pool.check("systemctl", "start", "gpushared-pool")
    return pool


def test_the_wheel_brings_the_coordinator_s_unit(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        for name in FILES:
            assert files.read(f"gpushared/data/systemd/{name}") == (ROOT / "systemd" / name).read_bytes()


def test_install_says_each_deed_and_what_comes_next(pool: Coordinator) -> None:
    assert pool.check(f"{COMMANDS}/gpushared-pool", "install").splitlines() == [
        "unchanged /etc/systemd/system/gpushared-pool.service",
        "unchanged /etc/sysusers.d/gpushared-pool.conf",
        "unchanged /etc/tmpfiles.d/gpushared-pool.conf",
        "ran systemd-sysusers /etc/sysusers.d/gpushared-pool.conf",
        "ran systemd-tmpfiles --create /etc/tmpfiles.d/gpushared-pool.conf",
        "ran systemctl daemon-reload",
        "unchanged /usr/local/bin/gpushare",
        "unchanged /usr/local/share/bash-completion/completions/gpushare",
        "unchanged /usr/local/share/zsh/site-functions/_gpushare",
        "unchanged /usr/local/share/fish/vendor_completions.d/gpushare.fish",
        "next: systemctl enable --now gpushared-pool",
    ]
    assert f"path={COMMANDS}/gpushared-pool ;" in pool.show("ExecStart")


def test_a_started_coordinator_answers_and_its_status_says_what_it_serves(running: Coordinator) -> None:
    assert running.show("ActiveState") == "active"
    told = "0 of 0 nodes, 0 jobs queued, 0 under way"
    running.wait_until("the status says so", lambda: running.show("StatusText") == told)
    status = running.status()
    assert (status["pool"], status["phase"], status["epoch"]) == ("lab", "normal", "1")
    sockets = [line.split() for line in running.node.shell("cat /proc/net/tcp*").splitlines()]
    listening = {int(words[1].rpartition(":")[2], 16) for words in sockets if words[3] == "0A"}
    assert {7440, 7441} <= listening


def test_it_runs_as_its_own_user_without_any_right(running: Coordinator) -> None:
    facts = running.check("cat", f"/proc/{running.main_pid()}/status")
    values = dict(line.split(":\t", 1) for line in facts.splitlines() if ":\t" in line)
    uid = running.check("id", "-u", "gpushared-pool")
    assert set(values["Uid"].split()) == {uid} != {"0"}
    assert {values[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (values["NoNewPrivs"], values["Seccomp"]) == ("1", "2")
    owners = running.check("find", STATE, "-printf", "%u\n").split()
    assert set(owners) == {"gpushared-pool"}
    assert running.check("stat", "-c", "%a", STATE) == "700"


def test_the_unit_s_walls_are_as_high_as_systemd_knows_them(running: Coordinator) -> None:
    judged = running.node.machine.run("systemd-analyze", "security", "--no-pager", "gpushared-pool.service")
    output = [line for line in judged.stdout.splitlines() if "Overall exposure level" in line]
    assert output, judged.stdout + judged.stderr
    assert float(output[0].split(":")[1].split()[0]) < 2.0, judged.stdout


def test_nobody_but_administrators_is_answered(running: Coordinator) -> None:
    refused = running.node.machine.run(
        *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
        *(f"{COMMANDS}/gpushare", "pool", "tokens"),
    )
    assert refused.returncode == 125
    assert "may not administer the pool" in refused.stderr


def test_one_that_is_killed_comes_back_and_leads_with_a_higher_epoch(running: Coordinator) -> None:
    before = running.main_pid()
    running.check("kill", "-KILL", before)
    running.wait_until("another one runs", lambda: running.main_pid() not in {before, "0"})
    running.wait_until("it is active", lambda: running.show("ActiveState") == "active")
    assert int(running.status()["epoch"]) == 2


def test_a_second_one_on_the_same_store_is_refused(running: Coordinator) -> None:
    words = f"--state-dir {STATE} --runtime-dir /tmp/second --listen 127.0.0.1:0 --listen-nodes 127.0.0.1:0"
    second = running.node.machine.run(
        *("setpriv", "--reuid=gpushared-pool", "--regid=gpushared-pool", "--clear-groups"),
        *(f"{COMMANDS}/gpushared-pool", *words.split()),
    )
    assert second.returncode == 125
    assert f"another coordinator leads with {STATE}/pool.db (process {running.main_pid()})" in second.stderr
    assert running.status()["epoch"] == "1"


def test_root_is_refused(pool: Coordinator) -> None:
    answer = pool.node.machine.run(f"{COMMANDS}/gpushared-pool")
    assert answer.returncode == 2
    assert "needs no rights" in answer.stderr
    assert "systemctl start gpushared-pool" in answer.stderr


def test_reload_takes_over_what_is_right_and_refuses_what_is_wrong(running: Coordinator) -> None:
    daemon = running.main_pid()
    running.node.write(CONFIG, "[queue]\nmax_queued = 5\n")
    running.check("systemctl", "reload", "gpushared-pool")
    running.wait_until("it is taken over", lambda: "configuration reloaded" in running.log())
    running.node.write(CONFIG, "[queue]\nmax_queued = -5\n")
    refused = running.node.machine.run("systemctl", "reload", "gpushared-pool")
    assert refused.returncode != 0
    assert "max_queued must be 0 to" in running.log()
    assert running.main_pid() == daemon
    assert running.status()["pool"] == "lab"


def test_without_a_pool_it_says_how_to_begin_one_and_is_not_tried_again(pool: Coordinator) -> None:
    pool.node.shell(f"rm -rf {STATE}/ca")
    assert pool.node.machine.run("systemctl", "start", "gpushared-pool").returncode != 0
    assert "gpushare pool init NAME" in pool.log()
    assert pool.show("ActiveState") == "failed"
    assert pool.show("NRestarts") == "0"


def test_stop_ends_it_cleanly(running: Coordinator) -> None:
    running.check("systemctl", "stop", "gpushared-pool")
    assert running.show("Result") == "success"
    kept = ["audit.db", "ca", "clock.json", "history.db", "notifications.db", "pool.db", "pool.db.lock"]
    assert running.check("ls", STATE).split() == kept
