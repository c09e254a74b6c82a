"""The machines that ``scripts/quickstart --pool 3`` makes, as a user types on them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.bed import parts
from tests.bed.engine import PrivateEngine
from tests.bed.parts import ROOT

SCRIPT = ROOT / "scripts/quickstart"
TUTORIAL = (ROOT / "docs/tutorial/one-pool.md").read_text(encoding="utf-8")
USUAL_NAME, USUAL_NET = "gpushared-quickstart", "198.51.100"
START_SECONDS = 240
PATIENCE_SECONDS = 120
NODES = ["a", "b", "c"]


@dataclass(frozen=True)
class Machines:
    """The pool under a name and on a network of its own, so that somebody's real one goes on beside it."""

    name: str
    net: str
    environ: dict[str, str]
    flags: tuple[str, ...] = ()

    @property
    def run_dir(self) -> Path:
        return Path("/run") / f"{self.name}-pool"

    @property
    def state(self) -> Path:
        return Path("/var/lib") / f"{self.name}-pool"

    @property
    def shared(self) -> Path:
        return self.state / "shared"

    def script(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *words],
            env=self.environ, capture_output=True, text=True, timeout=START_SECONDS, check=False,
        )  # fmt: skip

    def started(self) -> str:
        done = self.script("--pool", "3", *self.flags)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # --- somebody on machine a

    def here(self, text: str) -> str:
        """The tutorial's words with the names that things have here."""
        return text.replace(USUAL_NAME, self.name).replace(USUAL_NET, self.net)

    def told(self, beginning: str) -> str:
        """The one command in the tutorial that begins so."""
        (line,) = {
            line.removeprefix("$ ")
            for line in TUTORIAL.splitlines()
            if line.startswith((f"$ {beginning}", beginning))
        }
        return self.here(line)

    def shell(self, *commands: str) -> subprocess.CompletedProcess[str]:
        """What a user types, one after the other, after the tutorial's preparations."""
        before = [self.told("export GPUSHARE_HOST="), self.told("shared=")]
        return subprocess.run(
            ["bash", "-c", "\n".join([*before, *commands])],
            cwd=ROOT, env=self.environ, capture_output=True, text=True,
            timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip

    def printed(self, *commands: str) -> str:
        done = self.shell("set -e", *commands)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def on(self, node: str) -> str:
        """The words that make the commands after it those of another machine."""
        return f"export GPUSHARE_HOST=unix://{self.run_dir}/{node}/gpushared.sock"

    def usage(self, node: str, *words: str) -> Counter[str]:
        """The leases, and what they held and used, as a machine tells it."""
        output = json.loads(
            self.printed(self.on(node), f"gpushare usage --since 1d {' '.join(words)} -o json")
        )["total"]
        figures = ("held_gpu_ms", "active_gpu_ms", "idle_gpu_ms", "held_mib_seconds")
        return Counter(
            {"leases": output["leases"], **{name: int(output["account"][name]) for name in figures}}
        )

    def sum_of_nodes(self) -> Counter[str]:
        return sum((self.usage(node) for node in NODES), Counter())

    def nodes(self) -> dict[str, str]:
        """Each node's state."""
        items: list[dict[str, Any]] = json.loads(self.printed("gpushare nodes -o json"))["items"]
        return {item["name"]: item["presence"] for item in items}

    def wait_for_node(self, node: str, *states: str) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while self.nodes()[node] not in states:  # each look is a command of its own
            assert time.monotonic() < until, f"{node} is {self.nodes()[node]}, not {states}"

    def jobs(self, array: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(
            self.printed(f"jobs={array}", self.told("gpushare jobs --array") + " -o json")
        )["items"]
        return items

    def wait_for_jobs(self, array: str, *, running: int) -> None:
        """Until so many of an array run at the same time."""
        until = time.monotonic() + PATIENCE_SECONDS
        while Counter(job["state"] for job in self.jobs(array))["running"] < running:
            assert time.monotonic() < until, self.jobs(array)

    def done_parts(self) -> Counter[str]:
        """What the jobs themselves wrote."""
        file = self.shared / "done"
        return Counter(file.read_text().splitlines()) if file.exists() else Counter()

    def kill(self, pid_file: str) -> None:
        os.kill(int((self.run_dir / pid_file).read_text()), signal.SIGKILL)

    # --- what is left

    def processes(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                words = process.cmdline()
                if any(f"{self.name}-pool" in word for word in words):
                    found.append(" ".join(words))
        return found

    def assert_nothing_is_left(self) -> None:
        assert self.processes() == []
        assert not self.run_dir.exists()
        assert not self.state.exists()
        assert not list(Path("/run/netns").glob(f"{self.name}-*"))
        assert (
            self.net not in subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
        )
        assert self.name not in Path("/etc/passwd").read_text()
        assert self.name not in Path("/proc/self/mountinfo").read_text()


@contextlib.contextmanager
def running(environ: dict[str, str], cache: Path, *flags: str) -> Iterator[Machines]:
    """Three of them, started. They are gone afterwards, with all that they had."""
    parts.need_file("image", parts.BUSYBOX_TAR)
    engine = PrivateEngine()
    name, net = f"gpushared-qp{os.getpid()}", f"10.231.{os.getpid() % 250}"
    environ = {
        **environ,
        "DOCKER_HOST": engine.url,
        "GPUSHARED_QUICKSTART": name,
        "GPUSHARED_QUICKSTART_NET": net,
        "GPUSHARED_CACHE": str(cache),
    }
    made = Machines(name, net, environ, flags)
    try:
        engine.start()
        made.started()
        yield made
    finally:
        stopped = made.script("--stop")
        engine.dispose()
    assert stopped.returncode == 0, stopped.stderr
    made.assert_nothing_is_left()


def in_a_terminal(
    command: str, typed: str, environ: dict[str, str], before: Callable[[], object] = lambda: None
) -> tuple[str, int]:
    """What is shown when this is typed at its first prompt, after ``before``, and the exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execvpe("bash", ["bash", "-c", command], {**environ, "TERM": "dumb"})
    said, until = b"", time.monotonic() + 2 * PATIENCE_SECONDS
    sent = False
    while time.monotonic() < until:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                said += os.read(terminal, 4096)
            except OSError:  # EIO: the other end is closed
                break
        if not sent and b"/ $ " in said:
            before()
            os.write(terminal, typed.encode())
            sent = True
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(terminal)
    return said.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
