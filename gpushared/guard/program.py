"""End containers at their deadlines, also while the daemon is away or hangs, as a program of its own.

The daemon writes deadlines into a file of a directory (``FENCES``), and this program looks at the file twice
a second. It asks the engine to stop a container that runs past its deadline, and kills its processes if they
outlive that. It needs neither the daemon nor an engine that answers. It uses the standard library only, and
this file only: the file is loaded whole at the start, so that an upgrade of the package does not reach it.

Run it as ``python -I -S program.py DIRECTORY``. It ends by itself after ``IDLE_LOOKS`` looks without a deadline.
Deadlines are of CLOCK_BOOTTIME, so none of an earlier boot may be in the directory.
"""

import contextlib
import fcntl
import os
import signal
import socket
import sys
import time

FENCES = "fences"
"""The file has ``GENERATION ENGINE_SOCKET`` in the first line, ``DEADLINE CONTAINER_ID`` in each of the
others."""
HEARTBEAT = "beat"
"""The file has ``BOOTTIME GENERATION``: when this program looked last, and at which ``FENCES``."""
LOCK = "lock"
"""The one program that guards the directory holds this lock."""
ENDED = "ended-"
"""A file ``ended-CONTAINER_ID`` tells that this program began to end that container, which ran then."""

LOOK_SECONDS = 0.5
OVER_LOOK_SECONDS = 2.0
"""The time between two looks for processes of containers that ended already, and may not begin again."""
GRACE_SECONDS = 10
"""A container has this time between the stop signal and the kill, when the engine stops it."""
ENGINE_SECONDS = 3.0
"""The program waits for the engine's stop this long beyond the grace, and then kills the processes itself."""
IDLE_LOOKS = 60
"""After this many looks in a row without a deadline the program ends."""
ID_LENGTH = 64
LOCK_TRIES = 20
"""The daemon holds the lock for an instant when it looks if a guard has it."""


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read_fences(directory: str) -> tuple[str, str, dict[str, float]]:
    """Return the generation, the engine's socket and each container's deadline; empty without a file."""
    try:
        with open(f"{directory}/{FENCES}", encoding="utf-8") as file:
            first, *lines = file.read().splitlines()
    except FileNotFoundError:
        return "", "", {}
    generation, _, engine = first.partition(" ")
    pairs = (line.split() for line in lines)
    return generation, engine, {container: float(deadline) for deadline, container in pairs}


def processes_of(containers: set[str]) -> dict[str, list[int]]:
    """Return the processes of each of these containers, by the names of their cgroups, which hold the id."""
    pids: dict[str, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            for container in containers & set(_ids_of(int(name))):
                pids.setdefault(container, []).append(int(name))
    return pids


def _ids_of(pid: int) -> list[str]:
    """Return all names as long as a container's id in a process's cgroups; none if the process is gone."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    for mark in ("-", ".", "\n", ":"):
        text = text.replace(mark, "/")
    return [name for name in text.split("/") if len(name) == ID_LENGTH]


def kill(pid: int, container: str) -> None:
    """Kill a process if it still belongs to the container, and not a later one of the same number."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel without pidfd_open(2)
        handle = -1
    with contextlib.suppress(ProcessLookupError):
        if container in _ids_of(pid):
            if handle < 0:
                os.kill(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    if handle >= 0:
        os.close(handle)


def ask_to_stop(engine: str, container: str) -> socket.socket | None:
    """Ask the engine to stop a container, without waiting for the answer; None if the engine is away.

    An engine remembers the request, so that no restart policy starts the container again.
    """
    request = f"POST /containers/{container}/stop?t={GRACE_SECONDS} HTTP/1.1\r\nHost: guard\r\n"
    request += "Content-Length: 0\r\nConnection: close\r\n\r\n"
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.setblocking(False)
    try:
        channel.connect(engine)
        channel.send(request.encode())
    except OSError as error:
        channel.close()
        say(f"{engine} cannot be asked to stop container {container}: {error}")
        return None
    return channel


def say(text: str) -> None:
    """Write a line for the journal of the unit, if there is one."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"{text}\n".encode())


class FenceGuard:
    """Look at deadlines, and end containers. ``fences`` is empty while there is nothing to guard."""

    def __init__(self, directory: str) -> None:
        self.fences: dict[str, float] = {}
        self._directory = directory
        self._generation = ""
        self._engine = ""
        self._kill_at: dict[str, float] = {}
        """The moment at which each container is killed whose end has begun."""
        self._calls: dict[str, socket.socket] = {}
        self._next_look = 0.0

    def look(self) -> None:
        # A file that cannot be read at the moment leaves the deadlines as they were.
        with contextlib.suppress(OSError, ValueError):
            self._generation, self._engine, self.fences = read_fences(self._directory)
        self._forget_unnamed()
        now = boottime()
        due = {container for container, deadline in self.fences.items() if deadline <= now}
        # A deadline that is moved after the end has begun comes too late.
        due |= self._kill_at.keys()
        if due and now >= self._next_look:
            self._end(due, now)
        self._write_heartbeat(now)

    def _end(self, due: set[str], now: float) -> None:
        alive = processes_of(due)
        # An engine may carry out a start that it was asked for before the deadline at any time after it, so
        # all due containers are looked for as long as the daemon names them.
        self._next_look = now if alive else now + OVER_LOOK_SECONDS
        for container, pids in alive.items():
            if container not in self._kill_at:
                self._begin_end(container, now)
            if now >= self._kill_at[container]:
                say(f"killing {len(pids)} processes of container {container}")
                for pid in pids:
                    kill(pid, container)

    def _begin_end(self, container: str, now: float) -> None:
        say(f"ending container {container}: its deadline is over")
        with contextlib.suppress(OSError):
            _write(f"{self._directory}/{ENDED}{container}", f"{now}\n")
        channel = ask_to_stop(self._engine, container)
        if channel is None:
            self._kill_at[container] = now  # there is no engine to wait for
        else:
            self._kill_at[container] = now + GRACE_SECONDS + ENGINE_SECONDS
            self._calls[container] = channel

    def _forget_unnamed(self) -> None:
        """Forget containers that the daemon does not name any more: they are over."""
        for container in self._kill_at.keys() - self.fences.keys():
            del self._kill_at[container]
            if (channel := self._calls.pop(container, None)) is not None:
                channel.close()

    def _write_heartbeat(self, now: float) -> None:
        with contextlib.suppress(OSError):
            _write(f"{self._directory}/{HEARTBEAT}", f"{now} {self._generation}\n")


def _write(path: str, text: str) -> None:
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def take_lock(directory: str) -> bool:
    """Take the lock, and hold it until the process ends; return False if another program guards."""
    descriptor = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(LOOK_SECONDS / LOCK_TRIES)
        else:
            return True
    return False


def main() -> None:
    directory = sys.argv[1]
    os.chdir("/")
    # A signal that stops the daemon is not meant for the guard; SIGKILL ends the guard.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not take_lock(directory):
        return
    guard, idle_looks = FenceGuard(directory), 0
    # Looks are counted, and not seconds: a machine that slept has something to guard when it wakes.
    while idle_looks < IDLE_LOOKS:
        guard.look()
        idle_looks = 0 if guard.fences else idle_looks + 1
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
