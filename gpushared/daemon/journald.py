"""Send lines with fields to journald's own socket (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

JOURNAL_SOCKET = Path("/run/systemd/journal/socket")


class Journald:
    """Send each line as one datagram, at once and without any wait."""

    def __init__(self, path: Path = JOURNAL_SOCKET) -> None:
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def send(self, fields: Mapping[str, str]) -> bool:
        """Send a line; return False if journald is away, or too busy to take more."""
        try:
            self._socket.sendto(encoded(fields), self._path)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


def encoded(fields: Mapping[str, str]) -> bytes:
    """Encode one entry. A value with a line break gets its length; names are in capitals for journald."""
    return b"".join(_field(name.encode("ascii"), value.encode()) for name, value in fields.items())


def _field(name: bytes, value: bytes) -> bytes:
    if b"\n" in value:
        return name + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    return name + b"=" + value + b"\n"


def is_logged_to() -> bool:
    """Return True if standard error goes to journald (JOURNAL_STREAM of systemd.exec(5))."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))
