"""The docker CLI as a coroutine, and such clients of several callers before one gate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from gpushared.domain.model.request import Caller
from gpushared.gate.docker_gate import Gate
from tests.gate.serving import ALICE, BOB, ROOT, ServedSocket, serving_gate


@dataclass
class CommandResult:
    code: int
    out: bytes
    err: bytes


class Docker:
    """The docker CLI with the gate as its host."""

    def __init__(self, url: str, environment: dict[str, str], image: str) -> None:
        self.image = image
        self.environment = {**environment, "DOCKER_HOST": url}

    async def start(self, *words: str, **kwargs: object) -> asyncio.subprocess.Process:
        pipes = {
            "stdin": asyncio.subprocess.PIPE,
            "stdout": asyncio.subprocess.PIPE,
            "stderr": asyncio.subprocess.PIPE,
        }
        return await asyncio.create_subprocess_exec(
            "docker",
            *words,
            env=self.environment,
            **{**pipes, **kwargs},  # type: ignore[arg-type]
        )

    async def __call__(self, *words: str, stdin: bytes = b"") -> CommandResult:
        process = await self.start(*words)
        try:
            async with asyncio.timeout(60):
                out, err = await process.communicate(stdin)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode is not None
        return CommandResult(process.returncode, out, err)

    async def run(self, *words: str, stdin: bytes = b"") -> CommandResult:
        return await self("run", "--rm", "--network", "none", *words, stdin=stdin)


@dataclass
class DockerClients:
    """Docker clients of two users and of root before one gate; ``engine`` asks the engine itself."""

    gate: Gate
    served: dict[Caller, ServedSocket]
    alice: Docker
    bob: Docker
    root: Docker
    engine: Docker


@asynccontextmanager
async def docker_clients(
    gate: Gate, engine: str, environment: dict[str, str], image: str
) -> AsyncIterator[DockerClients]:
    async with AsyncExitStack() as stack:
        callers = (ALICE, BOB, ROOT)
        served = {caller: await stack.enter_async_context(serving_gate(gate, caller)) for caller in callers}
        urls = [*(each.url for each in served.values()), engine if "://" in engine else f"unix://{engine}"]
        yield DockerClients(gate, served, *(Docker(url, environment, image) for url in urls))
