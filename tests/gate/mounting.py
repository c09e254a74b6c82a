"""A gate with held mounts of its own before one of the bed's engines, and what root sees of them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushared.domain.model.request import Caller
from gpushared.gate.docker_gate import Gate
from gpushared.gate.mounts import kernel
from gpushared.gate.mounts.held_mounts import ROOT, HeldMounts
from gpushared.gate.mounts.helper_process import run_helper
from gpushared.net.http_client import EngineSocket
from gpushared.net.identity import Account, NeededPath
from tests.gate.docker import Docker
from tests.gate.serving import ALICE

PATIENCE_SECONDS = 30


@dataclass
class Holding:
    """Alice's docker through the gate, and one that asks the engine itself."""

    gate: Gate
    engine: EngineSocket
    alice: Docker
    direct: Docker
    home: Path
    new_life: Callable[[], HeldMounts]
    """The held mounts as the daemon's next life has them."""

    @property
    def pins(self) -> HeldMounts:
        return self.gate.pins

    @property
    def own(self) -> Path:
        return self.home / "own"

    async def create(self, *words: str) -> str:
        """A container of alice's without a network; its id."""
        done = await self.alice("create", "--network", "none", *words)
        assert done.code == 0, done.err
        return done.out.decode().strip()

    async def output(self, container: str) -> bytes:
        """What the container says when the engine starts it and nobody asks the gate."""
        done = await self.direct("start", "--attach", container)
        assert done.code == 0, done.err
        return done.out

    async def inspect(self, container: str) -> Any:
        shown = await self.direct("inspect", "-f", "{{json .}}", container)
        return json.loads(shown.out)

    async def names(self) -> list[str]:
        return await names(self.engine, self.pins)

    async def reboot(self) -> None:
        """All mounts are gone, and the daemon has not noticed."""
        await lose(self.engine, *await self.names())
        assert await self.names() == []


async def names(engine: EngineSocket, held_mounts: HeldMounts) -> list[str]:
    """Return the names of the held mounts, as the engine's mounts show them."""
    table = Path(f"/proc/{await engine.peer_pid()}/mountinfo").read_text().splitlines()
    points = [line.split()[4] for line in table]
    beginning = f"{ROOT}/{held_mounts.beginning}"
    return sorted({point.split("/")[3] for point in points if point.startswith(beginning)})


async def lose(engine: EngineSocket, *held_mounts: str) -> None:
    """These mounts go, as all do at a reboot, and no daemon notices."""
    order = {"deed": "drop", "names": held_mounts, "root": ROOT}
    await run_helper({**order, "engine": await engine.peer_pid()})


def words(holding: Holding, source: Path, *command: str) -> tuple[str, ...]:
    """Of a create that mounts the source at /x."""
    return ("--label", f"test={holding.home.name}", "-v", f"{source}:/x", holding.alice.image, *command)


def account(caller: Caller = ALICE, home: Path | str = "") -> Account:
    return Account(caller, (), str(home))


def wish(path: Path | str, *, write: bool = False) -> NeededPath:
    return NeededPath(str(path), write)


async def until(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            # What containers and kernels do announces itself to nobody here.
            while not await holds():  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not so after {PATIENCE_SECONDS} s: {what}") from None


def give(path: Path, uid: int = ALICE.uid) -> Path:
    os.chown(path, uid, uid, follow_symlinks=False)
    return path


@contextmanager
def mounted(place: Path, *words: str) -> Iterator[None]:
    """A mount as an administrator makes it there."""
    subprocess.run(["mount", *words, place], check=True)
    try:
        yield
    finally:
        kernel.detach(str(place))
