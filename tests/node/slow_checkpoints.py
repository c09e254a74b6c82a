"""A daemon whose checkpoints of simulated GPUs take as long as a file is there: ``<state dir>/../slow``."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from unittest import mock

from gpushared.config.model import Config
from gpushared.gpus.simulated import SimulatedCheckpoints, SimulatedGpus
from gpushared.node.main import main
from gpushared.node.parts import Parts, real_parts

LOOK_SECONDS = 0.05


class SlowCheckpoints(SimulatedCheckpoints):
    def __init__(self, gpus: SimulatedGpus, slow: Path) -> None:
        super().__init__(gpus)
        self._slow = slow

    async def save(self, pids: Collection[int]) -> None:
        await self._while_slow()
        await super().save(pids)

    async def restore(self, pids: Collection[int]) -> None:
        await self._while_slow()
        await super().restore(pids)

    async def _while_slow(self) -> None:
        while self._slow.exists():  # noqa: ASYNC110 - a file of another process has no event
            await asyncio.sleep(LOOK_SECONDS)


def slow_parts(config: Config) -> Parts:
    parts = real_parts(config)
    assert isinstance(parts.gpus, SimulatedGpus)
    slow = Path(config.node.state_dir).with_name("slow")
    return replace(parts, checkpoints=SlowCheckpoints(parts.gpus, slow))


if __name__ == "__main__":
    with mock.patch("gpushared.node.main.real_parts", slow_parts):
        main()
