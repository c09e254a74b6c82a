"""A machine that can lose its power: namespaces of processes, mounts and network, with a boot id of its own.

Whatever runs in it ends with its first process, at once and without a word, as it does without power. Its
disk is a directory; what a reboot empties is emptied when it boots.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tests.bed import parts
from tests.node.attached import AttachedCommand

CABLES: Final = Path(__file__).with_name("cables.py")
CLOCK_SOURCE: Final = Path(__file__).with_name("shifted_clock.c")
NETWORK: Final = "198.51.100"
"""Set aside for documentation (RFC 5737), and in namespaces of its own."""
WAIT_SECONDS: Final = 45.0

INIT: Final = """
set -e
hostname "$1"
mount --bind "$2" /proc/sys/kernel/random/boot_id
mount --bind "$3" "$4"
ip link set lo up
echo up
while :; do sleep 100000 & wait; done
"""
"""The first process reaps whatever its machine leaves to it."""


class BrokenBed(RuntimeError):
    """The test bed did not do what it must; what it said is in the message."""


def wait_until(look: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Wait for something that nothing announces."""
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, f"it never came that {what}"
        time.sleep(0.05)


class Cables:
    """The switch between the machines."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(CABLES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._lock = threading.Lock()

    def plug(self, name: str, device: str) -> None:
        """Make the port's network device, in this process's network."""
        self._say({"port": name, "device": device})

    def set(
        self, name: str, *, up: Mapping[str, float] | None = None, down: Mapping[str, float] | None = None
    ) -> None:
        """How bad a cable is, each way; whole where nothing is said."""
        self._say({"port": name, "up": dict(up or {}), "down": dict(down or {})})

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _say(self, words: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()
            if not self._process.stdout.readline():
                raise BrokenBed("the switch died")


@dataclass
class Program:
    """A process in a machine. ``pid`` is its number outside."""

    words: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes]
    pid: int

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """By a signal; comes back when it is gone."""
        if self.running:
            os.kill(self.pid, number)
        try:
            self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise BrokenBed(f"{self.words[0]} does not end:\n{self.tail()}") from None

    def send(self, number: signal.Signals) -> None:
        """A signal that does not end it. ``nsenter`` stops itself with it, and has to be woken, too."""
        os.kill(self.pid, number)
        if number is signal.SIGCONT:
            self.process.send_signal(number)

    def tail(self, size: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""


@dataclass
class Machine:
    """``directory`` is its disk; ``number`` its address; ``shared`` is on all machines."""

    directory: Path
    name: str
    number: int
    cables: Cables
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.runtime = self.directory / "run"
        self.here = self.directory.parent / "here"
        self._own = self.directory / "own"
        for folder in (self.here, self._own):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
        (self._own / "name").write_text(self.name)
        self._boot_id = self.directory / "boot_id"
        self._clock = self.directory / "clock"
        self._clock.write_bytes(struct.pack("dd", 0.0, 0.0))
        self._ahead = [0.0, 0.0]
        self._init: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._programs: list[Program] = []

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number}"

    @property
    def is_on(self) -> bool:
        return self._init is not None and self._init.poll() is None

    def boot(self) -> None:
        """Come up with a new boot id and nothing of before in the memory."""
        assert not self.is_on
        self._boot_id.write_text(f"{uuid.uuid4()}\n")
        shutil.rmtree(self.runtime, ignore_errors=True)
        self.runtime.mkdir()
        enter = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--mount", "--uts"]
        facts = [self.name, str(self._boot_id), str(self._own), str(self.here)]
        self._init = subprocess.Popen(
            [*enter, "sh", "-c", INIT, "init", *facts],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._init.stdout is not None
        if self._init.stdout.readline() != b"up\n":
            raise BrokenBed(f"machine {self.name} does not boot")
        self._pid = psutil.Process(self._init.pid).children()[0].pid
        self._connect()

    def _connect(self) -> None:
        device = f"gpf{self.number}-{os.getpid() % 100000}"
        self.cables.plug(self.name, device)
        _run("ip", "link", "set", "dev", device, "netns", str(self._pid), "name", "eth0")
        # The same at each boot, as others remember it.
        self.run("ip", "link", "set", "dev", "eth0", "address", f"02:00:00:00:00:{self.number:02x}")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "dev", "eth0", "up")

    def cut_power(self) -> None:
        """Everything in it is gone at once."""
        assert self._init is not None
        os.kill(self._pid, signal.SIGKILL)
        self._init.wait(WAIT_SECONDS)
        assert self._init.stdout is not None
        self._init.stdout.close()
        self._init = None
        for program in self._programs:
            program.process.wait(WAIT_SECONDS)
        self._programs.clear()

    def set_day(self, ahead_seconds: float) -> None:
        """Set the clock of its daemons, as people and time servers do; it may go back."""
        self._ahead[0] = ahead_seconds
        self._write_clock()

    def sleep(self, seconds: float) -> None:
        """As if it had been asleep for so long: time since the boot went on, and nothing ran.

        Its time of day is as that of the others.
        """
        self._ahead[1] += seconds
        self._write_clock()

    def _write_clock(self) -> None:
        with self._clock.open("r+b") as file:
            file.write(struct.pack("dd", *self._ahead))

    def start(self, *words: str, log: str, clocked: bool = False) -> Program:
        """``clocked``: it has the machine's own clock."""
        path = self.directory / log
        environment = dict(self._environment())
        if clocked:
            environment |= {
                "LD_PRELOAD": str(clock_library(self.directory.parent)),
                "SHIFTED_CLOCK": str(self._clock),
            }
        with path.open("ab") as output:
            process = subprocess.Popen(
                self._entering(environment, words), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        program = Program(words, path, process, _child_of(process))
        self._programs.append(program)
        return program

    def run(
        self, *words: str, check: bool = True, given: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command, as root types it on the machine."""
        done = subprocess.run(
            self._entering(self._environment(), words),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
            input=given,
        )
        if check and done.returncode:
            raise BrokenBed(f"{self.name}: {' '.join(words)}: {done.stdout}{done.stderr}")
        return done

    def talk_to(self, *words: str) -> subprocess.Popen[str]:
        """A command whose standard input and output are pipes."""
        entering = self._entering(self._environment(), words)
        return subprocess.Popen(entering, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def typed(self, *words: str, terminal: bool) -> AttachedCommand:
        """A command in the background, as root types it on the machine: at a terminal, or in a pipe."""
        environment = {**self._environment(), "TERM": "xterm"}
        return AttachedCommand(self._entering(environment, words), None, terminal=terminal)

    def _entering(self, environment: Mapping[str, str], words: Sequence[str]) -> list[str]:
        settings = [f"{name}={value}" for name, value in environment.items()]
        return [
            *("nsenter", "--target", str(self._pid), "--mount", "--net", "--pid", "--uts", "--"),
            *("env", "-i", *settings, *words),
        ]

    def _environment(self) -> dict[str, str]:
        path = f"{parts.DOCKER.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": path, "HOME": "/root", "DOCKER_CONFIG": "/nonexistent", "PYTHONPATH": str(parts.ROOT)}
        return {**own, **self.environment}


def clock_library(directory: Path) -> Path:
    """What gives a process a clock of its own, compiled once."""
    library = directory / "shifted_clock.so"
    if not library.exists():
        _run("gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(CLOCK_SOURCE))
    return library


def _child_of(process: subprocess.Popen[bytes]) -> int:
    """``nsenter`` forks, because a process cannot enter another process namespace itself."""
    outer, found = psutil.Process(process.pid), list[psutil.Process]()

    def look() -> bool:
        found[:] = outer.children()
        return bool(found)

    wait_until(look, "a program begins")
    return int(found[0].pid)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokenBed(f"{' '.join(words)}: {done.stderr.strip()}")
