"""Two ways to one engine, directly and through the gate, and what the same words give on each."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpushared.gate.docker_gate import Gate
from tests.gate.docker import CommandResult, Docker
from tests.gate.lease_services import FakeLeaseService
from tests.gate.serving import ROOT, serving_gate

SIDES = ("direct", "gate")
LONG_ID = re.compile(r"\b[0-9a-f]{64}\b")
SHORT_ID_LENGTH = 12


@dataclass(frozen=True)
class Side:
    """One way to the engine: its name and its client."""

    name: str
    docker: Docker


@dataclass(frozen=True)
class SideResult:
    """What one side did: how its command ended, and the name that its container was to have."""

    name: str
    done: CommandResult


@dataclass
class Pair:
    """The same engine twice. ``{name}``, ``{own}`` and ``{shared}`` in words differ as they must."""

    direct: Docker
    gate: Docker
    directory: Path
    """Has a folder for each side (``{own}``) and one for both (``{shared}``)."""
    mark: str = field(default_factory=lambda: f"parity-{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        for folder in (*SIDES, "shared"):
            (self.directory / folder).mkdir()

    @property
    def sides(self) -> tuple[Side, Side]:
        return Side("direct", self.direct), Side("gate", self.gate)

    @property
    def image(self) -> str:
        return self.direct.image

    def set_environment(self, **variables: str) -> None:
        """For the clients of both."""
        for side in self.sides:
            side.docker.environment.update(variables)

    def words(self, words: Iterable[str], side: str, name: str) -> list[str]:
        own, shared = str(self.directory / side), str(self.directory / "shared")
        places = {
            "{name}": name,
            "{own}": own,
            "{shared}": shared,
            "{mark}": self.mark,
            "{image}": self.image,
        }
        return [_replaced(word, places) for word in words]

    def plain(self, value: object, name: str, container: str = "") -> object:
        """``value`` without what is different on each side by nature: names, ids, folders."""
        places = {name: "<name>", **{str(self.directory / side): "<own>" for side in SIDES}}
        if container:
            places |= {container: "<id>", container[:SHORT_ID_LENGTH]: "<short id>"}
        return _mapped(value, lambda text: LONG_ID.sub("<some id>", _replaced(text, places)))

    async def inspect(self, names: Iterable[str]) -> dict[str, dict[str, object]]:
        """What the engine itself says of its containers; those that are not there are left out."""
        done = await self.direct("container", "inspect", *names)
        return {found["Name"].lstrip("/"): found for found in json.loads(done.out)}

    async def remove(self) -> None:
        """All containers, networks and volumes with the mark in their names."""
        for kind, words in (
            ("container", ["ls", "-aq"]),
            ("network", ["ls", "-q"]),
            ("volume", ["ls", "-q"]),
        ):
            found = await self.direct(kind, *words, "--filter", f"name={self.mark}")
            if names := found.out.decode().split():
                force = {"container": ["-f", "-v"], "volume": ["-f"]}.get(kind, [])
                await self.direct(kind, "rm", *force, *names)


@asynccontextmanager
async def pair_on(
    engine: str, environment: Mapping[str, str], image: str, directory: Path
) -> AsyncIterator[Pair]:
    """Serve a gate before the engine; what was made on it is gone afterwards."""
    async with serving_gate(Gate(engine, FakeLeaseService()), ROOT) as served:
        direct = Docker(f"unix://{engine}", dict(environment), image)
        gate = Docker(served.url, dict(environment), image)
        pair = Pair(direct, gate, directory)
        try:
            yield pair
        finally:
            await pair.remove()


def with_client(environment: Mapping[str, str], cli: Path) -> dict[str, str]:
    """The environment with another docker CLI first on its path."""
    return {**environment, "PATH": f"{cli.parent}{os.pathsep}{environment['PATH']}"}


def _replaced(text: str, places: Mapping[str, str]) -> str:
    for old, new in places.items():
        text = text.replace(old, new)
    return text


def _mapped(value: object, change: Callable[[str], str]) -> object:
    """With all strings changed, also those that are keys."""
    if isinstance(value, dict):
        return {change(key): _mapped(child, change) for key, child in value.items()}
    if isinstance(value, list):
        return [_mapped(child, change) for child in value]
    return change(value) if isinstance(value, str) else value
