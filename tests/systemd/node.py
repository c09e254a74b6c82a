"""A machine with systemd on which the package is installed, and the engine that its daemon serves."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.bed import parts
from tests.bed.engine import PrivateEngine
from tests.bed.machine import Machine

SHARED_DIRS: Final = ("/run/gpushared", "/run/cdi")
"""What the daemon names to the engine: both must find the same there, under the same path."""
COMMANDS: Final = "/opt/gpushared/bin"
DROP_IN: Final = "/etc/systemd/system/gpushared.service.d/test.conf"
CONFIG: Final = "/etc/gpushared/config.toml"
PYTHON_OF_IMAGE: Final = "3.11"
PATIENCE_SECONDS: Final = 30


class NodeEngine(PrivateEngine):
    """A private engine that sees folders of this test where the daemon's folders are on a real machine."""

    def _command(self) -> list[str]:
        for path in SHARED_DIRS:
            Path(path).mkdir(exist_ok=True)
            self.shared(path).mkdir(parents=True, exist_ok=True)
        mounts = "".join(f"mount --bind {self.shared(path)} {path} && " for path in SHARED_DIRS)
        return ["unshare", "--mount", "sh", "-c", f'{mounts}exec "$@"', "sh", *super()._command()]

    def shared(self, path: str) -> Path:
        return self.directory / "shared" / path.strip("/")


class Node:
    """The machine, as whoever administers it sees it."""

    def __init__(self, machine: Machine, engine: NodeEngine) -> None:
        self.machine = machine
        self.engine = engine

    def check(self, *words: str) -> str:
        return self.machine.check(*words)

    def shell(self, script: str) -> str:
        return self.check("sh", "-c", script)

    def write(self, path: str, text: str) -> None:
        self.check("sh", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$2" >"$1"', "sh", path, text)

    def gpushare(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.machine.run(f"{COMMANDS}/gpushare", *words)

    def run_container(self, name: str) -> None:
        """A container on a quarter of a GPU that stays until it is stopped."""
        answer = self.gpushare(
            *("run", "--detach", "--gpu", "0.25", "--name", name, "--network", "none"),
            *(parts.BUSYBOX_IMAGE, "sleep", "600"),
        )
        assert answer.returncode == 0, answer.stderr

    def lease_of(self, name: str) -> tuple[str, str]:
        """Id and state of the lease that a container holds."""
        listed = self.check(f"{COMMANDS}/gpushare", "ps", "--output", "json")
        found = [lease for lease in json.loads(listed)["items"] if lease["container_name"] == name]
        assert len(found) == 1, listed
        return found[0]["id"], found[0]["state"]

    def show(self, what: str) -> str:
        return self.check("systemctl", "show", "--value", "--property", what, "gpushared.service")

    def main_pid(self) -> int:
        return int(self.show("MainPID"))

    def mps_pids(self) -> list[str]:
        return self.machine.run("pgrep", "-f", "nvidia-cuda-mps-control").stdout.split()

    def wait_until(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"not so after {PATIENCE_SECONDS} s: {what}\n{self.log()}")
            time.sleep(0.1)

    def wait_until_active(self) -> None:
        self.wait_until("the service is active", lambda: self.show("ActiveState") == "active")

    def log(self) -> str:
        return self.machine.run("journalctl", "--unit", "gpushared", "--no-pager", "--lines", "40").stdout

    def clear(self) -> None:
        """As it was before the test: package and units stay, the service's life does not."""
        self.machine.run("systemctl", "stop", "gpushared.socket", "gpushared.service")
        self.machine.run("pkill", "-f", "nvidia-cuda-mps-control")
        self.machine.run("systemctl", "reset-failed", "gpushared.service", "gpushared.socket")
        if containers := self.engine.check("ps", "--all", "--quiet").split():
            self.engine.check("rm", "--force", *containers)
        self.shell(
            f"rm -rf {DROP_IN} {CONFIG} /etc/gpushared/* /var/lib/gpushared/* /run/gpushared/* /run/cdi/*"
        )
        self.check("systemctl", "daemon-reload")


def wheelhouse() -> Path:
    """Wheels of all that the package needs at run time, for the image's Python, kept in the cache."""
    pyproject = (parts.ROOT / "pyproject.toml").read_bytes()
    needed = tomllib.loads(pyproject.decode())["project"]["dependencies"]
    kept = parts.CACHE / "wheelhouse" / hashlib.sha256("\n".join(needed).encode()).hexdigest()[:12]
    if not kept.is_dir():
        part = kept.with_suffix(f".{time.monotonic_ns()}")
        _pip(
            "download",
            "--only-binary=:all:",
            f"--python-version={PYTHON_OF_IMAGE}",
            "--dest",
            str(part),
            *needed,
        )
        part.rename(kept)
    return kept


def build_wheel(target: Path) -> Path:
    """The checkout as a wheel."""
    _pip("wheel", "--no-deps", "--wheel-dir", str(target), str(parts.ROOT))
    return next(target.glob("gpushared-*.whl"))


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@contextmanager
def node(docker_engine: str, wheels: Path, extra_mounts: dict[Path, str]) -> Iterator[Node]:
    """A booted machine with the package in a virtual environment, and no unit in place."""
    engine = NodeEngine()
    machine: Machine | None = None
    try:
        engine.start()
        engine.load_busybox()
        mounts = {engine.shared(path): path for path in SHARED_DIRS}
        mounts |= {engine.directory: str(engine.directory), wheelhouse(): "/wheelhouse", wheels: "/wheels"}
        flags = [f"--volume={source}:{target}" for source, target in (mounts | extra_mounts).items()]
        machine = Machine(docker_engine, *flags)
        machine.wait_until_booted()
        machine.check("python3", "-m", "venv", "/opt/gpushared")
        install_package(machine)
        yield Node(machine, engine)
    finally:
        if machine is not None:
            machine.remove()
        engine.dispose()


def install_package(machine: Machine, *flags: str) -> None:
    machine.check(
        *(f"{COMMANDS}/pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"),
        *("--find-links=/wheelhouse", "--find-links=/wheels", *flags, "gpushared"),
    )
