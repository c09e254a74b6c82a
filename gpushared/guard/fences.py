"""Hold the daemon's end of the guard: write deadlines, see that a guard reads them, read what it ended.

Everything here may wait for a disk or for systemd, so it belongs into a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gpushared.domain.model.errors import Unavailable
from gpushared.domain.model.lease import ContainerId
from gpushared.guard import program
from gpushared.guard.program import boottime

UNIT = "gpushared-guard"
UNIT_PROPERTIES = (
    "Description=Ends containers of jobs whose pool does not hear of this node",
    # A guard that is killed comes back while the daemon is away, too.
    "Restart=on-failure",
    "RestartSec=1",
    "StartLimitIntervalSec=0",
    # The guard ignores SIGTERM, and a shutdown is not to wait for it.
    "KillSignal=SIGKILL",
    "OOMScoreAdjust=-500",
    # At a shutdown the guard goes after the engine, and so after all containers.
    "Before=docker.service",
)
SYSTEMD_SECONDS = 10.0
ANSWER_SECONDS = 5.0
STALE_SECONDS = 4.0
"""A guard looks twice a second: one whose last look is longer ago hangs."""
POLL_SECONDS = 0.1
HINT = "a job with --stop-after runs only where something ends it without the daemon, too"


class GuardProcess:
    """Keep one directory of deadlines, and the guard that reads it.

    ``as_unit``: the daemon is a service of systemd, and the guard is to be another one: in the daemon's own
    service it would be frozen or killed together with the daemon.
    """

    def __init__(self, directory: Path, engine: str, *, as_unit: bool) -> None:
        self._directory = directory
        self._engine = engine
        self._as_unit = as_unit
        self._generation = ""
        self._children: set[int] = set()

    def write(self, fences: Mapping[ContainerId, float]) -> None:
        """Let these containers end at these moments (CLOCK_BOOTTIME) from now on. Raises Unavailable."""
        generation = str(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        lines = [f"{generation} {self._engine}", *(f"{at} {name}" for name, at in sorted(fences.items()))]
        path = self._directory / program.FENCES
        new = path.with_suffix(".new")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.write_text("\n".join(lines) + "\n", encoding="utf-8")
            new.replace(path)
        except OSError as error:
            raise Unavailable(f"{path} cannot be written: {error.strerror}", hint=HINT) from error
        self._generation = generation

    def has_any(self) -> bool:
        """Return True if the directory has deadlines, also those of an earlier life of the daemon."""
        with contextlib.suppress(OSError, ValueError):
            return bool(program.read_fences(str(self._directory))[2])
        return False

    def watches(self) -> bool:
        """Return True if a guard is alive that has read the last write."""
        self._reap()
        try:
            at, _, generation = (
                (self._directory / program.HEARTBEAT).read_text(encoding="utf-8").partition(" ")
            )
            fresh = boottime() - float(at) < STALE_SECONDS
        except (OSError, ValueError):
            return False
        return fresh and generation.strip() == self._generation and self._is_locked()

    def ensure(self) -> None:
        """Make sure that a guard has read the last write. Raises Unavailable."""
        starts: list[Callable[[], None]] = [self._start_unit, self._start_child]
        if not self._as_unit:
            del starts[0]
        while not self._watches_soon(started=False):
            if self._is_locked() or not starts:
                raise Unavailable("the guard of fenced containers does not answer", hint=HINT)
            starts.pop(0)()
            if self._watches_soon(started=True):
                return

    def ended(self) -> frozenset[ContainerId]:
        """Return the containers that ran when a guard began to end them."""
        files = self._directory.glob(f"{program.ENDED}*")
        return frozenset(ContainerId(path.name.removeprefix(program.ENDED)) for path in files)

    def forget(self, containers: Iterable[ContainerId]) -> None:
        """Forget these ended containers, because the daemon knows of their end by now."""
        for container in containers:
            (self._directory / f"{program.ENDED}{container}").unlink(missing_ok=True)

    def _watches_soon(self, *, started: bool) -> bool:
        deadline = time.monotonic() + ANSWER_SECONDS
        while not (watches := self.watches()) and time.monotonic() < deadline:
            if not started and not self._is_locked():
                return False
            time.sleep(POLL_SECONDS)
        return watches

    def _is_locked(self) -> bool:
        """Return True if a guard lives, however long ago it looked."""
        try:
            descriptor = os.open(self._directory / program.LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _command(self) -> list[str]:
        return [sys.executable, "-I", "-S", str(Path(program.__file__).resolve()), str(self._directory)]

    def _start_unit(self) -> None:
        """Start the guard as a systemd unit; if systemd fails, no guard is found, and a child is begun."""
        settings = [f"--property={line}" for line in UNIT_PROPERTIES]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["systemd-run", "--quiet", "--collect", f"--unit={UNIT}", *settings, *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=SYSTEMD_SECONDS,
                check=False,
            )

    def _start_child(self) -> None:
        """Start the guard in a session of its own, so that it goes on when the daemon ends."""
        null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
        try:
            child = os.posix_spawn(
                sys.executable, self._command(), os.environ, file_actions=null, setsid=True
            )
        except OSError as error:
            raise Unavailable(f"the guard cannot be started: {error.strerror}", hint=HINT) from error
        self._children.add(child)

    def _reap(self) -> None:
        for child in list(self._children):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(child, os.WNOHANG)[0] == 0:
                    continue
            self._children.discard(child)
