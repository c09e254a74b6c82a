"""A real coordinator and two real nodes, ``a`` where users type and ``b`` that has the GPUs, over loopback.

Only ``b`` has a Docker engine. Both have the same user, who has no rights on either.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pool import READY_SECONDS, Pool, pool_of

from gpushared.client.api import Client
from gpushared.client.pool_calls import PoolClient
from gpushared.domain.model.errors import GpushareError

BIN = Path(sys.executable).parent
USER = "nobody"
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
"""Before a command that the user types."""
CONFIG = """
[node]
name = "{name}"

[pool.accounts]
"nobody@a" = "nobody"
"nobody@b" = "nobody"
"""


@dataclass(frozen=True)
class RealNode:
    """A daemon. ``environ``: of the commands that are typed there."""

    name: str
    home: Path
    process: subprocess.Popen[bytes]

    @property
    def socket(self) -> Path:
        return self.home / "r/gpushared.sock"

    @property
    def environ(self) -> dict[str, str]:
        plain = {key: value for key, value in os.environ.items() if key != "DOCKER_HOST"}
        return {**plain, "GPUSHARE_HOST": f"unix://{self.socket}", "HOME": "/tmp"}

    def call(self, name: str, asked: Mapping[str, object] | None = None) -> dict[str, Any]:
        return Client(f"unix://{self.socket}").call(name, dict(asked or {}))


@contextmanager
def real_pool(engine: str) -> Iterator[tuple[Pool, RealNode, RealNode]]:
    """All of it, until the block ends."""
    with pool_of(0) as pool:
        pool.home.chmod(0o755)
        pool.start()
        admin = PoolClient(str(pool.home / "r/gpushared-pool.sock"))
        a = _started(pool.home / "a", "h100:1", str(pool.home / "none.sock"))
        b = _started(pool.home / "b", "h100:8", engine)
        try:
            for node in (a, b):
                _join(pool, admin, node)
            _until_ready(b)
            yield pool, a, b
        finally:
            for node in (a, b):
                node.process.terminate()
                node.process.wait(30)


def _started(home: Path, simulate: str, engine: str) -> RealNode:
    home.mkdir()
    config = home / "config.toml"
    config.write_text(CONFIG.format(name=home.name))
    words = [BIN / "gpushared", "--config", config, "--simulate", simulate, "--engine", engine]
    words += ["--runtime-dir", home / "r", "--state-dir", home / "s"]
    with (home / "log").open("wb") as log:
        node = RealNode(home.name, home, subprocess.Popen(words, stderr=log))
    until = time.monotonic() + READY_SECONDS
    while not _serves(node):
        if node.process.poll() is not None or time.monotonic() > until:
            raise SystemExit((home / "log").read_text()[-3000:])
        time.sleep(0.1)
    return node


def _serves(node: RealNode) -> bool:
    try:
        node.call("Leases/List")
    except GpushareError:
        return False
    return True


def _join(pool: Pool, admin: PoolClient, node: RealNode) -> None:
    token = node.home / "token"
    token.write_text(admin.create_join_token(node=node.name).token)
    address = f"127.0.0.1:{pool.users_port}"
    words = [BIN / "gpushare", "node", "join", address, "--token-file", token]
    done = subprocess.run(words, env=node.environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)


def _until_ready(node: RealNode) -> None:
    until, nodes = time.monotonic() + READY_SECONDS, []
    while True:
        with suppress(GpushareError):
            nodes = node.call("Jobs/Nodes").get("nodes", [])
        if len(nodes) > 1 and all(one["presence"] == "ready" for one in nodes):
            return
        if time.monotonic() > until:
            raise SystemExit(f"the nodes are not ready: {nodes}")
        time.sleep(0.2)
