"""Lines with fields for journald, over its own socket (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

JOURNAL_SOCKET = Path("/run/systemd/journal/socket")


class Journald:
    """A datagram a line, sent at once and never waited for."""

    def __init__(self, path: Path = JOURNAL_SOCKET) -> None:
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def send(self, fields: Mapping[str, str]) -> bool:
        """Whether journald has it; not where it is away, or too busy to take more."""
        try:
            self._socket.sendto(encoded(fields), self._path)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


def encoded(fields: Mapping[str, str]) -> bytes:
    """One entry. A value with a line break goes with its length; names are in capitals, as journald wants."""
    return b"".join(_field(name.encode("ascii"), value.encode()) for name, value in fields.items())


def _field(name: bytes, value: bytes) -> bytes:
    if b"\n" in value:
        return name + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    return name + b"=" + value + b"\n"


def is_logged_to() -> bool:
    """Whether this process's standard error goes to journald (JOURNAL_STREAM of systemd.exec(5))."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))
