"""The adapter and hands for real containers, for the shared engines of the test bed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpushared.engine.docker import DockerEngine
from tests.bed.fixtures import CdiEngine
from tests.engine.world import DockerHands


@pytest.fixture
async def engine(docker_engine: str, tmp_path: Path) -> AsyncIterator[DockerEngine]:
    adapter = DockerEngine(docker_engine, simulated_gpus=True, spec_dir=tmp_path / "cdi")
    yield adapter
    await adapter.close()


@pytest.fixture
def hands(docker_engine: str, busybox_image: str) -> Iterator[DockerHands]:
    made = DockerHands(docker_engine)
    yield made
    made.clean_up()


@pytest.fixture
async def cdi(cdi_engine: CdiEngine) -> AsyncIterator[DockerEngine]:
    adapter = DockerEngine(cdi_engine.socket, simulated_gpus=True)
    await adapter.probe()
    yield adapter
    await adapter.close()


@pytest.fixture
def cdi_hands(cdi_engine: CdiEngine) -> Iterator[DockerHands]:
    made = DockerHands(cdi_engine.socket)
    yield made
    made.clean_up()
