"""What the docker CLI would send to create a container, taken from the docker CLI itself.

``docker create`` runs with a small socket of ours for an engine, which keeps the one request that matters.
Files of variables, relative paths, options of the future: all is read by docker, and by nobody else.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn, UnixStreamServer
from threading import Thread
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from gpushared.cli import docker
from gpushared.domain.errors import RequestError, TimedOut

MAX_BODY_BYTES = 8 << 20
CAPTURE_SECONDS = 60.0
"""Reading options takes docker milliseconds; a file of variables may be a pipe that somebody must write."""
OLDEST_API = "1.41"
"""What an engine of 20.10 speaks, where nobody can tell what the engine here speaks."""
_NO_ID = "0" * 64


class Captured(NamedTuple):
    """A container as docker would have it created. ``name`` and ``platform`` are empty where not said.

    ``version`` is that of the Engine API that docker spoke.
    """

    body: bytes
    name: str = ""
    platform: str = ""
    version: str = ""


def capture(program: str, words: Sequence[str], api_version: str) -> Captured:
    """Runs ``docker create`` with these words; its complaints go to stderr as they are.

    Raises RequestError where docker refuses the words, TimedOut.
    """
    with tempfile.TemporaryDirectory(prefix="gpushare-") as folder, _engine(folder, api_version) as engine:
        try:
            code = subprocess.run(
                [program, "create", *words],
                env=docker.environment_for(f"unix://{engine.server_address}"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                check=False,
                timeout=CAPTURE_SECONDS,
            ).returncode
        except subprocess.TimeoutExpired:
            raise TimedOut(
                "docker did not finish reading the options",
                hint="is a file among them a pipe that nobody writes to?",
            ) from None
    if code or engine.captured is None:
        raise RequestError(
            "docker does not take these words", hint="its own message is above; see docker create --help"
        )
    return engine.captured


class _Engine(ThreadingMixIn, UnixStreamServer):
    """An engine that has every image and keeps what it is told to create."""

    daemon_threads = True
    captured: Captured | None = None
    api_version = OLDEST_API


@contextmanager
def _engine(folder: str, api_version: str) -> Iterator[_Engine]:
    with _Engine(f"{folder}/docker.sock", _Handler) as engine:
        engine.api_version = api_version or OLDEST_API
        thread = Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield engine
        finally:
            engine.shutdown()


class _Handler(BaseHTTPRequestHandler):
    """Answers what the docker CLI asks on its way to create a container."""

    protocol_version = "HTTP/1.1"
    server: _Engine

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(b"OK" if self.path.endswith("/_ping") else b"{}")

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(min(size, MAX_BODY_BYTES))
        url = urlsplit(self.path)
        if not url.path.endswith("/containers/create"):
            self._answer(b"")  # the pull of `--pull always`, which the node does
            return
        asked = parse_qs(url.query)
        version = url.path.split("/")[1].removeprefix("v")
        name, platform = (asked.get(each, [""])[-1] for each in ("name", "platform"))
        self.server.captured = Captured(body, name, platform, version)
        self._answer(f'{{"Id": "{_NO_ID}", "Warnings": []}}'.encode(), status=201)

    def _answer(self, body: bytes, *, status: int = 200) -> None:
        self.send_response_only(status)
        self.send_header("Api-Version", self.server.api_version)
        self.send_header("Ostype", "linux")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
