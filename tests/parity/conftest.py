"""Engines and clients in pairs, each reached in both ways."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.bed import parts
from tests.gate.serving import ALICE
from tests.parity.pairs import Pair, pair_on, with_client

PACKAGED_CLI = Path("/usr/bin/docker")
"""The client that comes with the plain engine's package, of the same version."""


@pytest.fixture
async def pair(
    docker_engine: str, docker_environment: dict[str, str], busybox_image: str, tmp_path: Path
) -> AsyncIterator[Pair]:
    """The plain engine and the bed's client."""
    async with pair_on(docker_engine, docker_environment, busybox_image, tmp_path) as own:
        yield own


PLAIN = pytest.param(("plain", "current"), marks=pytest.mark.docker, id="plain engine, current client")
OWN = pytest.param(("plain", "packaged"), marks=pytest.mark.docker, id="plain engine, its own client")
CDI = pytest.param(("cdi", "current"), marks=pytest.mark.cdi, id="CDI engine, its own client")


@pytest.fixture(params=[PLAIN, OWN, CDI])
async def each_pair(
    request: pytest.FixtureRequest, docker_environment: dict[str, str], tmp_path: Path
) -> AsyncIterator[Pair]:
    """All engines, each with the clients of its time."""
    async with pair_for(request, docker_environment, tmp_path) as own:
        yield own


@pytest.fixture(params=[PLAIN, CDI])
async def engine_pair(
    request: pytest.FixtureRequest, docker_environment: dict[str, str], tmp_path: Path
) -> AsyncIterator[Pair]:
    """All engines, with the same client."""
    async with pair_for(request, docker_environment, tmp_path) as own:
        yield own


@pytest.fixture
def workspace() -> Iterator[Path]:
    """A folder with one of the confined caller's in it."""
    path = Path(tempfile.mkdtemp(prefix="parity-workspace-"))
    path.chmod(0o755)
    (path / "code").mkdir()
    os.chown(path / "code", ALICE.uid, ALICE.gid)
    yield path
    shutil.rmtree(path)


def pair_for(
    request: pytest.FixtureRequest, environment: dict[str, str], directory: Path
) -> AbstractAsyncContextManager[Pair]:
    """``directory`` has to be below ``/tmp``, all of which the CDI engine sees."""
    engine, client = request.param
    if engine == "plain":
        socket = str(request.getfixturevalue("docker_engine"))
    else:
        socket = request.getfixturevalue("cdi_engine").socket
    cli = parts.need_file("engine", PACKAGED_CLI) if client == "packaged" else parts.DOCKER
    return pair_on(socket, with_client(environment, cli), parts.BUSYBOX_IMAGE, directory)
