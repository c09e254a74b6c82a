"""Run a small process beside ``docker run``, through which docker speaks with the daemon.

Docker's client ends when one of its connections breaks, with an exit code that is not the program's, though
the container runs on. So ``gpushare run`` forks before it becomes docker, and docker's connections lead
through the fork. When the daemon goes away, the fork keeps docker's ends open, and takes two connections up
again: that of the output and input (``attach``), and that of the exit code (``wait``). Process, signals,
terminal and exit code stay docker's own.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from functools import cached_property

from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

    from gpushared.cli.runs import Finder, Run

SOCKET = "docker.sock"
BACKLOG = 32
READ_BYTES = 256 * 1024
MAX_HEAD_BYTES = 64 * 1024
DOCKER_FAILED = 125
CONCLUSION_SECONDS = 2.0
"""The exit code and the end of a program's output come together; one alone means that the other broke."""
_REQUEST = re.compile(rb"[A-Z]+ /\S* HTTP/1\.1\r\n")
_ATTACH = re.compile(rb"POST (?:/v[0-9.]+)?/containers/[^/?]+/attach[? ]")
_WAIT = re.compile(rb"POST (?:/v[0-9.]+)?/containers/[^/?]+/wait(\?condition=removed)?[?& ]?")
_CREATE = re.compile(rb"POST (?:/v[0-9.]+)?/containers/create[? ]")
_START = re.compile(rb"POST (?:/v[0-9.]+)?/containers/[^/?]+/start[? ]")
_STARTED = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
_IS_STREAM = re.compile(rb"HTTP/1\.1 (?:101|200) ")


def fork_relay(run: Callable[[], Run], path: str, *, terminal: bool) -> str:
    """Fork, and return the path of a socket that leads to that of the daemon, as long as this process lives.

    The fork ends with this process, also after this process has become docker. Without a fork, return ``path``
    itself. ``run`` is called in the fork when a connection breaks. ``terminal``: True if the container has one.
    """
    try:
        parent_pidfd = os.pidfd_open(os.getpid())
        folder, listener = _listen_privately()
    except OSError:
        return path
    if os.fork() == 0:
        _serve(run, path, folder, listener, parent_pidfd, terminal=terminal)
    listener.close()
    os.close(parent_pidfd)
    return f"{folder}/{SOCKET}"


def _listen_privately() -> tuple[str, socket.socket]:
    """Make a folder for this user only, and a socket in it. Raises OSError."""
    parents = (os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"), "/tmp")  # noqa: S108 - 0700 below
    for parent in parents:
        with suppress(OSError):
            folder = f"{parent}/gpushare-run-{os.getpid()}-{os.urandom(4).hex()}"
            os.mkdir(folder, 0o700)  # noqa: PTH102 - importing pathlib costs 5 ms
            try:
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                listener.bind(f"{folder}/{SOCKET}")
                listener.listen(BACKLOG)
            except OSError:  # as of a path that is too long
                os.rmdir(folder)  # noqa: PTH106 - as above
                raise
            return folder, listener
    raise FileNotFoundError("there is no folder for a socket")


def _serve(
    run: Callable[[], Run],
    path: str,
    folder: str,
    listener: socket.socket,
    parent_pidfd: int,
    *,
    terminal: bool,
) -> NoReturn:
    """Live as the fork, in a session of its own, because the terminal's signals are for docker."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)
        relay = Relay(run, path, terminal=terminal)
        poll = select.poll()
        poll.register(parent_pidfd, select.POLLIN)
        poll.register(listener, select.POLLIN)
        while all(number != parent_pidfd for number, _ in poll.poll()):
            with suppress(OSError):
                RelayedConnection(relay, listener.accept()[0]).start()
    finally:
        with suppress(OSError):
            os.unlink(f"{folder}/{SOCKET}")  # noqa: PTH108 - importing pathlib costs 5 ms
            os.rmdir(folder)  # noqa: PTH106 - the same
        os._exit(0)


class ExitCodeWait(Enum):
    """Name the state of docker's wait for the exit code."""

    NONE = auto()
    UNDER_WAY = auto()
    BROKEN = auto()
    OVER = auto()


class Relay:
    """Hold the state that the connections of one docker share."""

    def __init__(self, run: Callable[[], Run], path: str, *, terminal: bool) -> None:
        # The import stands here and not above: it is the fork's, beside docker's own start.
        from threading import Condition

        self.path = path
        self.terminal = terminal
        self._run = run
        self._wait = ExitCodeWait.NONE
        self._over_since = 0.0
        self.has_given_up = False
        """True if the daemon stayed away for the whole time of the search."""
        self._changed = Condition()

    @cached_property
    def finder(self) -> Finder:
        """Make the finder at the first use: only a connection that broke needs one."""
        from gpushared.cli.runs import Finder

        return Finder(self._run(), terminal=self.terminal)

    def set_wait_state(self, wait: ExitCodeWait) -> None:
        with self._changed:
            if self._wait is not ExitCodeWait.OVER:
                self._wait = wait
                self._over_since = time.monotonic()
            self._changed.notify_all()

    def wait_state(self, seconds: float | None = 0.0) -> ExitCodeWait:
        """Return the wait's state once it is no longer under way, or after the time."""
        with self._changed:
            self._changed.wait_for(lambda: self._wait is not ExitCodeWait.UNDER_WAY, seconds)
            return self._wait

    def seconds_over(self, since: float) -> float:
        """Return the seconds since docker got the exit code, but at most since ``since`` (monotonic)."""
        with self._changed:
            is_over = self._wait is ExitCodeWait.OVER
            return time.monotonic() - max(since, self._over_since) if is_over else 0.0

    def until_over(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._wait is ExitCodeWait.OVER)


class RelayedConnection:
    """Relay one of docker's connections by a thread for each direction; the one from the daemon resumes it."""

    def __init__(self, relay: Relay, client: socket.socket) -> None:
        from threading import Condition

        self._relay = relay
        self._client = client
        self._upstream: socket.socket | None = None
        self._changed = Condition()
        self._is_over = False
        self._client_ended = False
        self._head = b""
        """The head of the request that is under way."""
        self._answer = bytearray()
        """The beginning of the answer to docker's request, as long as it matters."""
        self._frames: Frames | None = None
        self._resumed_without_output = False
        """The output was taken up alone and nothing came: a program may close its output and work on."""

    def start(self) -> None:
        from threading import Thread

        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        from threading import Thread

        with suppress(OSError):
            self._upstream = connect(self._relay.path)
            Thread(target=self._upwards, daemon=True).start()
            self._downwards()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        for sock in (self._client, self._upstream):
            if sock is not None:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    # --- what docker sends

    def _upwards(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(READ_BYTES):
                if not self._is_attached() and _REQUEST.match(data):
                    self._begin(data)
                self._push(data)
        self._client_ended = True
        self._push(b"")

    def _begin(self, head: bytes) -> None:
        self._head, self._answer = head, bytearray()
        if _WAIT.match(head):
            self._relay.set_wait_state(ExitCodeWait.UNDER_WAY)

    def _push(self, data: bytes) -> None:
        """Send all bytes to the present connection; no bytes mean the end."""
        upstream = self._upstream
        is_pushed = False
        while upstream is not None and not is_pushed:
            try:
                if not data:
                    upstream.shutdown(socket.SHUT_WR)
                while data:
                    data = data[upstream.send(data) :]
                is_pushed = True
            except OSError:
                upstream = self._next(upstream)

    def _next(self, before: socket.socket) -> socket.socket | None:
        with self._changed:
            while self._upstream is before and not self._is_over:
                self._changed.wait()
            return None if self._is_over else self._upstream

    # --- what the daemon sends

    def _downwards(self) -> None:
        while True:
            quiet_since = time.monotonic()
            data = _receive(self._upstream)
            if data:
                self._client.sendall(self._note(data))
            elif not self._resume(quiet_since):
                return

    def _note(self, data: bytes) -> bytes:
        """Note the state that the engine's data shows, and return the data that docker gets now."""
        self._resumed_without_output = False
        if self._frames is not None:
            return self._frames.whole(data)
        if self._is_attached():
            return self._first_output(data)
        if _WAIT.match(self._head):
            self._answer += data
            if self._answer.partition(b"\r\n\r\n")[2]:
                self._relay.set_wait_state(ExitCodeWait.OVER)
        elif not self._answer:
            self._answer += data[:1]
        return data

    def _first_output(self, data: bytes) -> bytes:
        """After the head of the answer to ``attach`` come frames, where the container has no terminal."""
        if b"\r\n\r\n" in self._answer:
            return data
        self._answer += data
        head, end, output = bytes(self._answer).partition(b"\r\n\r\n")
        if not end or self._relay.terminal or not _IS_STREAM.match(head):
            return data
        self._frames = Frames()
        return data[: len(data) - len(output)] + self._frames.whole(output)

    def _is_attached(self) -> bool:
        return bool(_ATTACH.match(self._head))

    # --- when it breaks

    def _resume(self, quiet_since: float) -> bool:
        """Take the daemon's ended side up again and return True, or tell docker the end."""
        if self._is_attached() and _IS_STREAM.match(self._answer):
            return self._resume_output(quiet_since)
        if not self._answer and self._repeat_request():
            return True
        if _WAIT.match(self._head) and not self._answer.partition(b"\r\n\r\n")[2]:
            self._relay.set_wait_state(ExitCodeWait.BROKEN)
            self._answer_wait()
        elif not self._answer and (_CREATE.match(self._head) or self._is_attached()):
            self._relay.finder.say_lost_while_making()
        elif not self._answer and _START.match(self._head):
            self._answer_start()
        return False

    def _resume_output(self, quiet_since: float) -> bool:
        """Return True if docker's output goes on; False if the program has ended, or cannot be reached.

        An output that ends without an exit code soon after is a connection that broke.
        """
        if self._frames is not None:
            self._client.sendall(self._frames.rest())
        if self._relay.seconds_over(quiet_since) >= CONCLUSION_SECONDS:
            self._relay.finder.say_missing()
        wait = self._relay.wait_state(None if self._resumed_without_output else CONCLUSION_SECONDS)
        if wait in {ExitCodeWait.OVER, ExitCodeWait.NONE}:
            return False
        # If docker's wait broke too, the connection that takes the wait up again tells the user.
        state = self._relay.finder.find(quietly=wait is ExitCodeWait.BROKEN)
        upstream = self._attach(state.path) if state is not None and state.is_running else None
        self._relay.has_given_up |= state is None
        if upstream is None:
            self._relay.until_over()
            return False
        self._resumed_without_output = wait is ExitCodeWait.UNDER_WAY
        self._use_upstream(upstream)
        return True

    def _repeat_request(self) -> bool:
        """Make docker's unanswered request anew; return True if that was possible.

        Before the container runs, docker asks for its output, its exit code and its start, and waits for each
        answer; a start that comes twice does no harm.
        """
        is_attached = self._is_attached()
        if not (is_attached or _WAIT.match(self._head) or _START.match(self._head)):
            return False
        state = self._relay.finder.find(quietly=True, start_seconds=0.0)
        if state is None:
            self._relay.has_given_up = True  # the search for the answer must not take as long again
        if state is None or not state.container or (state.has_begun and not is_attached):
            return False
        upstream = connect(state.path)
        upstream.sendall(self._head)
        self._use_upstream(upstream)
        return True

    def _use_upstream(self, upstream: socket.socket) -> None:
        with self._changed:
            self._upstream = upstream
            self._changed.notify_all()

    def _attach(self, path: str) -> socket.socket | None:
        """Return a new connection to the container; None if the container has ended meanwhile."""
        upstream = connect(path)
        upstream.sendall(self._head)
        head, output = _receive_head(upstream)
        if not _IS_STREAM.match(head):
            upstream.close()
            return None
        self._client.sendall(output if self._frames is None else self._frames.whole(output))
        if self._client_ended:
            upstream.shutdown(socket.SHUT_WR)
        return upstream

    def _answer_start(self) -> None:
        """Answer docker's start, for which docker waits although the container may run already."""
        if self._relay.has_given_up:
            return  # the connection of the output or of the exit code says so
        state = self._relay.finder.find(quietly=True)
        if state is not None and state.has_begun:
            self._client.sendall(_STARTED)
        else:
            self._relay.finder.say_lost_while_making()

    def _answer_wait(self) -> None:
        """Tell docker the exit code by an answer in the engine's form; docker may have its head already."""
        body = b'{"StatusCode":%d}\n' % self._exit_code()
        if not self._answer:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            self._client.sendall(head % len(body) + body)
        elif b"chunked" in bytes(self._answer).lower():
            self._client.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        else:
            self._client.sendall(body)
        self._relay.set_wait_state(ExitCodeWait.OVER)

    def _exit_code(self) -> int:
        """Return the program's exit code, or docker's own code for failures if nobody can tell it."""
        if self._relay.has_given_up:
            return DOCKER_FAILED
        match = _WAIT.match(self._head)
        condition = "removed" if match and match[1] else "not-running"
        finder = self._relay.finder
        while (state := finder.find()) is not None and state.is_running:
            self._relay.set_wait_state(ExitCodeWait.UNDER_WAY)
            if (code := finder.exit_code_at(state, condition)) is not None:
                return code
            self._relay.set_wait_state(ExitCodeWait.BROKEN)
        return DOCKER_FAILED if state is None or state.exit_code is None else state.exit_code


class Frames:
    """Pass on the output of a container without a terminal, in whole frames of Docker's.

    So docker never waits for the rest of a frame that broke off (Docker Engine API, ContainerAttach).
    """

    HEADER = struct.Struct(">BxxxI")

    def __init__(self) -> None:
        self._waiting = b""

    def whole(self, data: bytes) -> bytes:
        data = self._waiting + data if self._waiting else data
        end = 0
        while end + self.HEADER.size <= len(data):
            _, size = self.HEADER.unpack_from(data, end)
            if end + self.HEADER.size + size > len(data):
                break
            end += self.HEADER.size + size
        self._waiting = data[end:]
        return data[:end]

    def rest(self) -> bytes:
        """Return the received part of a frame that broke off, as a whole frame."""
        frame, self._waiting = self._waiting, b""
        if len(frame) <= self.HEADER.size:
            return b""
        stream, _ = self.HEADER.unpack_from(frame)
        return self.HEADER.pack(stream, len(frame) - self.HEADER.size) + frame[self.HEADER.size :]


def connect(path: str) -> socket.socket:
    """Connect to a unix socket. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    return sock


def _receive(sock: socket.socket | None) -> bytes:
    """Receive bytes; empty at any kind of end."""
    if sock is None:
        return b""
    try:
        return sock.recv(READ_BYTES)
    except OSError:
        return b""


def _receive_head(sock: socket.socket) -> tuple[bytes, bytes]:
    """Split an answer into its head and the bytes after it."""
    answer = b""
    while b"\r\n\r\n" not in answer and len(answer) < MAX_HEAD_BYTES:
        if not (data := _receive(sock)):
            break
        answer += data
    head, _, output = answer.partition(b"\r\n\r\n")
    return head, output
