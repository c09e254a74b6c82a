"""One machine under attack: an engine, a daemon, a user who is attacked, and one who attacks."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from gpushared.ports import CgroupDriver
from tests.bed import parts
from tests.bed.engine import PrivateEngine, UnifiedEngine
from tests.node.daemon import DaemonProcess, make_directory
from tests.redteam.attack import Response

VICTIM, ATTACKER = 61021, 61022
"""Users that no system has: no groups, no home of the user database, nothing that anybody trusts."""
SUBORDINATE = 3_000_000_000
"""The first of the ids that the attacker has in user namespaces."""
MOST_PORTS = 8
AGENT = Path(__file__).with_name("agent.py")
ANSWER_SECONDS = 30.0
QUIET_SECONDS = 1.0
CGROUPS = Path("/sys/fs/cgroup")
SIMULATED = "h100:2"
MEMORY_OF_A_USER = 256 << 20
PIDS_OF_A_USER = 300
LIMITS = f"""
memory_per_user = "{MEMORY_OF_A_USER >> 20}MiB"
cpus_per_user = 1.5
pids_per_user = {PIDS_OF_A_USER}
"""
Json = dict[str, Any]


class Attacker:
    """An ordinary user's process. All that it ever reads is kept in ``seen``, for the oracle."""

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.seen: list[bytes] = []
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(AGENT), str(uid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def wire(
        self,
        path: Path | str,
        *pieces: bytes,
        seconds: float = ANSWER_SECONDS,
        quiet: float = ANSWER_SECONDS,
    ) -> bytes:
        """All that came back on one connection."""
        sent = [base64.b64encode(piece).decode() for piece in pieces]
        answer = self._do(do="wire", path=str(path), pieces=sent, seconds=seconds, quiet=quiet)
        return self._noted(answer["said"])

    def command(self, *words: str, stdin: bytes = b"", **environment: str) -> tuple[int, bytes, bytes]:
        env = {"PATH": os.environ["PATH"], "HOME": "/tmp", "DOCKER_CONFIG": "/nonexistent", **environment}
        sent = base64.b64encode(stdin).decode()
        answer = self._do(
            do="command", words=list(words), stdin=sent, seconds=ANSWER_SECONDS, environment=env
        )
        return answer["code"], self._noted(answer["out"]), self._noted(answer["err"])

    def python(self, code: str, **names: object) -> str:
        """Run these lines as the attacker; what they leave in ``answer``."""
        answer: str = self._do(do="python", code=code, names=names)["answer"]
        self.seen.append(answer.encode())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(ANSWER_SECONDS)

    def _do(self, **order: object) -> Json:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        answer: Json = json.loads(self._process.stdout.readline())
        assert "failed" not in answer, answer["failed"]
        return answer

    def _noted(self, text: str) -> bytes:
        data = base64.b64decode(text)
        self.seen.append(data)
        return data


class AttackedMachine:
    """The attacker's means, and the names of what is attacked (``fill`` puts them into texts)."""

    def __init__(self, engine: PrivateEngine) -> None:
        self.engine = engine
        # Of an engine with cgroup v2 on a machine that counts with v1, nobody can count anything.
        self.is_bounded = not isinstance(engine, UnifiedEngine) or (CGROUPS / "cgroup.controllers").exists()
        self.directory = make_directory()
        self.homes = self.directory / "homes"
        self.home = self._made_home("mallory", ATTACKER)
        self.victims_home = self._made_home("alice", VICTIM)
        self.canaries: dict[str, str] = {}
        ranges = self.directory / "subuid"
        ranges.write_text(f"{ATTACKER}:{SUBORDINATE}:65536\n")
        config = (
            f'[gate]\nmount_prefixes = ["~", "{self.homes}"]\nsubordinate_ids = "{ranges}"\n'
            f"ports_per_user = {MOST_PORTS}\n{LIMITS if self.is_bounded else ''}"
        )
        self.daemon = DaemonProcess(
            make_directory(), simulate=SIMULATED, engine=engine.socket, config=config,
            environment={"ROOTS_SECRET": self.canary("the environment of root's daemon")},
        )  # fmt: skip
        self.daemon.start()
        self.attacker = Attacker(ATTACKER)
        self._make_roots_file()
        self._make_victims()

    # --- what there is to be reached ---

    def canary(self, whose: str) -> str:
        """A word that the attacker must never read."""
        self.canaries[whose] = f"canary-{secrets.token_hex(12)}"
        return self.canaries[whose]

    def _made_home(self, name: str, uid: int) -> Path:
        home = self.homes / name
        home.mkdir(parents=True)
        self.homes.chmod(0o755)
        home.chmod(0o700)
        os.chown(home, uid, uid)
        return home

    def _make_roots_file(self) -> None:
        self.roots_file = self.homes / "roots" / "file"
        self.roots_file.parent.mkdir(mode=0o755)
        self.roots_file.write_text(self.canary("root's file"))
        self.roots_file.chmod(0o600)

    def _make_victims(self) -> None:
        file = self.victims_home / "file"
        file.write_text(self.canary("the victim's file"))
        file.chmod(0o600)
        os.chown(file, VICTIM, VICTIM)
        daemon = self.daemon
        self.network, self.volume = "alices-net", "alices-data"
        daemon.check("network", "create", self.network, uid=VICTIM)
        daemon.check("volume", "create", self.volume, uid=VICTIM)
        filled = f"echo {self.canary('the victims volume')} >/x/file"
        self.engine.check(
            "run", "--rm", "--network", "none", "-v", f"{self.volume}:/x", parts.BUSYBOX_IMAGE,
            "sh", "-c", filled,
        )  # fmt: skip
        secret = self.canary("the environment of the victim's container")
        box = daemon.hold("0.25", "--name", "alices-box", "-e", f"SECRET={secret}", uid=VICTIM)
        self.lease, self.box = box["id"], box["container_id"]
        self.roots_box = daemon.run_container("--name", "roots-box")
        created = self.as_engine("POST", f"/containers/{self.box}/exec", {"Cmd": ["env"]})
        self.exec = str(created["Id"])

    @property
    def names(self) -> dict[str, str]:
        """What texts of attacks may name in braces."""
        return {
            "box": self.box,
            "short": self.box[:12],
            "roots_box": self.roots_box,
            "exec": self.exec,
            "lease": self.lease,
            "network": self.network,
            "volume": self.volume,
            "home": str(self.home),
            "victims_home": str(self.victims_home),
            "roots": str(self.roots_file.parent),
            "runtime": str(self.daemon.runtime_dir),
            "engine": self.engine.socket,
            "image": parts.BUSYBOX_IMAGE,
            "victim": str(VICTIM),
            "attacker": str(ATTACKER),
        }

    def fill(self, text: str) -> str:
        for name, value in self.names.items():
            text = text.replace("{" + name + "}", value)
        return text

    def fill_body(self, body: object) -> bytes:
        if body is None:
            return b""
        return body if isinstance(body, bytes) else self.fill(json.dumps(body)).encode()

    # --- what the attacker can do ---

    def ask(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Response:
        lines = [f"{method} {target} HTTP/1.1", "Host: docker", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in (headers or {}).items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return self.send("\r\n".join([*lines, "", ""]).encode() + body)

    def send(self, *pieces: bytes, quiet: float = ANSWER_SECONDS) -> Response:
        """Raw bytes; the last answer's status and message."""
        return last_answer(self.attacker.wire(self.daemon.socket, *pieces, quiet=quiet))

    def docker(self, *words: str, stdin: bytes = b"") -> Response:
        code, out, err = self.attacker.command(
            str(parts.DOCKER.resolve()), "-H", f"unix://{self.daemon.socket}", *words, stdin=stdin
        )
        return Response(500 if code else 200, (err + out).decode(errors="replace").strip())

    def run_body(self, body: bytes, *, version: str = "", query: Mapping[str, str] | None = None) -> Response:
        """Create, and where that is let through start, wait and read what the program said."""
        words = f"?{urlencode(query)}" if query else ""
        made = self.ask("POST", f"{version}/containers/create{words}", body)
        if made.is_refusal:
            return made
        container = json.loads(made.message)["Id"]
        started = self.ask("POST", f"/containers/{container}/start")
        if started.is_refusal:
            return started
        self.ask("POST", f"/containers/{container}/wait")
        return self.ask("GET", f"/containers/{container}/logs?stdout=1&stderr=1")

    def made(self, body: Mapping[str, object], *, name: str = "") -> str:
        """A container of the attacker's own, which is nothing to mind by itself."""
        query = f"?name={quote(name)}" if name else ""
        answer = self.ask("POST", f"/containers/create{query}", json.dumps(body).encode())
        assert not answer.is_refusal, answer
        return str(json.loads(answer.message)["Id"])

    # --- what the kernel and the engine say, for what is to be seen there ---

    def cgroup_of(self, pid: int) -> str:
        """Where the memory of a process is counted; empty where it is gone."""
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        counted = {kind: path for _, kind, path in (line.split(":", 2) for line in lines)}
        return counted.get("memory") or counted[""]

    def figure_of(self, pid: int, figure: str) -> int:
        """What is counted in the cgroup of a process: its ``pids``, or bytes of ``memory``."""
        files = {"pids": ("pids.current",), "memory": ("memory.usage_in_bytes", "memory.current")}[figure]
        place = self.cgroup_of(pid).lstrip("/")
        for path in (top / place / name for top in (CGROUPS / figure, CGROUPS) for name in files):
            with contextlib.suppress(OSError):
                return int(path.read_text())
        return 0  # it is over

    @property
    def attackers_place(self) -> str:
        """The cgroup of all containers of the attacker."""
        return self.daemon.users.within(str(ATTACKER)).path(CgroupDriver.CGROUPFS)

    def is_attackers_place(self, cgroup: str) -> bool:
        """Whether it is that, or in it."""
        return f"{cgroup}/".startswith(f"{self.attackers_place}/")

    def as_engine(self, method: str, target: str, body: object = None) -> Any:
        connection = _UnixConnection(self.engine.socket)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, target, sent, {"Content-Type": "application/json"})
            read = connection.getresponse().read()
        finally:
            connection.close()
        return json.loads(read) if read else None

    def dispose(self) -> None:
        self.attacker.close()
        self.daemon.dispose()
        subprocess.run(["rm", "-rf", str(self.directory)], check=True)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=ANSWER_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_SECONDS)
        self.sock.connect(self._path)


def last_answer(said: bytes) -> Response:
    """The last response in what came back on a connection; 0 where none did."""
    begin = said.rfind(b"HTTP/1.1 ")
    if begin < 0:
        return Response(0, said.decode(errors="replace"))
    head, _, body = said[begin:].partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        body = _unchunked(body)
    return Response(int(head.split()[1]), _message(body))


def _message(body: bytes) -> str:
    text = body.decode(errors="replace")
    try:
        told = json.loads(text)
    except ValueError:
        return text
    return str(told["message"]) if isinstance(told, dict) and "message" in told else text


def _unchunked(body: bytes) -> bytes:
    plain = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        if not length:
            break
        plain, body = plain + rest[:length], rest[length + 2 :]
    return plain
