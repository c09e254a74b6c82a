"""Have the docker CLI itself read docker's arguments, and ask if the container would be refused.

Files of variables, relative paths, options of the future: docker reads all of them, and no other program
does. A small socket of ours stands in the place of the engine: nothing reaches the real one. ``capture``
returns the body that docker would have created; ``read_run`` also finds out if docker would get so far.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import BinaryIO, NamedTuple

from gpushared.cli import docker_cli
from gpushared.cli.docker_args import RUN, RUN_ALONE, SUBMIT, DockerFlag, OurOptions, RunArguments
from gpushared.cli.errors import say
from gpushared.client import Client
from gpushared.domain.model.errors import GpushareError, PermissionRefused, RequestError, TimedOut

MAX_BODY_BYTES = 8 << 20
MIN_SIMILARITY = 0.75
"""A word must be so near to count as the meant one: 1 is the same word."""
MAX_LINE_BYTES = 64 << 10
CAPTURE_SECONDS = 60.0
"""Reading options takes docker milliseconds; a file of variables may be a pipe that somebody must write."""
OLDEST_API = "1.41"
"""The API version of an engine 20.10, used if the version of the engine here is not known."""
PULL_POLICIES = frozenset({"missing", "always", "never"})
_FILE_OPTIONS = frozenset({"env-file", "label-file", "security-opt"})
"""These options of docker name a file that docker reads before any request to the engine."""
_CREATED = b'{"Id": "' + b"0" * 64 + b'", "Warnings": []}'
_ONLY_CHECKED = b'{"message": "this was only to see whether docker takes these words"}'


class CreateRequest(NamedTuple):
    """Hold a container as docker would create it. ``name`` and ``platform`` are empty if not given.

    ``version`` is that of the Engine API that docker spoke.
    """

    body: bytes
    name: str = ""
    platform: str = ""
    version: str = ""


def capture(program: str, argv: Sequence[str], api_version: str) -> CreateRequest:
    """Run ``docker create`` with these arguments; docker's complaints go to stderr as they are.

    Raises RequestError where docker refuses the arguments, TimedOut.
    """
    with _engine(lambda: api_version, 201, _CREATED) as engine:
        docker = _run([program, "create", *argv], engine, stdin=subprocess.DEVNULL)
    _write(docker.stderr)
    if docker.returncode or engine.create_request is None:
        guess = option_meant(docker.stderr, SUBMIT)
        raise RequestError(
            "docker does not take these words",
            hint=guess or "its own message is above; see docker create --help",
        )
    return engine.create_request


class ReadRun(NamedTuple):
    """Hold what docker read. ``refusal``: its exit code if docker refuses the arguments by itself, else 0.

    ``create_request`` is None where docker refuses them, or has not read them.
    """

    refusal: int = 0
    create_request: CreateRequest | None = None


def read_run(program: str, args: RunArguments, api_version: Callable[[], str]) -> ReadRun:
    """Have ``docker run`` read these arguments; if docker refuses them, its own message is on stderr.

    ``api_version`` is called while docker starts, and may raise errors of the tree. Raises TimedOut.
    """
    if not can_be_read_twice(args):
        return ReadRun()
    command = [program, "run", *_without_pull(args)]
    with _engine(api_version, 400, _ONLY_CHECKED) as engine:
        docker = _run(command, engine, stdin=None)
    if engine.create_request is not None:
        # Docker's message on stderr is about the answer of our socket.
        return ReadRun(create_request=engine.create_request)
    _write(docker.stderr)
    if guess := option_meant(docker.stderr, RUN):
        say(guess)
    return ReadRun(docker.returncode if docker.returncode > 0 else docker_cli.FAILED)


def option_meant(docker_errors: bytes, options: OurOptions) -> str:
    """Return a question if docker does not know an option that is nearly one of ours, else empty."""
    unknown = re.search(rb"unknown flag: --([A-Za-z0-9-]+)", docker_errors)
    if unknown is None:
        return ""
    from difflib import get_close_matches

    matches = get_close_matches(unknown[1].decode(), options.values | options.switches, 1, MIN_SIMILARITY)
    return f"did you mean --{matches[0]}?" if matches else ""


def _write(docker_errors: bytes) -> None:
    with suppress(OSError):
        os.write(2, docker_errors)


def _run(command: Sequence[str], engine: _Engine, *, stdin: int | None) -> subprocess.CompletedProcess[bytes]:
    """Run docker, pointed at our socket. Raises TimedOut.

    With ``stdin`` None docker looks for a terminal where it would later.
    """
    try:
        return subprocess.run(
            command,
            env=docker_cli.environment_for(f"unix://{engine.path}"),
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=CAPTURE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimedOut(
            "docker did not finish reading the options",
            hint="is a file among them a pipe that nobody writes to?",
        ) from None


def _without_pull(args: RunArguments) -> list[str]:
    """Drop the option to pull, as others pull the image; docker refuses a policy that it does not know."""
    is_known = args.value("pull") in PULL_POLICIES
    return args.docker_without("pull") if is_known else args.docker


def can_be_read_twice(args: RunArguments) -> bool:
    """Return True if docker reads no pipe, which would be empty at docker's second read."""
    return not any(_is_no_plain_file(path) for flag in args.flags for path in _paths_of(flag))


def _paths_of(flag: DockerFlag) -> list[str]:
    return [flag.value.rpartition("=")[2]] if flag.name in _FILE_OPTIONS else []


def _is_no_plain_file(path: str) -> bool:
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - importing pathlib costs 5 ms
    except OSError:
        return False  # docker says so itself


# --- the engine's place --------------------------------------------------------------------------------


class _Engine:
    """Answer docker's requests before the create of a container, and keep the create.

    Written by hand, because ``http.server`` takes longer to import than docker takes to answer.
    """

    def __init__(self, path: str, api_version: Callable[[], str], status: int, answer: bytes) -> None:
        """Take ``status`` and ``answer`` to answer the request that creates a container."""
        self.path = path
        self.create_request: CreateRequest | None = None
        self._ask_version = api_version
        self._version = ""
        self._status = status
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._listener.bind(path)
        self._listener.listen()

    def serve(self) -> None:
        """Serve docker until ``close``."""
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                Thread(target=self._serve_connection, args=(connection,), daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve_connection(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, suppress(OSError, ValueError):
            while head := _head(stream):
                method, target, size = head
                body = stream.read(min(size, MAX_BODY_BYTES))
                connection.sendall(self._reply(method, target, body))

    def _reply(self, method: str, target: str, body: bytes) -> bytes:
        path, _, query = target.partition("?")
        if method == "POST" and path.endswith("/containers/create"):
            self.create_request = _create_request_of(path, query, body)
            return self._response(self._status, self._answer)
        if path.endswith("/_ping"):
            return self._response(200, b"" if method == "HEAD" else b"OK")
        return self._response(200, b"{}" if method == "GET" else b"")  # a pull, which is others' to do

    def _response(self, status: int, body: bytes) -> bytes:
        head = (
            f"HTTP/1.1 {status} -\r\nApi-Version: {self._api_version()}\r\nOstype: linux\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _api_version(self) -> str:
        if not self._version:
            with suppress(GpushareError):
                self._version = self._ask_version()
            self._version = self._version or OLDEST_API
        return self._version


def _head(stream: BinaryIO) -> tuple[str, str, int] | None:
    """Read the next request's method, target and body length; None at the end of the connection."""
    parts = stream.readline(MAX_LINE_BYTES).decode("latin-1").split()
    if len(parts) < 2:  # noqa: PLR2004 - a request line has three parts
        return None
    size = 0
    while line := stream.readline(MAX_LINE_BYTES).strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            size = int(value)
    return parts[0], parts[1], size


def _create_request_of(path: str, query: str, body: bytes) -> CreateRequest:
    from urllib.parse import parse_qs

    parameters = parse_qs(query)
    version = path.split("/")[1].removeprefix("v")
    name, platform = (parameters.get(key, [""])[-1] for key in ("name", "platform"))
    return CreateRequest(body, name, platform, version)


@contextmanager
def _engine(api_version: Callable[[], str], status: int, answer: bytes) -> Iterator[_Engine]:
    folder = _private_folder()
    path = f"{folder}/docker.sock"
    try:
        engine = _Engine(path, api_version, status, answer)
        Thread(target=engine.serve, daemon=True).start()
        try:
            yield engine
        finally:
            engine.close()
            os.unlink(path)  # noqa: PTH108 - as above
    finally:
        os.rmdir(folder)  # noqa: PTH106 - as above


def _private_folder() -> str:
    """Make a folder that only the caller may enter. The name of a socket in it must stay short."""
    parents = (os.environ.get("TMPDIR", ""), "/tmp")  # noqa: S108 - the folder is new and 0700, or none is made
    parent = next(parent for parent in parents if os.path.isdir(parent))  # noqa: PTH112 - as above
    folder = f"{parent}/gpushare-words-{os.urandom(6).hex()}"
    os.mkdir(folder, 0o700)  # noqa: PTH102 - as above
    return folder


def check_run(client: Client, program: str, args: RunArguments, create_request: CreateRequest | None) -> None:
    """Raise PermissionRefused if the daemon would refuse the container; warn of what docker may refuse.

    ``create_request``: what docker would create, None where docker has not read the arguments yet.
    """
    create_request = create_request or _capture_if_repeatable(client, program, args)
    if create_request is None:
        return
    check_create_request(client, create_request)
    if create_request.name:
        _warn_of_name(client, create_request.name)


def _capture_if_repeatable(client: Client, program: str, args: RunArguments) -> CreateRequest | None:
    if not can_be_read_twice(args):
        return None
    try:
        return capture(program, args.docker_without(*RUN_ALONE), docker_cli.api_version_of(client))
    except GpushareError:
        return None  # docker tells when its turn comes


def check_create_request(client: Client, create_request: CreateRequest) -> None:
    """Raise PermissionRefused if the daemon would refuse the container.

    Without an answer only the gate judges, at the start. A refusal that may change until then, as for a missing
    directory, becomes a warning.
    """
    try:
        answer = client.explain_policy(create_request.body, create_request.version)
    except GpushareError:
        return
    refusals = [finding for finding in answer.findings if finding.verdict == "refused"]
    for finding in refusals:
        if not finding.may_change:
            raise PermissionRefused(finding.why, hint=finding.hint)
    for finding in refusals:
        say(f"warning: as things are now, docker will refuse the container: {finding.why}", finding.hint)


def _warn_of_name(client: Client, name: str) -> None:
    try:
        status = client.docker("GET", f"/containers/{name.removeprefix('/')}/json").status
    except GpushareError:
        return
    if status == docker_cli.OK:
        say(
            f"warning: a container named {name} is there, and docker will refuse another one",
            f"docker rm {name}, or give another --name",
        )
