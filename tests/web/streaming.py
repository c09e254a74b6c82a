"""A logged-in browser of a real daemon, from which tests read streams without any asyncio of their own."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

from tests.node.daemon import DaemonProcess, connected
from tests.web.page_changes import applied

HOST = "127.0.0.1:8642"
SECONDS = 60.0
UPGRADE = (
    b"GET /gpushare.web/browser HTTP/1.1\r\nHost: x\r\n"
    b"Upgrade: gpushare-browser\r\nConnection: Upgrade\r\n\r\n"
)


class StreamReader:
    """Read the events of one stream, and keep the answers as a page does."""

    def __init__(self, channel: socket.socket, rest: bytes) -> None:
        self.channel = channel
        self.answers: dict[str, dict[str, Any]] = {}
        self.mark = ""
        self._raw, self._text = rest, ""

    def event(self) -> dict[str, Any]:
        """The next event: its data, with its kind. Raises ``TimeoutError`` if only heartbeats come."""
        deadline = time.monotonic() + SECONDS
        while True:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no event came in {SECONDS:.0f} s")
            while "\n\n" not in self._text:
                self._text += self._chunk()
            block, _, self._text = self._text.partition("\n\n")
            fields = dict(line.partition(": ")[::2] for line in block.split("\n"))
            if "data" in fields:
                return self._taken(fields["event"], fields["id"], json.loads(fields["data"]))

    def until(self, name: str, **members: Any) -> dict[str, Any]:
        """The next event of this name and with these members."""
        while True:
            event = self.event()
            if event["name"] == name and members.items() <= event.items():
                return event

    def read_to_the_end(self) -> None:
        """Return when the daemon has ended the stream."""
        try:
            while True:
                self.event()
        except (EOFError, ConnectionError):
            return

    def states(self) -> dict[str, str]:
        """The states of the leases that the page has now."""
        return {lease["id"]: lease["state"] for lease in self.answers["leases"]["leases"]}

    def until_states(self, wanted: Mapping[str, str]) -> None:
        while not wanted.items() <= self.states().items():
            self.event()

    def _taken(self, kind: str, mark: str, data: dict[str, Any]) -> dict[str, Any]:
        name, self.mark = data["name"], mark
        if kind == "state":
            self.answers[name] = data["answer"]
        elif kind == "change":
            self.answers[name] = applied(self.answers[name], data)
        return {"kind": kind, **data}

    def _chunk(self) -> str:
        while b"\r\n" not in self._raw:
            self._more()
        size, _, self._raw = self._raw.partition(b"\r\n")
        length = int(size, 16)
        while len(self._raw) < length + 2:
            self._more()
        chunk, self._raw = self._raw[:length], self._raw[length + 2 :]
        if not length:
            raise EOFError("the stream has ended")
        return chunk.decode()

    def _more(self) -> None:
        data = self.channel.recv(1 << 20)
        if not data:
            raise ConnectionResetError("the daemon hung up")
        self._raw += data


class Browser:
    """A browser of one user; each request has a connection of its own, until the browser is closed."""

    def __init__(self, daemon: DaemonProcess, uid: int = 0) -> None:
        self.daemon = daemon
        self.uid = uid
        self._stack = ExitStack()
        body = json.dumps({"code": daemon.call("Web/Link", uid=uid)["code"]}).encode()
        status, headers, _, _ = self.ask("POST /login HTTP/1.1\r\nContent-Type: application/json\r\n", body)
        assert status == 204, headers
        self.cookie = headers["set-cookie"].partition(";")[0]

    def ask(self, head: str, body: bytes = b"") -> tuple[int, dict[str, str], socket.socket, bytes]:
        """Send a request; the status, the headers, the connection, and what came after the head."""
        channel = self._stack.enter_context(connected(self.daemon.socket, self.uid))
        channel.settimeout(SECONDS)
        channel.sendall(UPGRADE)
        _, rest = _head(channel, b"")
        cookie = f"Cookie: {self.cookie}\r\n" if hasattr(self, "cookie") else ""
        length = f"Origin: http://{HOST}\r\nContent-Length: {len(body)}\r\n" if body else ""
        channel.sendall(f"{head}Host: {HOST}\r\n{cookie}{length}\r\n".encode() + body)
        answer, rest = _head(channel, rest)
        first, *lines = answer.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return int(first.split()[1]), headers, channel, rest

    def stream(self, watch: Mapping[str, Any], mark: str = "") -> StreamReader:
        last = f"Last-Event-ID: {mark}\r\n" if mark else ""
        target = f"/stream?watch={quote(json.dumps(watch))}"
        status, headers, channel, rest = self.ask(
            f"GET {target} HTTP/1.1\r\nSec-Fetch-Site: same-origin\r\n{last}"
        )
        if status != 200:
            raise RefusedStream(status, rest or channel.recv(int(headers["content-length"])))
        return StreamReader(channel, rest)

    def close(self) -> None:
        self._stack.close()


class RefusedStream(Exception):
    """The daemon did not open a stream."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status} {body!r}")
        self.status = status
        self.answer = json.loads(body)


def _head(channel: socket.socket, rest: bytes) -> tuple[bytes, bytes]:
    while b"\r\n\r\n" not in rest:
        data = channel.recv(65536)
        if not data:
            raise ConnectionResetError("the daemon hung up")
        rest += data
    head, _, rest = rest.partition(b"\r\n\r\n")
    return head, rest
