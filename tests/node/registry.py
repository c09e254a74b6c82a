"""A registry with one small image, which it hands out when the test lets it."""

from __future__ import annotations

import hashlib
import json
import secrets
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.bed import parts

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
ERRORS = {404: b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}'}
"""As registries say it (OCI distribution specification, "Error Codes")."""
LAYER = "application/vnd.docker.image.rootfs.diff.tar"


@dataclass
class Registry:
    """``image`` is what to pull; ``asked`` and ``let_go`` are set when somebody wants it and may have it.

    ``trouble``: the HTTP status that it answers requests for the image with, 0 for none.
    """

    image: str
    asked: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)
    trouble: int = 0


@contextmanager
def serving(engine: str, image: str, directory: Path) -> Iterator[Registry]:
    """Serve a copy of an image that an engine has, under a name that it has not."""
    blobs, manifest = _contents(engine, image, directory)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    registry = Registry(f"127.0.0.1:{server.server_address[1]}/{directory.name}/small:1")
    server.registry, server.blobs, server.manifest = registry, blobs, manifest  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield registry
    finally:
        registry.let_go.set()
        server.shutdown()
        server.server_close()
        parts.docker(engine, "rmi", "--force", registry.image)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        if self.path == "/v2/":
            self._send("application/json", b"{}")
        elif self.server.registry.trouble:
            self._send("application/json", ERRORS.get(status := self.server.registry.trouble, b"{}"), status)
        elif "/manifests/" in self.path:
            self._send(MANIFEST, self.server.manifest)
        else:
            self.server.registry.asked.set()
            self.server.registry.let_go.wait(60)
            self._send("application/octet-stream", self.server.blobs[self.path.rpartition("/")[2]])

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def _send(self, kind: str, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Content-Digest", _digest(body))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: a test's output is its own."""


def _contents(engine: str, image: str, directory: Path) -> tuple[dict[str, bytes], bytes]:
    """What an image consists of by digest, and its manifest."""
    saved = directory / "image.tar"
    done = parts.docker(engine, "save", "--output", str(saved), image)
    assert done.returncode == 0, done.stderr
    with tarfile.open(saved) as tar:

        def read(name: str) -> bytes:
            member = tar.extractfile(name)
            assert member is not None
            return member.read()

        (described,) = json.loads(read("manifest.json"))
        # An image that the engine has not, from no other test run either, so that it has to be asked for.
        known = json.loads(read(described["Config"]))
        config = json.dumps(known | {"author": secrets.token_hex(16)}).encode()
        layers = [read(name) for name in described["Layers"]]
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _described(CONFIG, config),
        "layers": [_described(LAYER, layer) for layer in layers],
    }
    return {_digest(blob): blob for blob in (config, *layers)}, json.dumps(manifest).encode()


def _described(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": kind, "size": len(blob), "digest": _digest(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"
