"""Find the process that holds the connection to a control daemon that does not answer.

The daemon talks to one peer at a time. A peer that connects and sends nothing keeps all others waiting, and
the kernel remembers the peer.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

_UCRED = struct.Struct("3i")
_PIDFD_GETFD = 438
"""pidfd_getfd(2) has the same number on every architecture; Linux 5.6."""
_OWN = "nvidia-cuda-mps"
"""The names of MPS's own programs begin with this text: servers keep a connection to their daemon. Any
program can take such a name, but none in a container can get a place in the daemon's cgroup."""
_PROC = Path("/proc")

_LIBC = ctypes.CDLL(None, use_errno=True)


def connection_holder(daemon: int) -> tuple[int, str] | None:
    """Return the PID and name of the one process connected to this daemon; None for no or several ones.

    This needs the right to trace the daemon, so root; without it the answer is None.
    """
    peers = {peer for peer in _peers(daemon) if peer > 0 and peer not in (daemon, os.getpid())}
    named = [(peer, name) for peer in sorted(peers) if (name := _name(peer)) and not is_own(peer, daemon)]
    return named[0] if len(named) == 1 else None


def _peers(daemon: int) -> list[int]:
    peers: list[int] = []
    with suppress(OSError):
        pidfd = os.pidfd_open(daemon)
        try:
            for entry in Path(f"/proc/{daemon}/fd").iterdir():
                with suppress(OSError):
                    if str(entry.readlink()).startswith("socket:"):
                        peers += _peer(pidfd, int(entry.name))
        finally:
            os.close(pidfd)
    return peers


def _peer(pidfd: int, number: int) -> list[int]:
    """Return the peer of this socket of the daemon's, unless the socket is the listening one."""
    descriptor = _LIBC.syscall(_PIDFD_GETFD, pidfd, number, 0)
    if descriptor < 0:
        return []
    with socket.socket(fileno=descriptor) as connection:
        if connection.type != socket.SOCK_SEQPACKET or connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        ):
            return []
        pid, _uid, _gid = _UCRED.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        )
    return [int(pid)]


def is_own(pid: int, daemon: int, proc: Path = _PROC) -> bool:
    """Return True if a process belongs to MPS itself, and does not only have such a name."""
    return _name(pid, proc).startswith(_OWN) and _read(pid, "cgroup", proc) == _read(daemon, "cgroup", proc)


def _name(pid: int, proc: Path = _PROC) -> str:
    """Return a process's name, reduced to printable letters, because the process itself chose it."""
    return "".join(letter for letter in _read(pid, "comm", proc).strip() if letter.isprintable())


def _read(pid: int, file: str, proc: Path) -> str:
    try:
        return (proc / str(pid) / file).read_text(errors="replace")
    except OSError:
        return ""
