"""Make one HTTP/1.1 request over a unix socket, read its answer, and turn the daemon's errors into our tree.

This is written by hand because ``http.client`` (which brings ``email``) takes longer to import than a listing
takes to be asked for and shown. It does only what the daemon's socket needs: a connection per request,
answers with a length, in chunks or until the end of the connection.
"""

from __future__ import annotations

import json
import socket
from time import monotonic

from gpushared.domain.model import errors
from gpushared.domain.model.errors import DaemonUnavailable, GpushareError, NotLeader, TimedOut, kind_of_code
from gpushared.light import NamedTuple

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
CONNECT_SECONDS = 5.0


class HttpAnswer(NamedTuple):
    """Hold status and body of an answer."""

    status: int
    body: bytes


def exchange(
    path: str, method: str, target: str, body: bytes = b"", *, timeout_seconds: float = 30.0
) -> HttpAnswer:
    """Ask once and read the whole answer within the time.

    Raises DaemonUnavailable (nobody there), ConnectionLost (gone before the answer was complete), TimedOut,
    PermissionRefused, or Unavailable if the peer does not speak HTTP.
    """
    deadline = monotonic() + timeout_seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(min(CONNECT_SECONDS, timeout_seconds))
            connection.connect(path)
        except TimeoutError as error:
            raise _no_answer(path) from error
        except OSError as error:
            raise unreachable(path, error) from error
        try:
            connection.settimeout(timeout_seconds)
            connection.sendall(_request(method, target, body))
            return _Reader(connection, path, deadline).answer()
        except TimeoutError as error:
            raise _no_answer(path) from error
        except OSError as error:
            raise _lost(path) from error


def _request(method: str, target: str, body: bytes) -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: gpushared\r\nConnection: close\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode("ascii") + b"\r\n" + body


def _lost(path: str) -> ConnectionLost:
    return ConnectionLost(
        f"the connection to the daemon on {path} was lost", hint="see `systemctl status gpushared`"
    )


def _no_answer(path: str) -> TimedOut:
    return TimedOut(
        f"the daemon on {path} did not answer in time", hint="see `systemctl status gpushared` and its log"
    )


class _Reader:
    """Read one answer; every wait counts against one deadline, so a trickle cannot hold a caller."""

    def __init__(self, connection: socket.socket, path: str, deadline: float) -> None:
        self._connection = connection
        self._path = path
        self._deadline = deadline
        self._buffer = bytearray()

    def answer(self) -> HttpAnswer:
        status, headers = self._head()
        while 100 <= status < 200:  # noqa: PLR2004 - informational answers precede the real one
            status, headers = self._head()
        return HttpAnswer(status, self._body(status, headers))

    def _head(self) -> tuple[int, dict[str, str]]:
        parts = self._line().split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdecimal():  # noqa: PLR2004
            raise not_our_daemon(self._path, "no HTTP answer")
        headers: dict[str, str] = {}
        size = 0
        while line := self._line():
            size += len(line)
            if size > MAX_HEAD_BYTES:
                raise not_our_daemon(self._path, "endless headers")
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return int(parts[1]), headers

    def _body(self, status: int, headers: dict[str, str]) -> bytes:
        if status in {204, 304}:
            return b""
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return self._chunks()
        if "content-length" in headers:
            return self._exactly(self._size(headers["content-length"], 10))
        return self._rest()

    def _chunks(self) -> bytes:
        body = bytearray()
        while size := self._size(self._line().partition(";")[0].strip(), 16):
            body += self._exactly(size)
            if self._line():
                raise not_our_daemon(self._path, "broken chunk")
            if len(body) > MAX_BODY_BYTES:
                raise not_our_daemon(self._path, "endless answer")
        while self._line():  # trailers
            pass
        return bytes(body)

    def _size(self, text: str, base: int) -> int:
        try:
            size = int(text, base)
        except ValueError:
            size = -1
        if not 0 <= size <= MAX_BODY_BYTES:
            raise not_our_daemon(self._path, "a length that makes no sense")
        return size

    def _line(self) -> str:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise not_our_daemon(self._path, "endless line")
            self._fill()
        line = self._buffer[:end].decode("latin-1")
        del self._buffer[: end + 2]
        return line

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _rest(self) -> bytes:
        while self._receive():
            if len(self._buffer) > MAX_BODY_BYTES:
                raise not_our_daemon(self._path, "endless answer")
        return bytes(self._buffer)

    def _fill(self) -> None:
        if not self._receive():
            raise _lost(self._path)

    def _receive(self) -> int:
        remaining = self._deadline - monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._connection.settimeout(remaining)
        data = self._connection.recv(256 * 1024)
        self._buffer += data
        return len(data)


class NotOurDaemon(errors.Unavailable):
    """Another program than gpushared serves the socket; asking again does not help."""


class ConnectionLost(DaemonUnavailable):
    """The daemon was reached, but its answer did not come; the call may or may not have been carried out."""


def from_answer(status: int, body: bytes, path: str) -> GpushareError:
    """Return the error that an answer other than 200 stands for.

    Form: ``{"code", "message", "details": [{"hint", "leader"}]}``
    (https://connectrpc.com/docs/protocol#error-end-stream). An answer without a code is not our daemon's.
    """
    data = _json_object(body)
    code, message = data.get("code"), data.get("message")
    if not isinstance(code, str) or not isinstance(message, str):
        return not_our_daemon(path, f"status {status}")
    hint, leader = (_detail(data.get("details"), name) for name in ("hint", "leader"))
    return NotLeader(message, hint=hint, leader=leader) if leader else kind_of_code(code)(message, hint=hint)


def not_our_daemon(path: str, evidence: str) -> GpushareError:
    """Return the error for a program on the socket that does not speak as gpushared does."""
    return NotOurDaemon(
        f"the program that answers on {path} is not gpushared ({evidence})", hint="check GPUSHARE_HOST"
    )


def unreachable(path: str, error: OSError) -> GpushareError:
    """Return the error that tells why no connection could be made."""
    if isinstance(error, PermissionError):
        return errors.PermissionRefused(
            f"you may not use the socket {path}", hint="ask the admin of this machine, or check GPUSHARE_HOST"
        )
    why = {FileNotFoundError: "there is no socket", ConnectionRefusedError: "nobody listens there"}
    return DaemonUnavailable(
        f"no gpushared daemon answers on {path}: {why.get(type(error), error.strerror or str(error))}",
        hint="see `systemctl status gpushared`; for a daemon elsewhere: export GPUSHARE_HOST=unix:///PATH",
    )


def docker_message(status: int, body: bytes) -> str:
    """Return the error message in an answer of the Docker API."""
    return str(_json_object(body).get("message", f"status {status}"))


def _json_object(body: bytes) -> dict[str, object]:
    try:
        data = json.loads(body)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _detail(details: object, name: str) -> str:
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(detail.get(name), str):
            return str(detail[name])
    return ""
