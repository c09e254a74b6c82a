"""A real coordinator in a process of its own, which a test may kill and start again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from gpushared.client.pool_calls import PoolClient
from gpushared.domain.model.errors import GpushareError
from tests.node import fork_server

GPUSHARED_POOL: Final = Path(sys.executable).with_name("gpushared-pool")
GPUSHARE: Final = Path(sys.executable).with_name("gpushare")
START_SECONDS: Final = 60
END_SECONDS: Final = 20
POOL: Final = "lab"


@dataclass
class CoordinatorProcess:
    """Founded on its first start. It has the same ports in all its lives."""

    directory: Path
    config: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What it has beside the variables of the tests."""
    process: fork_server.ForkedDaemon | subprocess.Popen[bytes] | None = None
    ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))
    leads: bool = True
    """``start`` waits until it leads; else it may also stand by."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def socket(self) -> Path:
        return self.directory / "r/gpushared-pool.sock"

    @property
    def admin(self) -> PoolClient:
        return PoolClient(str(self.socket))

    @property
    def anchors_file(self) -> Path:
        file = self.directory / "anchors.pem"
        file.write_bytes(self.admin.anchors())
        return file

    def token_file(self, person: str = "ada", *scopes: str) -> Path:
        file = self.directory / f"token-{person}-{'-'.join(scopes)}"
        file.write_text(self.admin.create_api_token(person=person, scopes=scopes).token)
        return file

    def start(self) -> None:
        """Come back when it serves."""
        config, log = self.directory / "pool.toml", self.directory / "log"
        config.write_text(self._config())
        if not (self.directory / "s").exists():
            words = [str(GPUSHARE), "pool", "init", "--config", str(config), "--user", "root", POOL]
            subprocess.run(words, check=True, capture_output=True)
        with log.open("ab") as output:
            words = [str(GPUSHARED_POOL), "--config", str(config), "--allow-root"]
            self.process = self._launch(words, output)
        until = time.monotonic() + START_SECONDS
        while not self._serves():
            assert self.process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.05)

    def _launch(
        self, words: list[str], output: IO[bytes]
    ) -> fork_server.ForkedDaemon | subprocess.Popen[bytes]:
        environment = {**os.environ, **self.environment}
        if fork_server.can_raise(words, environment):
            return fork_server.start(words, environment, output)
        return subprocess.Popen(words, env=environment, stdout=output, stderr=output)

    def _serves(self) -> bool:
        try:
            return self.admin.status().role == "leader" or not self.leads
        except GpushareError:
            return False

    def _config(self) -> str:
        users, nodes = self.ports
        return f"""
[coordinator]
listen = "127.0.0.1:{users}"
listen_nodes = "127.0.0.1:{nodes}"
state_dir = "{self.directory}/s"
runtime_dir = "{self.directory}/r"
{self.config}"""

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """As a crash, unless another signal is given."""
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait(END_SECONDS)

    def dispose(self) -> None:
        if self.running:
            self.end()
        fork_server.check_nothing_left_open(self.directory / "log")

    def gpushare(self, *words: str) -> str:
        """What an administrator's command prints."""
        environ = {**os.environ, "GPUSHARE_POOL_SOCKET": str(self.socket)}
        done = subprocess.run([GPUSHARE, *words], env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
