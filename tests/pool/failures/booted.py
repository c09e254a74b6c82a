"""Machines with a real systemd: containers in which the package's own units run, and Docker's beside them."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from gpushared.client.api import Client
from gpushared.domain.model.errors import GpushareError
from tests.bed import parts
from tests.bed.machine import Machine
from tests.pool.failures.daemons import ACCOUNT, PERSON, POOL, Json
from tests.pool.failures.engine import remove_cgroups
from tests.pool.failures.evidence import WORK, Diary, Run, overlapping
from tests.pool.failures.machine import wait_until
from tests.systemd.node import COMMANDS, build_wheel, install_package, wheelhouse

GPUS: Final = {"a": "h100:1", "b": "rtx4090:1"}
LIVE_RESTORE: Final = {"a": True, "b": False}
COORDINATOR: Final = "pool"
ENGINE_PROGRAMS: Final = ("dockerd", "containerd", "containerd-shim-runc-v2", "runc")
OVER: Final = {"succeeded", "failed", "cancelled"}

BOOT_ID_UNIT: Final = """
[Unit]
Description=A boot id of its own, which containers have not
DefaultDependencies=no
Before=sysinit.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'cat /proc/sys/kernel/random/uuid >/run/boot_id'
ExecStart=/bin/mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
[Install]
WantedBy=sysinit.target
"""
DOCKER_UNIT: Final = """
[Unit]
Description=Docker, as its packages have it
After=network.target
[Service]
Type=notify
ExecStart=/usr/sbin/dockerd --bridge=none --iptables=false --cgroup-parent=/{group}
ExecReload=/bin/kill -s HUP $MAINPID
Restart=always
RestartSec=1
Delegate=yes
KillMode=process
[Install]
WantedBy=multi-user.target
"""
POOL_CONFIG: Final = """
[coordinator]
listen = "0.0.0.0:7440"
listen_nodes = "0.0.0.0:7441"
[nodes]
beat_seconds = 0.5
settle_seconds = 4
[queue]
stop_grace_seconds = 2
[users.{person}]
principals = {principals}
admin = true
"""
NODE_CONFIG: Final = """
[node]
name = "{name}"
[gpus]
simulate = "{gpus}"
[pool.accounts]
{person} = "{account}"
[gate]
mount_prefixes = ["{shared}", "/here"]
[engine]
stop_grace_seconds = 2
"""


class BootedMachine:
    """One machine, as whoever administers it sees it. ``socket`` is where its daemon is called."""

    def __init__(self, engine: str, name: str, socket: str, flags: tuple[str, ...]) -> None:
        self.name = name
        self.machine = Machine(engine, *flags)
        self._engine = engine
        self._socket = socket
        self._pid = ""

    def wait_until_booted(self) -> None:
        self.machine.wait_until_booted()
        self._pid = self._told("{{.State.Pid}}")

    def shut_down(self, how: str) -> None:
        """By its own systemd: ``reboot`` or ``poweroff``. It stays off until it is booted."""
        self.machine.run("systemctl", how)
        wait_until(lambda: self._told("{{.State.Running}}") == "false", f"{self.name} is off")

    def boot(self) -> None:
        self.machine.start()
        self.wait_until_booted()

    def check(self, *words: str) -> str:
        return self.machine.check(*words)

    def gpushare(self, *words: str) -> str:
        return self.check(f"{COMMANDS}/gpushare", *words)

    def write(self, path: str, text: str) -> None:
        self.check("sh", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$2" >"$1"', "sh", path, text)

    def call(self, call: str, asked: Mapping[str, object] | None = None) -> Json:
        """By JSON, as root, through the file system that the machine has. Raises the errors of the tree."""
        return Client(f"unix:///proc/{self._pid}/root{self._socket}").call(call, dict(asked or {}))

    def show(self, unit: str, what: str) -> str:
        return self.check("systemctl", "show", "--value", "--property", what, unit)

    def main_pid(self, unit: str) -> str:
        return self.show(unit, "MainPID")

    def wait_replaced(self, unit: str, before: str) -> None:
        """Until another process than ``before`` is the unit's, and serves."""

        def is_so() -> bool:
            output = self.check("systemctl", "show", "--property=MainPID,ActiveState", unit).splitlines()
            values = dict(line.split("=", 1) for line in output)
            return values["MainPID"] not in {"0", before} and values["ActiveState"] == "active"

        wait_until(is_so, f"another {unit} serves on {self.name}")

    def log(self) -> str:
        words = ("journalctl", "--unit=gpushared*", "--no-pager", "--lines=60")
        return f"--- {self.name}\n{self.machine.run(*words).stdout}"

    def _told(self, what: str) -> str:
        words = ("inspect", "--format", what, self.machine.container_id)
        return parts.docker(self._engine, *words).stdout.strip()


class BootedPool:
    """A coordinator and two nodes; ``a`` keeps its containers while Docker is restarted, ``b`` does not."""

    def __init__(self, engine: str, mounts: Mapping[Path, str]) -> None:
        self.directory = Path(f"/tmp/gpfs-{secrets.token_hex(3)}")
        self.directory.mkdir()
        self.directory.chmod(0o755)
        self.diary = Diary(self.directory / "shared")
        self._engine = engine
        self._mounts = mounts
        self._submitted: list[str] = []
        self._machines: list[BootedMachine] = []

    def build(self) -> None:
        made = parts.docker(self._engine, "network", "create", self.directory.name)
        assert made.returncode == 0, made.stderr
        (self.directory / "opt").mkdir()
        (self.directory / "wheels").mkdir()
        build_wheel(self.directory / "wheels")
        self.coordinator = self._machine(COORDINATOR, "/run/gpushared-pool/gpushared-pool.sock")
        self.nodes = {name: self._machine(name, "/run/gpushared/gpushared.sock") for name in GPUS}
        with ThreadPoolExecutor(len(self._machines)) as pool:
            engines = [pool.submit(self._prepare_engine, node) for node in self.nodes.values()]
            self.coordinator.wait_until_booted()
            self.coordinator.check("python3", "-m", "venv", "/opt/gpushared")
            install_package(self.coordinator.machine)
            self._begin_pool()
            for engine in engines:
                engine.result()
            list(pool.map(self._begin_node, self.nodes.values()))
        for node in self.nodes:
            self.wait_presence(node, "ready")

    def _machine(self, name: str, socket: str) -> BootedMachine:
        own = self.directory / name
        own.mkdir()
        (own / "name").write_text(name)
        mounts = {
            self.directory / "opt": "/opt/gpushared",
            self.directory / "wheels": "/wheels",
            wheelhouse(): "/wheelhouse",
            self.diary.directory: str(self.diary.directory),
            own: "/here",
            **self._mounts,
        }
        flags = (
            *("--network", self.directory.name, "--network-alias", name, "--hostname", name),
            # Else no engine in it can make a network for its containers, nor systemd give it a boot id.
            *("--security-opt", "systempaths=unconfined", "--volume", "/var/lib/docker"),
            *(f"--volume={source}:{target}" for source, target in mounts.items()),
        )
        self._machines.append(BootedMachine(self._engine, name, socket, flags))
        return self._machines[-1]

    def _begin_pool(self) -> None:
        principals = json.dumps([f"root@{name}" for name in GPUS])
        at = self.coordinator
        at.write("/etc/gpushared/pool.toml", POOL_CONFIG.format(person=PERSON, principals=principals))
        at.check(f"{COMMANDS}/gpushared-pool", "install")
        at.gpushare("pool", "init", POOL)
        at.check("systemctl", "enable", "--now", "gpushared-pool")

    def _prepare_engine(self, node: BootedMachine) -> None:
        node.wait_until_booted()
        node.write("/etc/systemd/system/boot-id.service", BOOT_ID_UNIT)
        unit = DOCKER_UNIT.format(group=self._group(node.name))
        node.write("/etc/systemd/system/docker.service", unit)
        node.write("/etc/docker/daemon.json", json.dumps({"live-restore": LIVE_RESTORE[node.name]}))
        node.check("systemctl", "daemon-reload")
        node.check("systemctl", "enable", "--now", "boot-id", "docker")
        node.check("docker", "import", "--change", 'CMD ["/bin/sh"]', "/busybox.tar", parts.BUSYBOX_IMAGE)

    def _begin_node(self, node: BootedMachine) -> None:
        words = {"name": node.name, "gpus": GPUS[node.name], "person": PERSON, "account": ACCOUNT}
        node.write("/etc/gpushared/config.toml", NODE_CONFIG.format(shared=self.diary.directory, **words))
        node.check(f"{COMMANDS}/gpushared", "install")
        node.check("systemctl", "enable", "--now", "gpushared")
        token = self.coordinator.gpushare("pool", "token", "--node", node.name, "-q")
        join = f'printf %s "$1" | {COMMANDS}/gpushare node join {COORDINATOR} --token-file -'
        node.check("sh", "-c", join, "sh", token)

    def _group(self, node: str) -> str:
        """The cgroup of all containers of a node: the tree is the one of the machine that runs the tests."""
        return f"{self.directory.name}-{node}"

    def dispose(self) -> None:
        for machine in self._machines:
            machine.machine.remove()
        parts.docker(self._engine, "network", "rm", self.directory.name)
        for name in GPUS:
            remove_cgroups(self._group(name))
        shutil.rmtree(self.directory, ignore_errors=True)

    def logs(self) -> str:
        return "\n".join(machine.log() for machine in self._machines)

    # --- jobs ------------------------------------------------------------------------------------------

    def submit(self, node: str, *options: str, through: str = "a") -> str:
        """A job on a third of a GPU of one node, or of any, that works until it is told to end; its id."""
        shared = self.diary.directory
        place = ("--node", node) if node else ()
        self._submitted.append(
            self.nodes[through].gpushare(
                *("submit", "--pool", *place, "--gpu", "0.3", *options),
                *("-v", f"{shared}:{shared}", "-v", "/here:/here:ro"),
                *(parts.BUSYBOX_IMAGE, "sh", "-c", WORK, str(shared), "/here"),
            )
        )
        return self._submitted[-1]

    def running_somewhere(self, *options: str) -> tuple[str, BootedMachine]:
        """A job whose container has begun, and on which node."""
        job = self.running("", *options)
        return job, self.nodes[self.diary.runs(job)[0].node]

    def running(self, node: str, *options: str) -> str:
        """A job whose container has begun; its id."""
        job = self.submit(node, *options)
        self.wait_runs(job, 1)
        self.wait_state(job, "running")
        return job

    def jobs(self) -> dict[str, dict[str, Any]]:
        listed = self.coordinator.call("Jobs/List", {"all": True, "ended": True})
        return {job["id"]: job for job in listed.get("jobs", [])}

    def wait_state(self, job: str, *states: str) -> Json:
        self._wait(lambda: self.jobs()[job]["state"] in states, f"job {job} is {' or '.join(states)}")
        return self.jobs()[job]

    def wait_runs(self, job: str, count: int) -> list[Run]:
        self._wait(lambda: len(self.diary.runs(job)) >= count, f"job {job} began {count} times")
        return self.diary.runs(job)

    def wait_presence(self, node: str, presence: str) -> Json:
        found: Json = {}

        def look() -> bool:
            nodes = self.coordinator.call("Jobs/Nodes").get("nodes", [])
            found.update(next((one for one in nodes if one["name"] == node), {}))
            return bool(found) and found["presence"] == presence

        self._wait(look, f"{node} is {presence}")
        return found

    def is_alive(self, job: str) -> bool:
        """Whether its newest container goes on writing."""
        before = self.diary.runs(job)[-1]
        wait_until(lambda: self.diary.runs(job)[-1].last > before.last, f"job {job} writes on")
        return len(self.diary.runs(job)) == 1

    def _wait(self, look: Callable[[], bool], what: str) -> None:
        """A daemon that is being replaced answers a moment later."""

        def is_so() -> bool:
            try:
                return look()
            except (GpushareError, KeyError):
                return False

        wait_until(is_so, what)

    def judge(self) -> None:
        """Let all work end: nothing was lost, and nothing ran twice at the same time."""
        self.diary.end(*self._submitted)
        self._wait(
            lambda: {self.jobs()[job]["state"] for job in self._submitted} <= OVER, "all jobs are over"
        )
        jobs = self.jobs()
        for job in self._submitted:
            runs = self.diary.runs(job)
            assert not overlapping(runs), f"two copies of {job} ran at the same time: {runs}"
            done = sum(run.ended == "done" for run in runs)
            assert done == (jobs[job]["state"] == "succeeded"), (jobs[job], runs)
        self._submitted.clear()
        for node in self.nodes.values():
            self._wait(lambda node=node: not node.call("Leases/List").get("leases"), f"{node.name} is free")  # type: ignore[misc]
