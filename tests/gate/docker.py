"""The docker CLI as a coroutine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass
class Done:
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

    async def __call__(self, *words: str, stdin: bytes = b"") -> Done:
        process = await self.start(*words)
        try:
            async with asyncio.timeout(60):
                out, err = await process.communicate(stdin)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode is not None
        return Done(process.returncode, out, err)

    async def run(self, *words: str, stdin: bytes = b"") -> Done:
        return await self("run", "--rm", "--network", "none", *words, stdin=stdin)
