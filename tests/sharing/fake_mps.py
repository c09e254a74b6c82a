"""Hands on the fake control program: say which servers it has, read what it was told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.sharing.samples import program

SCRIPT = Path(__file__).with_name("fake_control.py")


class FakeMps:
    """A FAKE control program in a directory of its own, without servers at first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._servers = directory / "servers.json"
        self._servers.write_text("{}")
        name = directory / "nvidia-cuda-mps-control"
        self.binary = program(name, f'exec "{sys.executable}" -I -S "{SCRIPT}" "{directory}" "$@"')

    def serve(
        self, server: int, *clients: int, state: str = "ACTIVE", stubborn: bool = False, undying: bool = False
    ) -> None:
        """Have this server, or have it like this from now on.

        Traits: ``stubborn``: only force shuts it down. ``undying``: only the end of its daemon.
        """
        servers = self.servers()
        servers[str(server)] = {
            "state": state,
            "clients": list(clients),
            "stubborn": stubborn,
            "undying": undying,
        }
        draft = self._servers.with_suffix(".test")
        draft.write_text(json.dumps(servers))
        draft.replace(self._servers)

    def servers(self) -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = json.loads(self._servers.read_text())
        return found

    def clients(self, server: int) -> object:
        return self.servers()[str(server)]["clients"]

    def told(self, command: str) -> list[str]:
        """The commands that begin so and what came of them, in order, without their times."""
        return [line for _, line in self.timed(command)]

    def timed(self, command: str) -> list[tuple[float, str]]:
        """The same with the times (seconds since the epoch)."""
        log = self.directory / "log"
        lines = [line.partition(" ") for line in log.read_text().splitlines()] if log.exists() else []
        return [(float(at), line) for at, _, line in lines if line.startswith(command)]
