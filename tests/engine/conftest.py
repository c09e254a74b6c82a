"""The adapter and real containers, on the shared engines of the test bed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpushared.engine.docker_engine import DockerEngine
from gpushared.ports import Edits
from tests.bed.fixtures import CdiEngine
from tests.engine.containers import DockerContainers


class TidyEngine(DockerEngine):
    """Knows which devices a test has written, for the engine and its directory are shared."""

    def __init__(self, url: str, *, simulated_gpus: bool) -> None:
        super().__init__(url, simulated_gpus=simulated_gpus)
        self.written: set[str] = set()

    async def write_device(self, device_name: str, edits: Edits) -> None:
        self.written.add(device_name)
        await super().write_device(device_name, edits)


@pytest.fixture
async def engine(docker_engine: str, tmp_path: Path) -> AsyncIterator[DockerEngine]:
    adapter = DockerEngine(docker_engine, simulated_gpus=True, spec_dir=tmp_path / "cdi")
    yield adapter
    await adapter.close()


@pytest.fixture
def containers(docker_engine: str, busybox_image: str) -> Iterator[DockerContainers]:
    made = DockerContainers(docker_engine)
    yield made
    made.clean_up()


@pytest.fixture
async def cdi(cdi_engine: CdiEngine) -> AsyncIterator[DockerEngine]:
    adapter = TidyEngine(cdi_engine.socket, simulated_gpus=True)
    await adapter.probe()
    yield adapter
    for device_name in adapter.written:
        await adapter.remove_device(device_name)
    await adapter.close()


@pytest.fixture
def cdi_containers(cdi_engine: CdiEngine) -> Iterator[DockerContainers]:
    made = DockerContainers(cdi_engine.socket)
    yield made
    made.clean_up()
