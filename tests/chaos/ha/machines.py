"""The pool of scripts/quickstart with its store in an etcd of three members, and a coordinator beside each.

A coordinator and a member of etcd share a machine, as the page on high availability has it; what is cut is cut
by addresses and ports, so that each direction between any two of them can fail by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gpushared.client.api import Client
from gpushared.domain.model.errors import GpushareError
from tests.bed import parts
from tests.chaos.ha.disks import Disk, remove_groups
from tests.chaos.ha.plan import HOSTS, Way
from tests.chaos.machines import HarnessError, Json, Machines, Service, run_command
from tests.chaos.plan import NODES
from tests.web.certificates import CertificateMaker

CLIENT_PORT: Final = 2379
MEMBER_PORT: Final = 2380
USERS_PORT: Final = 7440
NODES_PORT: Final = 7441
PREFIX: Final = "/gpushare/lab/"
CALL_SECONDS: Final = 5.0
"""A status waits for each member of etcd, half as long."""
CTL_SECONDS: Final = 5.0
READY_SECONDS: Final = 60.0
FIRST_ADDRESS: Final = 21

_OUTWARD: Final = frozenset({Way.OUT, Way.TO_ETCD, Way.TO_NODES, Way.TO_MEMBERS, Way.TO_CLIENTS})

Rule = tuple[str, tuple[str, ...]]
"""The machine where packets are dropped as they come in, and which."""


class HaMachines(Machines):
    """``coordinators``: on so many of the three hosts is one."""

    def __init__(self, number: int, cache: Path, coordinators: int = len(HOSTS)) -> None:
        super().__init__(number, cache)
        self.coordinators = HOSTS[:coordinators]
        self._certificates = self.state / "certificates"
        self.disks = {
            name: Disk(self.state / f"{name}.img", self._disk_folder(name), self.name)
            for name in (*HOSTS, *NODES)
        }

    # --- the begin and the end

    def start(self) -> None:
        super().start()
        self._end_first_coordinator()
        for host in HOSTS:
            self._make_host(host)
        self._certify()
        for host in HOSTS:
            self._start_member(host)
        _wait(self._is_etcd_healthy, "etcd is healthy")
        self._move_store()
        for host in self.coordinators:
            self._start_coordinator(host)
        _wait(lambda: self.leader() is not None, "a coordinator leads")
        for node in NODES:
            self._point_to_coordinators(node)
        _wait(self.are_nodes_ready, "all nodes are linked")

    def clear(self) -> None:
        super().clear()
        remove_groups(self.name)

    def _mount_disks(self) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        for disk in self.disks.values():
            disk.mount()

    def _disk_folder(self, name: str) -> Path:
        return self.state / name if name in HOSTS else self.state / name / "state"

    def _end_first_coordinator(self) -> None:
        self._first = self.services.pop("coordinator")
        self._first.signal(signal.SIGTERM)
        _wait(lambda: not self._first.runs, "the first coordinator ends")

    def _make_host(self, host: str) -> None:
        """A machine behind the same switch, as the script makes those of the nodes."""
        namespace, hub = self._net(host), f"{self.name}-pool-hub"
        run_command("ip", "netns", "add", namespace)
        run_command("ip", "-n", namespace, "link", "set", "dev", "lo", "up")
        link = ["link", "add", "name", host, "type", "veth", "peer", "name", "eth0", "netns", namespace]
        run_command("ip", "-n", hub, *link)
        run_command("ip", "-n", hub, "link", "set", "dev", host, "master", "switch", "up")
        run_command("ip", "-n", namespace, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        run_command("ip", "-n", namespace, "link", "set", "dev", "eth0", "up")

    def _certify(self) -> None:
        self._certificates.mkdir()
        maker = CertificateMaker(self._certificates)
        maker.server("etcd", *(self.address(host) for host in HOSTS), "localhost")
        maker.client("pool")
        os.chown(self._certificates / "pool.key", self._first.uid, self._first.gid)

    def _start_member(self, host: str) -> None:
        client, peer = (
            f"https://{self.address(host)}:{CLIENT_PORT}",
            f"http://{self.address(host)}:{MEMBER_PORT}",
        )
        cluster = ",".join(f"{one}=http://{self.address(one)}:{MEMBER_PORT}" for one in HOSTS)
        words = [
            *(str(parts.ETCD / "etcd"), f"--name={host}", f"--data-dir={self.state}/{host}/etcd"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            *(f"--initial-cluster={cluster}", "--initial-cluster-state=new"),
            *(f"--cert-file={self._certificates}/etcd.pem", f"--key-file={self._certificates}/etcd.key"),
            *("--client-cert-auth", f"--trusted-ca-file={self._certificates}/authority.pem"),
        ]
        self._start_on(f"etcd-{host}", words, {"PATH": self.environ["PATH"]}, uid=0, gid=0)

    def _move_store(self) -> None:
        """By the command that an administrator types, as the coordinator's user."""
        config = self.state / "pool.toml"
        with config.open("a") as file:
            file.write(self._store_section(""))
        words = ["gpushared-pool", "--config", str(config), "store", "migrate", "--to", self._store_url()]
        become = [f"--reuid={self._first.uid}", f"--regid={self._first.gid}", "--clear-groups"]
        run_command(
            *("nsenter", f"--net=/run/netns/{self.name}-pool-hub", "setpriv", *become, *words),
            environ=self._first.environ,
        )

    def _start_coordinator(self, host: str) -> None:
        folder, runtime = self.state / host / "coordinator", self.run_dir / host
        shutil.copytree(self.state / "coordinator/ca", folder / "ca")
        runtime.mkdir()
        for path in (self.state / host, folder, runtime, *folder.rglob("*")):
            os.chown(path, self._first.uid, self._first.gid)
        config = self.state / f"{host}.toml"
        config.write_text(self._config_of(host))
        words = [self._first.words[0], self._first.words[1], "--config", str(config)]
        words += ["--allow-root"] if "--allow-root" in self._first.words else []
        self._start_on(
            f"coordinator-{host}", words, self._first.environ, uid=self._first.uid, gid=self._first.gid
        )

    def _config_of(self, host: str) -> str:
        """The first coordinator's, with its own places and address."""
        text = (self.state / "pool.toml").read_text().partition("[store]")[0]
        own = {
            "advertise": self.address(host),
            "listen": f"{self.address(host)}:{USERS_PORT}",
            "listen_nodes": f"{self.address(host)}:{NODES_PORT}",
            "state_dir": f"{self.state}/{host}/coordinator",
            "runtime_dir": f"{self.run_dir}/{host}",
        }
        for key, value in own.items():
            text = re.sub(rf"^{key} = .*$", f'{key} = "{value}"', text, flags=re.MULTILINE)
        return text + self._store_section(self._store_url())

    def _store_section(self, url: str) -> str:
        files = {"ca_file": "authority.pem", "cert_file": "pool.pem", "key_file": "pool.key"}
        lines = [f'{key} = "{self._certificates}/{name}"' for key, name in files.items()]
        return "\n".join(["[store]", f'url = "{url}"', f'prefix = "{PREFIX}"', *lines, ""])

    def _store_url(self) -> str:
        return "etcd://" + ",".join(f"{self.address(host)}:{CLIENT_PORT}" for host in HOSTS)

    def _start_on(
        self, target: str, words: list[str], environ: dict[str, str], *, uid: int, gid: int
    ) -> None:
        host = target.rpartition("-")[2]
        service = Service(
            target, words, environ, self._net(host), uid, gid,
            self.state / f"{target}.log", self.run_dir / f"{target}.pid", 0,
        )  # fmt: skip
        self.services[target] = service
        service.start()

    def _point_to_coordinators(self, node: str) -> None:
        """The node's administrator names them in its configuration, and starts its daemon again."""
        config = self.state / node / "config.toml"
        listed = ",".join(f"{self.address(host)}:{NODES_PORT}" for host in self.coordinators)
        config.write_text(f'{config.read_text()}\n[pool]\ncoordinator = "{listed}"\n')
        service = self.services[f"daemon-{node}"]
        service.signal(signal.SIGTERM)
        _wait(lambda: not service.runs, f"the daemon of {node} ends")
        service.start()
        _wait(lambda: self.serves(service.target), f"the daemon of {node} serves")

    # --- asking

    def address(self, name: str) -> str:
        last = FIRST_ADDRESS + HOSTS.index(name) if name in HOSTS else 11 + NODES.index(name)
        return f"10.232.{self.number}.{last}"

    def coordinator_socket(self) -> Path:
        """The socket of who leads, or of the first one."""
        return self.socket_of(self.leader() or self.coordinators[0])

    def socket_of(self, host: str) -> Path:
        return self.run_dir / host / "gpushared-pool.sock"

    def ask(self, host: str, call: str, asked: Mapping[str, object] | None = None) -> Json:
        """One coordinator, by JSON. Raises the errors of the tree."""
        return Client(f"unix://{self.socket_of(host)}").call(call, dict(asked or {}), CALL_SECONDS)

    def leader(self) -> str | None:
        """The host whose coordinator leads, by what etcd has."""
        pids = {self.services[f"coordinator-{host}"].pid: host for host in self.coordinators}
        with contextlib.suppress(HarnessError):
            found = re.search(r"process (\d+)", self.ctl("get", f"{PREFIX}leader", "--print-value-only"))
            return pids.get(int(found[1])) if found else None
        return None

    def etcd_leader(self) -> str | None:
        """The host whose member leads etcd, by the first that answers; a member without a leader names none."""
        members = {}
        for host in HOSTS:
            with contextlib.suppress(HarnessError):
                output = json.loads(self.ctl("endpoint", "status", "--write-out=json", hosts=(host,)))[0][
                    "Status"
                ]
                members[output["header"]["member_id"]] = host
                if output.get("leader") in members:
                    return members[output["leader"]]
        return None

    def ctl(self, *words: str, hosts: tuple[str, ...] = HOSTS) -> str:
        """What etcdctl prints. Raises HarnessError."""
        endpoints = ",".join(f"https://{self.address(host)}:{CLIENT_PORT}" for host in hosts)
        folder = self._certificates
        tls = [f"--cacert={folder}/authority.pem", f"--cert={folder}/pool.pem", f"--key={folder}/pool.key"]
        bounds = ["--dial-timeout=1s", "--command-timeout=2s"]
        environ = {"PATH": self.environ["PATH"], "ETCDCTL_API": "3"}
        command = [str(parts.ETCD / "etcdctl"), f"--endpoints={endpoints}", *tls, *bounds, *words]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=CTL_SECONDS, env=environ, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise HarnessError("etcdctl does not end") from error
        if done.returncode:
            raise HarnessError(f"etcdctl {words}: {done.stderr[-300:]}")
        return done.stdout

    def serves(self, target: str) -> bool:
        part, _, name = target.partition("-")
        if part == "etcd":
            with contextlib.suppress(HarnessError):
                return bool(self.ctl("endpoint", "status", hosts=(name,)))
            return False
        if part == "coordinator":
            with contextlib.suppress(GpushareError):
                return bool(self.ask(name, "PoolAdmin/Status"))
            return False
        return super().serves(target)

    def are_nodes_ready(self) -> bool:
        """Whether the coordinator that leads has all nodes."""
        leader = self.leader()
        if leader is None:
            return False
        with contextlib.suppress(GpushareError):
            nodes = self.ask(leader, "Jobs/Nodes").get("nodes", [])
            return {node["name"]: node["presence"] for node in nodes} == dict.fromkeys(NODES, "ready")
        return False

    def _is_etcd_healthy(self) -> bool:
        with contextlib.suppress(HarnessError):
            self.ctl("endpoint", "health")
            return True
        return False

    # --- failing and healing

    def cut(self, rules: list[Rule]) -> None:
        """Drop what comes in at these machines from now on."""
        for name, words in rules:
            self._iptables(name, "--append", words)

    def mend(self, rules: list[Rule]) -> None:
        for name, words in rules:
            self._iptables(name, "--delete", words)

    def _iptables(self, name: str, do: str, words: tuple[str, ...]) -> None:
        inside = ("nsenter", f"--net=/run/netns/{self._net(name)}", "iptables", "--wait")
        run_command(*inside, do, "INPUT", *words, "--jump", "DROP")

    def rules(self, name: str, way: Way) -> list[Rule]:
        """What is dropped where, so that one machine is cut off in one direction."""
        pairs = [(peer, name) if way in _OUTWARD else (name, peer) for peer in _peers(name, way)]
        return [
            (place, ("--source", self.address(source), *packets))
            for place, source in pairs
            for packets in _packets(way)
        ]


def _peers(name: str, way: Way) -> list[str]:
    """From or to whom; a coordinator reaches the member on its own machine by that one's address, too."""
    match way:
        case Way.OUT | Way.IN:
            return [one for one in (*HOSTS, *NODES) if one != name]
        case Way.TO_NODES | Way.FROM_NODES:
            return list(NODES)
        case Way.TO_MEMBERS | Way.FROM_MEMBERS:
            return [host for host in HOSTS if host != name]
        case Way.TO_ETCD | Way.FROM_ETCD | Way.TO_CLIENTS | Way.FROM_CLIENTS:
            return list(HOSTS)


def _packets(way: Way) -> list[tuple[str, ...]]:
    """Which of the packets that come in on that way."""
    match way:
        case Way.OUT | Way.IN:
            return [()]
        case Way.TO_ETCD | Way.FROM_CLIENTS:
            return [_to(CLIENT_PORT)]
        case Way.FROM_ETCD | Way.TO_CLIENTS:
            return [_reply_of(CLIENT_PORT)]
        case Way.TO_NODES:
            return [_reply_of(USERS_PORT, NODES_PORT)]
        case Way.FROM_NODES:
            return [_to(USERS_PORT, NODES_PORT)]
        case Way.TO_MEMBERS | Way.FROM_MEMBERS:
            return [_to(MEMBER_PORT), _reply_of(MEMBER_PORT)]


def _to(first: int, last: int | None = None) -> tuple[str, ...]:
    return ("--protocol", "tcp", "--destination-port", f"{first}:{last or first}")


def _reply_of(first: int, last: int | None = None) -> tuple[str, ...]:
    return ("--protocol", "tcp", "--source-port", f"{first}:{last or first}")


def _wait(look: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + READY_SECONDS
    while not look():
        if time.monotonic() > until:
            raise HarnessError(f"it never came that {what}")
        time.sleep(0.2)
