"""A stand-in for the daemon: answers calls from a script, over a real unix socket, in strict HTTP (h11).

It is not the daemon and keeps no leases; it lets the client and the command line be shown each answer,
delay and break that the daemon could show them. End-to-end tests use the daemon itself.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h11

HANG_SECONDS = 60


class Call(NamedTuple):
    """What a client asked."""

    method: str
    target: str
    body: dict[str, Any]
    headers: dict[str, str]


class Reply(NamedTuple):
    """What is answered: in HTTP chunks, with or without a length, held back, byte by byte, or not at all."""

    body: bytes = b"{}"
    status: int = 200
    chunks: int = 0
    length: bool = True
    hang_up: bool = False
    raw: bytes | None = None
    informational: bool = False
    hold: threading.Event | None = None
    drip_seconds: float = 0.0


def ok(data: object) -> Reply:
    return Reply(json.dumps(data).encode())


def refusal(status: int, code: str, message: str, hint: str = "", leader: str = "") -> Reply:
    detail = {name: text for name, text in (("hint", hint), ("leader", leader)) if text}
    details = [detail] if detail else []
    body = {"code": code, "message": message, "details": details}
    return Reply(json.dumps(body).encode(), status=status)


HANG_UP = Reply(hang_up=True)

Answerer = Reply | list[Reply] | Callable[[Call], Reply]


class StandIn:
    """Serves until closed; an answer is a Reply, a list of them (the last one stays), or a function."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, Answerer] = {}
        self.calls: list[Call] = []
        self.problems: list[str] = []
        self._news = threading.Condition()
        self._gone = threading.Event()
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self.listen()

    @property
    def host(self) -> str:
        return f"unix://{self.path}"

    def listen(self) -> None:
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen(16)
        self._listener = listener
        self._start(self._accept, listener)

    def go_away(self) -> None:
        """As a killed daemon: the listener and all connections are gone."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for connection in list(self._open):
            with contextlib.suppress(OSError):  # it may have ended by itself meanwhile
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._gone.set()
        self.go_away()
        for thread in self._threads:
            thread.join(HANG_SECONDS)
        assert not self.problems, self.problems

    def asked(self, target: str) -> list[dict[str, Any]]:
        """The bodies of all calls of one kind, in order."""
        return [call.body for call in self.calls if call.target == f"/gpushare.v1.{target}"]

    def wait_for(self, target: str, count: int = 1) -> list[dict[str, Any]]:
        """Comes back once so many calls of the kind were made."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.asked(target)) >= count, HANG_SECONDS), self.calls
        return self.asked(target)

    def _start(self, work: Callable[[socket.socket], None], part: socket.socket) -> None:
        thread = threading.Thread(target=work, args=(part,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._open.add(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                call = self._read(connection)
                if call is not None:
                    self._answer(connection, call)
            except h11.RemoteProtocolError as error:
                self.problems.append(f"a client broke the protocol: {error}")
            except OSError:
                pass  # the client left first, as some tests want
            finally:
                self._open.discard(connection)

    def _read(self, connection: socket.socket) -> Call | None:
        http, request, body = h11.Connection(h11.SERVER), None, b""
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(connection.recv(65536))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return None
        assert request is not None
        headers = {name.decode(): value.decode() for name, value in request.headers}
        call = Call(
            request.method.decode(), request.target.decode(), json.loads(body) if body else {}, headers
        )
        with self._news:
            self.calls.append(call)
            self._news.notify_all()
        self._http = http
        return call

    def _answer(self, connection: socket.socket, call: Call) -> None:
        reply = self._reply(call)
        if reply.hold is not None:
            reply.hold.wait(HANG_SECONDS)
        if reply.hang_up:
            return
        if reply.raw is not None:
            connection.sendall(reply.raw)
            return
        for piece in _written(call, reply):
            for part in [piece] if not reply.drip_seconds else [piece[n : n + 1] for n in range(len(piece))]:
                connection.sendall(part)
                self._gone.wait(reply.drip_seconds)

    def _reply(self, call: Call) -> Reply:
        answer = self.answers.get(call.target.removeprefix("/gpushare.v1."), Reply(status=404, body=b"{}"))
        if isinstance(answer, list):
            return answer.pop(0) if len(answer) > 1 else answer[0]
        return answer(call) if callable(answer) else answer


def _written(call: Call, reply: Reply) -> Iterator[bytes]:
    """The answer's bytes as h11 writes them, so that nothing sloppy is taught to the client."""
    http = h11.Connection(h11.SERVER)
    http.receive_data(f"{call.method} / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    while not isinstance(http.next_event(), h11.EndOfMessage):
        pass
    headers = [("Content-Type", "application/json")]
    if reply.informational:
        yield http.send(h11.InformationalResponse(status_code=103, headers=[("X-Early", "1")])) or b""
    if reply.chunks:
        headers.append(("Transfer-Encoding", "chunked"))
    elif reply.length:
        headers.append(("Content-Length", str(len(reply.body))))
    head = http.send(h11.Response(status_code=reply.status, headers=headers)) or b""
    if not reply.chunks and not reply.length:  # h11 would choose chunks; the end of the connection is meant
        yield head.replace(b"Transfer-Encoding: chunked\r\n", b"")
        yield reply.body
        return
    yield head
    size = max(1, -(-len(reply.body) // max(1, reply.chunks)))
    for start in range(0, len(reply.body), size):
        yield http.send(h11.Data(data=reply.body[start : start + size])) or b""
    yield http.send(h11.EndOfMessage()) or b""
