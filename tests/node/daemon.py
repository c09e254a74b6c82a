"""A real daemon in a process of its own, on temporary directories, and ways to talk to it as any user."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from gpushared.sharing.cgroups import CgroupPlace
from tests.bed import parts
from tests.bed.cgroups import remove_users, users_of
from tests.node import fork_server
from tests.node.fork_server import ForkedDaemon

READY_SECONDS: Final = 60
END_SECONDS: Final = 30
ANSWER_SECONDS: Final = 90
GPUSHARED: Final = Path(sys.executable).with_name("gpushared")
GPUSHARE: Final = Path(sys.executable).with_name("gpushare")
AS_USER: Final = Path(__file__).with_name("as_user.py")

Json = dict[str, Any]


class DaemonFailed(RuntimeError):
    """The daemon did not do what the test needs; its log is in the message."""


class Refused(Exception):
    """A call that the daemon answered with an error."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(f"{status} {body}")
        self.status = status
        self.code: str = body.get("code", "")
        self.message: str = body.get("message", "")
        self.hint: str = "".join(detail.get("hint", "") for detail in body.get("details", ()))


@dataclass
class DaemonProcess:
    """One daemon: its directories outlive its processes, so that it can be killed and started again.

    ``config`` is the text of its configuration file. ``command`` runs it; tests that want a daemon with a
    saboteur inside give another one.
    """

    directory: Path
    simulate: str = "h100:2"
    engine: str = str(parts.PLAIN_SOCKET)
    config: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = (str(GPUSHARED),)

    def __post_init__(self) -> None:
        self.runtime_dir = self.directory / "r"
        self.state_dir = self.directory / "s"
        self.log = self.directory / "log"
        self.socket = self.runtime_dir / "gpushared.sock"
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(self.directory / "n"))
        self.process: subprocess.Popen[bytes] | ForkedDaemon | None = None

    # --- its life ---

    def launch(self, *command: str, piped: bool = False) -> None:
        """Start a process, and do not wait for it. ``piped``: its standard input and output are pipes."""
        assert not self.running, "it runs already"
        path = self.directory / "config.toml"
        path.write_text(self.config)
        self._forget_notifications()
        words, environment = [*(command or self.command), *self.flags()], self._environment()
        with self.log.open("ab") as log:
            if fork_server.can_raise(words, environment):
                self.process = fork_server.start(words, environment, log, piped=piped)
                return
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else log,
                stderr=log,
                env=environment,
            )

    def flags(self) -> list[str]:
        simulate = ["--simulate", self.simulate] if self.simulate else []
        return [
            *("--config", str(self.directory / "config.toml"), *simulate),
            *("--runtime-dir", str(self.runtime_dir), "--state-dir", str(self.state_dir)),
            *("--engine", self.engine, "--log-level", "debug"),
        ]

    def start(self) -> None:
        """Start it, and come back when it says that it is ready."""
        self.launch()
        self.wait_notified("READY=1")

    def wait_notified(self, line: str) -> None:
        """Wait until it sends this line to its service manager."""
        self._notify.settimeout(0.1)
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                if line in self._notify.recv(4096).decode().splitlines():
                    return
            except TimeoutError:
                if self.running and time.monotonic() < deadline:
                    continue
                raise DaemonFailed(f"no {line} came:\n{self.text()[-3000:]}") from None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """As a crash, or ``kill -9``."""
        self.signal(signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        """As ``systemctl stop``; the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit status, negative when a signal ended it."""
        assert self.process is not None
        try:
            return self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise DaemonFailed(f"it does not end:\n{self.text()[-3000:]}") from None

    def restart(self) -> None:
        self.terminate()
        self.start()

    def text(self) -> str:
        """Its log, of all lives."""
        return self.log.read_text() if self.log.exists() else ""

    def dispose(self) -> None:
        """End it and what it left running, and delete its files."""
        if self.running:
            self.kill()
        self._notify.close()
        fork_server.check_nothing_left_open(self.log)
        remove_containers(self.engine, self._leftovers())
        remove_users(self.users)
        for pid_file in self.runtime_dir.glob("mps/*"):
            end_processes_naming(pid_file)
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def users(self) -> CgroupPlace:
        return users_of(self.state_dir)

    def _leftovers(self) -> list[str]:
        label = f"label={OWN_LABEL}={self.directory.name}"
        listed = parts.docker(self.engine, "ps", "--all", "--quiet", "--no-trunc", "--filter", label)
        return listed.stdout.split()

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GPUSHARE")}
        return {**inherited, "NOTIFY_SOCKET": str(self.directory / "n"), **self.environment}

    def _forget_notifications(self) -> None:
        self._notify.setblocking(False)
        try:
            while self._notify.recv(4096):
                pass
        except BlockingIOError:
            pass

    # --- talking to it ---

    def call(self, name: str, message: Mapping[str, Any] | None = None, *, uid: int = 0) -> Json:
        """One unary JSON call, such as ``Leases/Get``, as this user. Raises ``Refused``, ``OSError``."""
        status, body = self.post(f"/gpushare.v1.{name}", json.dumps(message or {}).encode(), uid=uid)
        answer: Json = json.loads(body)
        if status != 200:
            raise Refused(status, answer)
        return answer

    def post(self, path: str, body: bytes, *, uid: int = 0) -> tuple[int, bytes]:
        """Any POST, and its whole answer."""
        with connected(self.socket, uid) as channel:
            head = (
                f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            # It may be refused before it was all sent; the answer says why.
            with contextlib.suppress(BrokenPipeError):
                channel.sendall(head.encode() + body)
            answer = b"".join(iter(lambda: channel.recv(65536), b""))
        if not answer:
            raise ConnectionResetError("the daemon hung up")
        first, _, rest = answer.partition(b"\r\n\r\n")
        return int(first.split()[1]), rest

    def metrics(self, *, uid: int = 0, accept: str = "") -> str:
        """The page of metrics on its socket, as this user."""
        with connected(self.socket, uid) as channel:
            head = f"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: {accept}\r\n\r\n"
            channel.sendall(head.encode())
            answer = b"".join(iter(lambda: channel.recv(65536), b""))
        first, _, page = answer.partition(b"\r\n\r\n")
        assert first.split()[1] == b"200", answer
        return page.decode()

    def request(self, gpu: str, *, uid: int = 0, **fields: Any) -> Json:
        return self.call("Leases/Request", {"gpu": gpu, **fields}, uid=uid)

    def lease(self, lease_id: str) -> Json:
        return self.call("Leases/Get", {"lease_id": lease_id})

    def leases(self) -> dict[str, Json]:
        """Those that are not over, by id."""
        return {lease["id"]: lease for lease in self.call("Leases/List")["leases"]}

    def story(self, lease_id: str) -> list[str]:
        """The sentences of the lease's story."""
        return [entry["text"] for entry in self.call("Leases/Explain", {"lease_id": lease_id})["story"]]

    def troubles(self) -> str:
        """What ``gpushare gpus`` says is wrong with the parts, a line each."""
        return "\n".join(self.call("Gpus/List")["troubles"])

    def wait_lease(self, lease_id: str, *states: str) -> Json:
        """Wait, by the daemon's own long poll, until the lease is in one of these states."""
        token, deadline = "", time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            asked = {"lease_id": lease_id, "token": token, "timeout_seconds": 5}
            lease = self.call("Leases/Wait", asked)
            if lease["state"] in states:
                return lease
            token = lease["token"]
        raise DaemonFailed(f"lease is {lease['state']}, not {states}:\n{self.text()[-3000:]}")

    def free_permille(self) -> list[int]:
        """The free compute of each GPU, by index."""
        return [gpu["compute_free_permille"] for gpu in self.call("Gpus/List")["gpus"]]

    # --- the command ---

    def gpushare(self, *words: str, stdin: str = "", uid: int = 0) -> subprocess.CompletedProcess[str]:
        """The command ``gpushare``, as this user; as an administrator if none is named."""
        return subprocess.run(
            [sys.executable, str(AS_USER), str(uid), *words] if uid else [str(GPUSHARE), *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.client_environment(),
        )

    def client_environment(self) -> dict[str, str]:
        """The variables of a command that talks to it, from the code that is tested."""
        named = {"PYTHONPATH": os.environ["PYTHONPATH"]} if os.environ.get("PYTHONPATH") else {}
        return {
            **named,
            "PATH": f"{parts.DOCKER.parent}:{os.environ['PATH']}",
            "HOME": "/tmp",
            "DOCKER_CONFIG": "/nonexistent",
            "GPUSHARE_HOST": f"unix://{self.socket}",
        }

    def gpushare_says(self, *words: str) -> str:
        """What it printed, stripped; fails the test where it fails."""
        done = self.gpushare(*words)
        if done.returncode:
            raise DaemonFailed(f"gpushare {' '.join(words)}: {done.stderr.strip()}\n{self.text()[-3000:]}")
        return done.stdout.strip()

    # --- containers through it ---

    def docker(
        self, *words: str, uid: int = 0, timeout_seconds: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """The docker CLI through the daemon's gate, as this user."""
        command = [str(parts.DOCKER.resolve()), "-H", f"unix://{self.socket}", *words]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
            env={"PATH": os.environ["PATH"], "HOME": "/tmp", "DOCKER_CONFIG": "/nonexistent"},
            user=uid,
            group=uid,
            extra_groups=[],
        )

    def check(self, *words: str, uid: int = 0) -> str:
        """What the docker CLI printed, stripped; fails the test where it fails."""
        done = self.docker(*words, uid=uid)
        if done.returncode:
            raise DaemonFailed(f"docker {' '.join(words)}: {done.stderr.strip()}\n{self.text()[-3000:]}")
        return done.stdout.strip()

    def run_container(self, *options: str, command: Sequence[str] = ("sleep", "1000"), uid: int = 0) -> str:
        """``docker run -d`` through the gate; the container's id."""
        return self.check("run", "-d", *self.container_options(*options), *command, uid=uid)

    def create_container(
        self, *options: str, command: Sequence[str] = ("sleep", "1000"), uid: int = 0
    ) -> str:
        return self.check("create", *self.container_options(*options), *command, uid=uid)

    def container_options(self, *options: str) -> list[str]:
        mark = f"{OWN_LABEL}={self.directory.name}"
        return ["--network", "none", "--stop-timeout", "0", "--label", mark, *options, parts.BUSYBOX_IMAGE]

    def hold(self, gpu: str, *options: str, uid: int = 0, command: Sequence[str] = ("sleep", "1000")) -> Json:
        """A lease whose container runs."""
        lease = self.request(gpu, uid=uid)
        container = self.run_container(
            *("--label", f"gpushare.lease={lease['id']}", *options), uid=uid, command=command
        )
        lease = self.wait_lease(lease["id"], "active")
        assert lease["container_id"] == container
        return lease

    def container(self, container: str) -> Json:
        """What the engine itself says of a container."""
        shown = parts.docker(self.engine, "inspect", container)
        found: list[Json] = json.loads(shown.stdout)
        assert found, f"there is no container {container}"
        return found[0]

    def pid_of(self, container: str) -> int:
        return int(self.container(container)["State"]["Pid"])


OWN_LABEL: Final = "gpushared-test"
"""By which a test finds the containers that it must remove."""


@contextmanager
def connected(path: Path, uid: int) -> Iterator[socket.socket]:
    """A connection whose peer the kernel says is ``uid``: it notes the effective user at the connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(ANSWER_SECONDS)
        with acting_as(uid):
            channel.connect(str(path))
        yield channel


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """This whole process for a moment: not for tests with threads that touch files meanwhile."""
    if uid == 0:
        yield
        return
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def remove_containers(engine: str, containers: Sequence[str]) -> None:
    if containers:
        parts.docker(engine, "rm", "--force", "--volumes", *containers)


def end_processes_naming(path: Path) -> None:
    """Kill what has this directory as its MPS pipe directory; a daemon that was killed could not."""
    for process in psutil.process_iter():
        try:
            if process.name().startswith("nvidia-cuda-mps") and any(
                str(path) in value for value in process.environ().values()
            ):
                process.kill()
        except psutil.Error:
            continue


def make_directory() -> Path:
    """Short, because socket paths are; open, because other users must reach the socket in it."""
    directory = Path(tempfile.mkdtemp(prefix="gpd-", dir="/tmp"))
    directory.chmod(0o755)
    return directory


def name() -> str:
    """A name for a container that nobody else uses."""
    return f"gpd-{secrets.token_hex(4)}"


def wait_until(look: Callable[[], object], what: str, seconds: float = END_SECONDS) -> None:
    """Wait for something that nothing announces."""
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, f"it never came that {what}"
        time.sleep(0.02)
