"""Talk with systemd as a service: notifications, the watchdog, inherited sockets, lines for journald."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from gpushared.daemon.programs import run_program

FIRST_PASSED_FD = 3
"""SD_LISTEN_FDS_START of sd_listen_fds(3)."""
ASK_SECONDS = 2.0
DOCKER_UNIT = "docker.service"
JOURNAL_SOCKET = Path("/run/systemd/journal/socket")


class Notifier:
    """Send notifications (sd_notify(3)) if systemd wants them, and do nothing elsewhere."""

    def __init__(self, address: str | None = None) -> None:
        address = os.environ.get("NOTIFY_SOCKET") if address is None else address
        self._address = "\0" + address[1:] if address and address.startswith("@") else address

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        self._send(f"STATUS={status}")

    def reloading(self) -> None:
        """Report a reload. Type=notify-reload needs the monotonic time; Type=notify ignores it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.setblocking(False)
            try:
                channel.sendto(text.encode(), self._address)
            except OSError:
                return  # a manager that does not listen is no reason to fail


def watchdog_seconds() -> float | None:
    """Return the seconds between signs of life to systemd: half of WatchdogSec, None without a watchdog."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    for_us = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(microseconds) / 2e6 if microseconds.isdigit() and for_us else None


def is_socket_activated() -> bool:
    """Return True if systemd opened exactly one listening socket for us (sd_listen_fds(3))."""
    return os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS") == "1"


def passed_socket() -> socket.socket | None:
    """Return the socket that systemd opened for us, if it did; call this only once."""
    if not is_socket_activated():
        return None
    os.set_inheritable(FIRST_PASSED_FD, False)
    return socket.socket(fileno=FIRST_PASSED_FD)


async def is_machine_going_down() -> bool:
    """Return True if systemd shuts the machine down, also for a reboot; False without a timely answer."""
    return await _answer("is-system-running") == "stopping"


async def is_docker_going_down() -> bool:
    """Return True if systemd is ending or restarting Docker at this moment; False without a timely answer."""
    return await _answer("is-active", DOCKER_UNIT) in ("deactivating", "activating")


async def _answer(*words: str) -> str:
    try:
        result = await run_program(["systemctl", *words], seconds=ASK_SECONDS)
    except OSError:
        return ""
    return result.output.strip()


async def feed_watchdog(notifier: Notifier) -> None:
    """Send systemd a sign that the event loop runs, as often as its watchdog expects one."""
    seconds = watchdog_seconds()
    while seconds is not None:
        notifier.alive()
        await asyncio.sleep(seconds)


class Journald:
    """Send each line as one datagram (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/), without any wait."""

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
        status = os.fstat(2)
    except OSError:
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))
