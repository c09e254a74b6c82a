"""Starts programs of the package by a fork of one process that has loaded them: loading is most of a start.

What runs is the program itself, in a process of its own: its script or module as the interpreter would run
it, with its words, variables, folder and standard streams, and it ends as the interpreter ends. What
interpreter and loader read only when they begin cannot be given any more: see ``can_raise``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

LOADED: Final = ("gpushared.node.main", "gpushared.pool.coordinator.main")
"""What every child has imported when it begins."""
READ_AT_THE_BEGINNING: Final = ("LD_", "PYTHON", "GRPC_", "OPENSSL_", "MALLOC_")
"""Variables of the loader, of the interpreter, and of what is loaded: they say nothing to a fork."""
FOLDERS: Final = "LD_LIBRARY_PATH"
LIBRARY: Final = "libnvidia-ml.so.1"
"""A library of ``FOLDERS`` that a child loads before all else: asked for by its name, the loader takes it."""
LEFT_OPEN_IS_TOLD: Final = ("-W", "always::ResourceWarning")
STREAMS: Final = 3
NUMBER: Final = struct.Struct("i")


def can_raise(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a fork is as good: a program of this interpreter, and no variable that would come too late."""
    program = Path(command[0])
    ours = program.parent == Path(sys.executable).parent
    known = program.name.startswith("gpushared") or command[1] == "-m" or command[1].endswith(".py")
    return ours and known and _too_late(environment) == _too_late(os.environ)


def _too_late(environment: Mapping[str, str]) -> dict[str, str]:
    early = {name: value for name, value in environment.items() if name.startswith(READ_AT_THE_BEGINNING)}
    early.pop("PYTHONPATH", "")  # the fork server begins in the folder that it names
    if all(library.exists() and _is_named(library) for library in _libraries(environment)):
        early.pop(FOLDERS, "")
    return early


def _libraries(environment: Mapping[str, str]) -> list[Path]:
    return [Path(folder, LIBRARY) for folder in environment.get(FOLDERS, "").split(os.pathsep) if folder]


def _is_named(library: Path) -> bool:
    """Whether it tells the loader its name."""
    return LIBRARY.encode() in library.read_bytes()


# --- on the test's side ---


def check_nothing_left_open(log: Path) -> None:
    """Check that no life of a program whose log this is left a file or a socket to the garbage collector."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    left = [line for line in lines if "ResourceWarning" in line]
    assert not left, left


class ForkedDaemon:
    """A process that the fork server forked, with what tests use of ``subprocess.Popen``."""

    def __init__(self, channel: socket.socket, stdin: IO[bytes] | None, stdout: IO[bytes] | None) -> None:
        self._channel = channel
        self.stdin, self.stdout = stdin, stdout
        self.pid = _number(channel.recv(NUMBER.size))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, negative where a signal ended it, once it is over."""
        with contextlib.suppress(BlockingIOError):
            self._learn(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises ``subprocess.TimeoutExpired``."""
        try:
            return self._learn(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _learn(self, timeout: float | None) -> int:
        if self.returncode is None:
            self._channel.settimeout(timeout)
            self.returncode = _number(self._channel.recv(NUMBER.size))
            self._channel.close()
        return self.returncode


class _ForkServer:
    """The one of this test run, which ends with it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *LEFT_OPEN_IS_TOLD, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=Path(__file__).parents[2],
            )
        atexit.register(self._end)

    def raise_(
        self, words: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]
    ) -> socket.socket:
        ours, theirs = socket.socketpair()
        order = {"words": list(words), "environment": dict(environment), "folder": str(Path.cwd())}
        with theirs:
            socket.send_fds(self._control, [json.dumps(order).encode()], [*streams, theirs.fileno()])
        return ours

    def _end(self) -> None:
        self._control.close()
        self._process.wait()


_only: list[_ForkServer] = []


def start(
    words: Sequence[str], environment: Mapping[str, str], log: IO[bytes], *, piped: bool = False
) -> ForkedDaemon:
    """Begin a program that ``can_raise`` admits; it writes into the log.

    ``piped``: its standard input and output are pipes.
    """
    if not piped:
        with Path(os.devnull).open("rb") as nothing:
            channel = _raised(words, environment, nothing.fileno(), log.fileno(), log.fileno())
        return ForkedDaemon(channel, None, None)
    (its_input, our_input), (our_output, its_output) = os.pipe(), os.pipe()
    channel = _raised(words, environment, its_input, its_output, log.fileno())
    os.close(its_input)
    os.close(its_output)
    return ForkedDaemon(channel, os.fdopen(our_input, "wb"), os.fdopen(our_output, "rb"))


def run(words: Sequence[str], given: bytes, seconds: float) -> bytes:
    """What a program printed to whom this was given. Raises as ``subprocess.run`` where that checks."""
    with TemporaryFile() as its_input, TemporaryFile() as printed, TemporaryFile() as output:
        its_input.write(given)
        its_input.seek(0)
        streams = (its_input.fileno(), printed.fileno(), output.fileno())
        child = ForkedDaemon(_raised(words, os.environ, *streams), None, None)
        try:
            status = child.wait(seconds)
        finally:
            child.kill()
        for file in (printed, output):
            file.seek(0)
        if status:
            raise subprocess.CalledProcessError(status, list(words), printed.read(), output.read())
        return printed.read()


def _raised(words: Sequence[str], environment: Mapping[str, str], *streams: int) -> socket.socket:
    if not _only:
        _only.append(_ForkServer())
    return _only[0].raise_(words, environment, streams)


def _number(data: bytes) -> int:
    if len(data) != NUMBER.size:
        raise ChildProcessError("the fork server of test daemons is gone")
    return int(NUMBER.unpack(data)[0])


# --- the fork server itself ---


def raise_children(control: socket.socket) -> dict[str, Any] | None:
    """Comes back in each child with its order, and with None when the tests are over."""
    channels: dict[int, tuple[int, socket.socket]] = {}
    ready = select.poll()
    ready.register(control, select.POLLIN)
    while True:
        for descriptor, _ in ready.poll():
            if descriptor != control.fileno():
                ready.unregister(descriptor)
                _tell_the_end(descriptor, *channels.pop(descriptor))
                continue
            data, streams, _, _ = socket.recv_fds(control, 1 << 20, STREAMS + 1)
            if not data:
                _end_all(channels)
                return None
            child = os.fork()
            if child == 0:
                for left in (control, *(channel for _, channel in channels.values())):
                    left.detach()
                return _take_on(json.loads(data), streams)
            for stream in streams[:STREAMS]:
                os.close(stream)
            channel = socket.socket(fileno=streams[STREAMS])
            with contextlib.suppress(BrokenPipeError):
                channel.send(NUMBER.pack(child))
            handle = os.pidfd_open(child)
            channels[handle] = child, channel
            ready.register(handle, select.POLLIN)


def _end_all(channels: Mapping[int, tuple[int, socket.socket]]) -> None:
    """Of a test run that was killed, nobody else ends them."""
    for handle in channels:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)


def _tell_the_end(handle: int, child: int, channel: socket.socket) -> None:
    os.close(handle)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with channel, contextlib.suppress(BrokenPipeError):
        channel.send(NUMBER.pack(status))


def _take_on(order: dict[str, Any], streams: Sequence[int]) -> dict[str, Any]:
    """Make what differs from the fork server the child's own."""
    for number, stream in enumerate(streams[:STREAMS]):
        os.dup2(stream, number)
    os.closerange(STREAMS, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    for library in _libraries(os.environ):
        ctypes.CDLL(str(library))
    return order


def become(words: Sequence[str]) -> None:
    """What the interpreter would do with these words."""
    Path("/proc/self/comm").write_text(Path(words[0]).name[:15])
    if words[1] == "-m":
        sys.argv = list(words[2:])
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words[1:] if words[1].endswith(".py") else words)
        runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    for name in LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is not looked at is not copied
    order = raise_children(socket.socket(fileno=int(sys.argv[1])))
    if order is not None:
        become(order["words"])


if __name__ == "__main__":
    main()
