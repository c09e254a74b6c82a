"""A switch in user space, run as a program: a port for each machine, whose cable can be made bad each way.

It makes a TAP device for each port, which whoever runs it moves into the machine's network. What a machine
sends goes *up*, what is sent to it goes *down*; each way loses, delays and doubles whole frames as told.
Words come as a line of JSON each on standard input, and are answered by an empty line once they hold.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

TUNSETIFF: Final = 0x400454CA
IFF_TAP: Final = 0x0002
IFF_NO_PI: Final = 0x1000
FRAME_BYTES: Final = 65536
SOURCE, TARGET = slice(6, 12), slice(0, 6)


@dataclass
class Direction:
    """One direction of a cable. ``jitter_seconds`` puts frames out of order; the rest are ratios."""

    lost: float = 0.0
    doubled: float = 0.0
    delay_seconds: float = 0.0
    jitter_seconds: float = 0.0

    def carry(self, deliver: Callable[[], None]) -> None:
        copies = 1 + (random.random() < self.doubled)
        for _ in range(copies):
            if random.random() < self.lost:
                continue
            seconds = self.delay_seconds + random.uniform(0.0, self.jitter_seconds)
            if seconds:
                asyncio.get_running_loop().call_later(seconds, deliver)
            else:
                deliver()


@dataclass
class Port:
    device: int
    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)

    def put(self, frame: bytes) -> None:
        try:
            os.write(self.device, frame)
        except OSError:
            return  # it is down, or its machine is off


class Switch:
    def __init__(self) -> None:
        self._ports: dict[str, Port] = {}
        self._known: dict[bytes, str] = {}

    def obey(self, words: dict[str, object]) -> None:
        name = str(words["port"])
        if "device" in words:
            self._plug(name, str(words["device"]))
            return
        port = self._ports[name]
        port.up, port.down = (Direction(**dict(words.get(way, {}))) for way in ("up", "down"))  # type: ignore[call-overload]

    def _plug(self, name: str, device: str) -> None:
        self._unplug(name)
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
        self._ports[name] = Port(descriptor)
        asyncio.get_running_loop().add_reader(descriptor, self._read, name)

    def _unplug(self, name: str) -> None:
        if (port := self._ports.pop(name, None)) is not None:
            asyncio.get_running_loop().remove_reader(port.device)
            os.close(port.device)

    def _read(self, name: str) -> None:
        port = self._ports[name]
        try:
            frame = os.read(port.device, FRAME_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._unplug(name)
            return
        self._known[frame[SOURCE]] = name
        port.up.carry(lambda: self._forward(name, frame))

    def _forward(self, source: str, frame: bytes) -> None:
        known = self._known.get(frame[TARGET])
        for name, port in list(self._ports.items()):
            if name != source and known in {None, name}:
                port.down.carry(lambda port=port: port.put(frame))  # type: ignore[misc]


async def main() -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    switch = Switch()
    while line := await reader.readline():
        switch.obey(json.loads(line))
        sys.stdout.write("\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
