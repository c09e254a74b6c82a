"""``gpushare web`` of one user, as a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.node.daemon import AS_USER, GPUSHARE, DaemonFailed, DaemonProcess

LINK: Final = re.compile(r"http://127\.0\.0\.1:\d+\S*#\S+")
END_SECONDS: Final = 10


class Forwarder:
    """The forwarder of one user. Each visitor gets a link of its own, because a link works once.

    ``network``: the words that run a command in the browser's network. With a ``pool_socket`` it leads to a
    coordinator; ``daemon`` is a node of the pool then.
    """

    def __init__(
        self,
        daemon: DaemonProcess,
        uid: int,
        log: Path,
        *,
        network: Sequence[str] = (),
        pool_socket: str = "",
    ) -> None:
        self.daemon = daemon
        self.uid = uid
        self._log = log
        words = ["web", "--no-open", *(["--pool"] if pool_socket else [])]
        command = [sys.executable, str(AS_USER), str(uid), *words] if uid else [str(GPUSHARE), *words]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*network, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**daemon.client_environment(), "GPUSHARE_POOL_SOCKET": pool_socket},
            )
        self.first_link = self._read_link()
        self.login, _, _ = self.first_link.partition("#")
        self.origin = re.match(r"http://[^/]+", self.first_link).group()  # type: ignore[union-attr] # LINK has one

    def _read_link(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := LINK.search(line):
                return found.group()
        self.end()
        raise DaemonFailed(f"gpushare web printed no link: {self._log.read_text()}")

    def link(self) -> str:
        """A new link, which nobody has used."""
        code = self.daemon.call("Web/Link", uid=self.uid)["code"]
        return f"{self.login}#{code}"

    def url(self, path: str) -> str:
        return f"{self.login.removesuffix('login')}{path}"

    def end(self) -> None:
        self._process.terminate()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait(END_SECONDS)
