"""A gate before the real engine, for trusted callers, with the docker CLI as its client; gates before a recorder."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpushared.gate.api.site import SitePolicy
from gpushared.gate.docker_gate import Gate
from gpushared.ports import EngineFacts
from tests.bed.fixtures import CdiEngine
from tests.gate.copying import Copier, copier
from tests.gate.docker import Docker
from tests.gate.fuzz.recorded_gates import RecordedGates
from tests.gate.lease_services import FakeLeaseService, facts
from tests.gate.people import people
from tests.gate.serving import ROOT, ServedSocket, serving_gate


@pytest.fixture
def lease_service() -> FakeLeaseService:
    return FakeLeaseService()


@pytest.fixture(params=["oldest", pytest.param("newest", marks=pytest.mark.cdi)])
def each_engine(request: pytest.FixtureRequest, lease_service: FakeLeaseService) -> str:
    """The endpoint of an engine, of which the lease service says what the engine is."""
    if request.param == "newest":
        newest: CdiEngine = request.getfixturevalue("cdi_engine")
        lease_service.facts = EngineFacts("28.5.2", "1.51", True, facts().gpu_mechanism, 1)
        return newest.socket
    oldest: str = request.getfixturevalue("docker_engine")
    return oldest


@pytest.fixture
async def served(lease_service: FakeLeaseService, docker_engine: str) -> AsyncIterator[ServedSocket]:
    async with serving_gate(Gate(docker_engine, lease_service), ROOT) as served:
        yield served


@pytest.fixture(scope="module")
def gates() -> Iterator[RecordedGates]:
    with RecordedGates() as gates:
        yield gates


@pytest.fixture
def docker(served: ServedSocket, docker_environment: dict[str, str], busybox_image: str) -> Docker:
    return Docker(served.url, docker_environment, busybox_image)


@pytest.fixture
def name() -> str:
    return f"gate-{uuid.uuid4().hex[:10]}"


@pytest.fixture
async def sleeper(docker: Docker, name: str) -> AsyncIterator[str]:
    done = await docker(
        "run", "-d", "--init", "--network", "none", "--name", name, docker.image, "sleep", "600"
    )
    assert done.code == 0, done.err
    yield name
    await docker("rm", "-f", name)


@pytest.fixture(params=["oldest", pytest.param("newest", marks=pytest.mark.cdi)])
async def alice(
    request: pytest.FixtureRequest, lease_service: FakeLeaseService, busybox_image: str, tmp_path: Path
) -> AsyncIterator[Copier]:
    """Somebody without rights, before each of the engines."""
    if request.param == "newest":
        engine: CdiEngine = request.getfixturevalue("cdi_engine")
        socket = engine.socket
    else:
        socket = request.getfixturevalue("docker_engine")
    policy = SitePolicy(bind_prefixes=(str(tmp_path),))
    async with (
        people(Gate(socket, lease_service, policy), busybox_image) as both,
        copier(both, socket) as found,
    ):
        yield found
