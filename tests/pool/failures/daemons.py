"""A pool's coordinator, and its nodes, each on a machine of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from gpushared.client.api import Client
from gpushared.domain.model.errors import GpushareError
from gpushared.jobs.job_search import MAX_LISTED
from tests.pool.failures.engine import Engine
from tests.pool.failures.machine import BrokenBed, Machine, Program, wait_until

POOL: Final = "lab"
PERSON: Final = "demo"
ACCOUNT: Final = "nobody"
STOP_GRACE_SECONDS: Final = 2
BEAT_SECONDS: Final = 0.5
SETTLE_SECONDS: Final = 4

Json = dict[str, Any]


class Coordinator:
    """One coordinator; ``pool`` is made when it starts first."""

    def __init__(self, machine: Machine, nodes: tuple[str, ...]) -> None:
        self.machine = machine
        self.state_dir = machine.directory / "state"
        self.socket = machine.runtime / "gpushared-pool.sock"
        self.program: Program | None = None
        self._config = machine.directory / "pool.toml"
        self._nodes = nodes

    @property
    def store(self) -> Path:
        return self.state_dir / "pool.db"

    @property
    def address(self) -> str:
        return self.machine.address

    def start(self, *command: str) -> None:
        """Come back when it serves. ``command`` runs it, where it is another one than the real one."""
        self._config.write_text(self._text())
        if not self.state_dir.exists():
            self.machine.run(
                "gpushare", "pool", "init", "--config", str(self._config), "--user", "root", POOL
            )
        self.launch(*command)
        wait_until(self.serves, "the coordinator serves")

    def launch(self, *command: str) -> None:
        words = command or ("gpushared-pool",)
        self.program = self.machine.start(
            *words, "--config", str(self._config), "--allow-root", log="coordinator.log", clocked=True
        )

    def serves(self) -> bool:
        assert self.program is not None
        if not self.program.running:
            raise BrokenBed(f"the coordinator ended:\n{self.program.tail()}")
        try:
            self.status()
        except GpushareError:
            return False
        return True

    def kill(self) -> None:
        assert self.program is not None
        self.program.kill()

    def stop(self) -> None:
        assert self.program is not None
        self.program.end(signal.SIGTERM)

    def restart(self) -> None:
        """By the real command, whichever ran before."""
        assert self.program is not None
        if self.program.running:
            self.stop()
        self.start()

    def admin(self, *words: str) -> str:
        """``gpushare``, as root types it on the coordinator's machine."""
        return self.machine.run("gpushare", *words).stdout

    def status(self) -> Json:
        return self.call("PoolAdmin/Status")

    def call(self, call: str, asked: Mapping[str, object] | None = None) -> Json:
        """By JSON, as root. Raises the errors of the tree."""
        return Client(f"unix://{self.socket}").call(call, dict(asked or {}))

    def jobs(self) -> dict[str, Json]:
        """All that it knows, those that are over too.

        Tests move its clock, so that the newest are not always the last.
        """
        listed = self.call("Jobs/List", {"all": True, "ended": True, "limit": MAX_LISTED})
        return {job["id"]: job for job in listed.get("jobs", [])}

    def nodes(self) -> dict[str, Json]:
        return {node["name"]: node for node in self.call("Jobs/Nodes").get("nodes", [])}

    def _text(self) -> str:
        principals = json.dumps([f"root@{name}" for name in self._nodes])
        return f"""
[coordinator]
listen = "{self.address}:7440"
listen_nodes = "{self.address}:7441"
state_dir = "{self.state_dir}"
runtime_dir = "{self.machine.runtime}"

[nodes]
beat_seconds = {BEAT_SECONDS}
settle_seconds = {SETTLE_SECONDS}

[queue]
stop_grace_seconds = {STOP_GRACE_SECONDS}

[users.{PERSON}]
principals = {principals}
admin = true

[log]
level = "info"
"""


def _is_guard(process: psutil.Process, place: str) -> bool:
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        return len(words) > 1 and words[-2].endswith("guard/program.py") and words[-1] == place
    return False


class Node:
    """A machine of the pool: its engine and its daemon."""

    def __init__(self, machine: Machine, simulate: str, shared: Path) -> None:
        self.machine = machine
        self.simulate = simulate
        self.engine = Engine(machine)
        self.socket = machine.runtime / "gpushared.sock"
        self.state_dir = machine.directory / "state"
        self.program: Program | None = None
        self.coordinator = ""
        """Where its configuration says that the coordinator is; empty is where it joined."""
        self._shared = shared
        self._config = machine.directory / "config.toml"

    @property
    def name(self) -> str:
        return self.machine.name

    def boot(self) -> None:
        """The machine, its engine, its daemon, as at a boot."""
        self.machine.boot()
        self.engine.start()
        self.start()

    def start(self, *command: str) -> None:
        """``command`` runs the daemon, where it is another one than the real one."""
        self._config.write_text(self._text())
        self.program = self.machine.start(
            *(command or ("gpushared",)),
            *("--config", str(self._config), "--simulate", self.simulate),
            *("--runtime-dir", str(self.machine.runtime), "--state-dir", str(self.state_dir)),
            *("--engine", str(self.engine.socket), "--log-level", "info"),
            log="gpushared.log",
            clocked=True,
        )
        wait_until(self.serves, f"{self.name} serves")

    def serves(self) -> bool:
        assert self.program is not None
        if not self.program.running:
            raise BrokenBed(f"{self.name} ended:\n{self.program.tail()}")
        try:
            self.call("Leases/List")
        except GpushareError:
            return False
        return True

    def kill(self) -> None:
        assert self.program is not None
        self.program.kill()

    def stop(self) -> None:
        assert self.program is not None
        self.program.end(signal.SIGTERM)

    def restart(self, *command: str) -> None:
        if self.program is not None and self.program.running:
            self.stop()
        self.start(*command)

    def guard(self) -> int | None:
        """The process that guards fenced containers, if there is one, by its number outside."""
        place = str(self.machine.runtime / "guard")
        return next((one.pid for one in psutil.process_iter() if _is_guard(one, place)), None)

    def reload(self) -> None:
        assert self.program is not None
        os.kill(self.program.pid, signal.SIGHUP)

    def gpushare(
        self, *words: str, check: bool = True, given: str | None = None, retry_seconds: int = 30
    ) -> str:
        """What the command prints, as root types it on this machine: both streams."""
        settings = (f"GPUSHARE_HOST=unix://{self.socket}", f"GPUSHARE_RETRY_SECONDS={retry_seconds}")
        done = self.machine.run("env", *settings, "gpushare", *words, check=check, given=given)
        return done.stdout + done.stderr

    def call(self, call: str, asked: Mapping[str, object] | None = None) -> Json:
        """By JSON, as root. Raises the errors of the tree."""
        return Client(f"unix://{self.socket}").call(call, dict(asked or {}))

    def leases(self) -> dict[str, Json]:
        return {lease["id"]: lease for lease in self.call("Leases/List").get("leases", [])}

    def join(self, coordinator: Coordinator, token: str | None = None) -> str:
        """By the commands that an administrator types."""
        words = token or coordinator.admin("pool", "token", "--node", self.name, "-q")
        return self.gpushare("node", "join", coordinator.address, "--token-file", "-", given=words)

    def join_anew(self, coordinator: Coordinator) -> None:
        """After its certificate was revoked."""
        self.gpushare("node", "leave")
        self.join(coordinator)

    def _text(self) -> str:
        return f"""
[node]
name = "{self.name}"

[pool]
coordinator = "{self.coordinator}"

[pool.accounts]
{PERSON} = "{ACCOUNT}"

[gate]
mount_prefixes = ["{self._shared}", "{self.machine.here}"]

[engine]
stop_grace_seconds = {STOP_GRACE_SECONDS}

[queue]
preemption = "off"
"""
