"""Hold a daemon process that may outlive us: started detached, or found alive, and held by a pidfd."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_UCRED = struct.Struct("3i")
_CONNECT_SECONDS = 1.0
_PRIVATE_UMASK = 'umask 077; exec "$0" "$@"'


class DaemonProcess:
    """Hold one process, ours or adopted, and await its end.

    The pidfd keeps the number from being mistaken for another process's. ``release`` closes the pidfd and
    leaves the process running. The object belongs to the event loop in which it was made.
    """

    def __init__(self, pid: int) -> None:
        """Raise ``ProcessLookupError`` if there is no such process."""
        self.pid = pid
        self.exit_status: int | None = None
        """The status of a child that exited; None for an adopted process."""
        self._fd = os.pidfd_open(pid)
        self._gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._on_exit)

    @property
    def exited(self) -> bool:
        return self._gone.is_set()

    async def exits_within(self, seconds: float) -> bool:
        """Wait at most this long for the process's end, and return True if it is gone."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        return self.exited

    def kill(self) -> None:
        """Send SIGKILL to the process and to its process group; nothing happens if the process is gone."""
        if self.exited or self._fd < 0:
            return
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, signal.SIGKILL)
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def release(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _on_exit(self) -> None:
        # The present parent of an adopted process reaps it.
        with suppress(ChildProcessError):
            result = os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)
            self.exit_status = result.si_status if result else None
        self.release()
        self._gone.set()


def spawn_daemon(command: Sequence[str], env: Mapping[str, str], log: Path) -> int:
    """Start a program in its own session under umask 077, its output appended to ``log``; return its PID.

    This does not use ``subprocess``: both its objects and asyncio's insist on ending or collecting the child
    with us. The log is a file and not a pipe, because the reader of a pipe would be gone after our restart.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        "/bin/sh",
        ["/bin/sh", "-c", _PRIVATE_UMASK, *command],
        dict(env),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        # Python ignores SIGPIPE, and an ignored signal would be inherited.
        setsigdef=[signal.SIGPIPE],
    )


def listener_pid(path: Path) -> int | None:
    """Return the PID of the process that listens on a SEQPACKET socket, as the kernel knows it, or None.

    This blocks for at most a second. The connection is closed at once and nothing is sent.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, _uid, _gid = _UCRED.unpack(credentials)
    return int(pid)
