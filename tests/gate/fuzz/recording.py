"""An engine that keeps the exact bytes of each connection, and says just enough for the gate to go on.

No real engine shows the bytes it was given. ``test_recorder`` holds its answers to a real one's.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushared.ports import LABEL_OWNER
from tests.gate.serving import ALICE

MARK = "9.99"
"""The API version of this engine's answers: an answer without it is the gate's own."""
CONTAINER = "c" * 64
EXEC = "e" * 64
NETWORK = "d" * 64
QUIET_SECONDS = 0.02
"""How long after the head a body may take on this machine's own sockets; the bytes are all there by then."""


def _owned() -> dict[str, str]:
    return {LABEL_OWNER: str(ALICE.uid)}


def inspected() -> dict[str, Any]:
    """A container of the confined caller's."""
    return {
        "Id": CONTAINER,
        "Name": "/mine",
        "Created": "2026-01-01T00:00:00Z",
        "Image": "sha256:" + "a" * 64,
        "State": {"Running": True, "Pid": 1},
        "Config": {"Labels": _owned(), "User": f"{ALICE.uid}:{ALICE.gid}", "Tty": False},
        "HostConfig": {"CapDrop": ["ALL"], "Privileged": False, "NetworkMode": "none"},
        "NetworkSettings": {"Networks": {"none": {}}},
        "Mounts": [],
    }


KNOWN: tuple[tuple[str, Any], ...] = (
    (r"/containers/(mine|c{64})/json", inspected()),
    (r"/exec/(e{64})/json", {"ID": EXEC, "ContainerID": CONTAINER}),
    (r"/networks/(net|d{64})", {"Id": NETWORK, "Name": "net", "Driver": "bridge", "Labels": _owned()}),
    (r"/volumes/vol", {"Name": "vol", "Driver": "local", "Labels": _owned(), "Options": None}),
    (r"/containers/json", []),
    (r"/images/json", []),
)


def answer_of(method: str, path: str) -> tuple[int, Any]:
    """Status and body, as an engine gives them where there is one container, network and volume."""
    path = re.sub(r"^/v[0-9.]+(?=/)", "", path)
    if method == "POST" and path == "/containers/create":
        return 201, {"Id": CONTAINER, "Warnings": []}
    if method != "GET":
        return 200, {}
    for pattern, body in KNOWN:
        if re.fullmatch(pattern, path):
            return 200, body
    if named := re.fullmatch(r"/containers/([^/]+)/.*", path):
        return 404, {"message": f"No such container: {named[1]}"}
    return (404, {"message": "not found"}) if path.count("/") > 1 else (200, {})


@dataclass
class Recorder:
    """``connections`` has a buffer for each connection that was made."""

    path: str = ""
    connections: list[bytearray] = field(default_factory=list)
    open: int = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = bytearray()
        self.connections.append(got)
        self.open += 1
        try:
            while b"\r\n\r\n" not in got and (data := await reader.read(65536)):
                got += data
            await self._rest(reader, got)
            writer.write(_answer(bytes(got)))
            await writer.drain()
            while data := await reader.read(65536):
                got += data
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()

    async def _rest(self, reader: asyncio.StreamReader, got: bytearray) -> None:
        """The body, however it is framed, and what the gate may send beyond it."""
        try:
            async with asyncio.timeout(QUIET_SECONDS if _has_body(bytes(got)) else 0):
                while data := await reader.read(65536):
                    got += data
        except TimeoutError:
            pass


def _has_body(got: bytes) -> bool:
    head = got.partition(b"\r\n\r\n")[0].lower()
    return b"\r\ncontent-length:" in head or b"\r\ntransfer-encoding:" in head


def _answer(got: bytes) -> bytes:
    line = got.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    method, target = (line[0], line[1]) if len(line) > 1 else ("", "/")
    status, body = answer_of(method, target.partition("?")[0])
    encoded = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Status\r\nApi-Version: {MARK}\r\nContent-Type: application/json\r\n"
    shown = b"" if method == "HEAD" else encoded
    return head.encode() + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(encoded) + shown


@asynccontextmanager
async def recording() -> AsyncIterator[Recorder]:
    recorder = Recorder()
    with tempfile.TemporaryDirectory(prefix="engine-") as directory:
        recorder.path = str(Path(directory) / "s")
        server = await asyncio.start_unix_server(recorder.connected, recorder.path)
        try:
            yield recorder
        finally:
            server.close()
