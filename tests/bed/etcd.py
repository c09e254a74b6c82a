"""Real members of etcd on loopback addresses of their own, which a test may kill, stop and let go on."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.bed.parts import ETCD

SECONDS: Final = 20
CLIENT_PORT, PEER_PORT = 2379, 2380
SLOW_DISK: Final = Path(__file__).with_name("slow_disk.c")
_NET = secrets.randbelow(200) + 20, secrets.randbelow(250)
"""Two parts of the addresses of this run: other runs take others."""
_HOSTS = itertools.count(1)


@dataclass
class EtcdMember:
    name: str
    host: str
    folder: Path
    words: Sequence[str]
    scheme: str = "http"
    before: Sequence[str] = ()
    """The words of a program that starts etcd."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{CLIENT_PORT}"

    @property
    def client_url(self) -> str:
        return f"{self.scheme}://{self.endpoint}"

    @property
    def peer_url(self) -> str:
        return f"http://{self.host}:{PEER_PORT}"

    def start(self) -> None:
        """It serves a little later, when it has found the others."""
        with (self.folder / f"{self.name}.log").open("ab") as log:
            words = [
                *self.before,
                str(ETCD / "etcd"),
                f"--name={self.name}",
                f"--data-dir={self.folder}/{self.name}",
                f"--listen-client-urls={self.client_url}",
                f"--advertise-client-urls={self.client_url}",
                f"--listen-peer-urls={self.peer_url}",
                f"--initial-advertise-peer-urls={self.peer_url}",
                *self.words,
            ]
            environ = {name: value for name, value in os.environ.items() if not name.startswith("ETCD")}
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env=environ)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.send_signal(signal.SIGCONT)
            self.process.wait(SECONDS)

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    @property
    def disk(self) -> Path:
        return self.folder / f"{self.name}.disk"

    def slow_down(self, flush_seconds: float) -> None:
        """Each flush of its disk takes longer by this, at once and until it is called again.

        Its cluster was made with ``disks_may_be_slow``.
        """
        with self.disk.open("r+b") as file:
            file.write(struct.pack("d", flush_seconds))


@dataclass
class EtcdCluster:
    """Members that elect a leader faster than etcd's default, so that tests wait less."""

    folder: Path
    count: int = 1
    flags: Sequence[str] = ()
    scheme: str = "http"
    ctl_flags: Sequence[str] = ()
    disks_may_be_slow: bool = False
    hosts: Sequence[str] = ()
    """Addresses instead of loopback ones, one for each member."""
    members: list[EtcdMember] = field(default_factory=list)

    def __post_init__(self) -> None:
        first, second = _NET
        hosts = self.hosts or [f"127.{first}.{second}.{next(_HOSTS)}" for _ in range(self.count)]
        self.members = [
            EtcdMember(f"m{number}", host, self.folder, [], self.scheme) for number, host in enumerate(hosts)
        ]
        cluster = ",".join(f"{one.name}={one.peer_url}" for one in self.members)
        for member in self.members:
            member.words = [
                f"--initial-cluster={cluster}",
                "--initial-cluster-state=new",
                "--heartbeat-interval=50",
                "--election-timeout=500",
                *self.flags,
            ]
            if self.disks_may_be_slow:
                member.disk.write_bytes(struct.pack("d", 0.0))
                member.before = [str(_slow_disk(self.folder)), str(member.disk)]

    def start(self) -> EtcdCluster:
        for member in self.members:
            member.start()
        self.wait_until_healthy()
        return self

    def wait_until_healthy(self) -> None:
        until = time.monotonic() + SECONDS
        while self._ctl("endpoint", "health").returncode:
            assert time.monotonic() < until, self.log()
            time.sleep(0.05)

    def ctl(self, *words: str, stdin: str = "") -> str:
        """What etcdctl prints."""
        done = self._ctl(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def leader(self) -> EtcdMember:
        """The member that leads etcd."""
        until = time.monotonic() + SECONDS
        while True:
            for line in self._ctl("endpoint", "status").stdout.splitlines():
                endpoint, _, _, _, leads, *_ = line.split(", ")
                if leads == "true":
                    return next(one for one in self.members if endpoint.endswith(one.endpoint))
            assert time.monotonic() < until, self.log()

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def log(self) -> str:
        return "\n".join((self.folder / f"{one.name}.log").read_text()[-2000:] for one in self.members)

    def dispose(self) -> None:
        for member in self.members:
            member.kill()

    def _ctl(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        environ = {"PATH": os.environ["PATH"], "ETCDCTL_API": "3"}
        endpoints = ",".join(member.client_url for member in self.members)
        command = [str(ETCD / "etcdctl"), f"--endpoints={endpoints}", *self.ctl_flags, *words]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=SECONDS, env=environ, check=False
        )


def _slow_disk(folder: Path) -> Path:
    """What makes the flushes of a program slow, compiled once."""
    program = folder / "slow_disk"
    if not program.exists():
        subprocess.run(["gcc", "-O1", "-o", str(program), str(SLOW_DISK)], check=True, capture_output=True)
    return program
