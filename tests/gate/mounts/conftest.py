"""Alice, her home, and a gate with held mounts before each of the bed's engines."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gpushared.gate.api.site import SitePolicy
from gpushared.gate.docker_gate import Gate
from gpushared.gate.mounts.held_mounts import HeldMounts
from gpushared.net.http_client import EngineSocket
from tests.gate.docker import Docker
from tests.gate.lease_services import FakeLeaseService
from tests.gate.mounting import Holding, give
from tests.gate.serving import ALICE, serving_gate

SECRET = "root's"


@pytest.fixture
def home() -> Iterator[Path]:
    """``own`` is alice's alone, ``secret`` root's alone."""
    path = Path(tempfile.mkdtemp(prefix="mounts-home-"))
    path.chmod(0o755)
    for name, mode, text in (("own", 0o700, "mine"), ("secret", 0o700, SECRET)):
        (path / name / "d").mkdir(parents=True)
        (path / name / "d" / "file").write_text(text)
        (path / name).chmod(mode)
    for own in (path / "own", path / "own" / "d", path / "own" / "d" / "file"):
        give(own)
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=["plain", "cdi"])
def engine(request: pytest.FixtureRequest) -> EngineSocket:
    """One in the machine's mount namespace, and one in a namespace of its own with another root."""
    if request.param == "plain":
        return EngineSocket(request.getfixturevalue("docker_engine"))
    return EngineSocket(request.getfixturevalue("cdi_engine").socket)


@pytest.fixture
async def holding(
    engine: EngineSocket,
    lease_service: FakeLeaseService,
    home: Path,
    docker_environment: dict[str, str],
    busybox_image: str,
    tmp_path: Path,
) -> AsyncIterator[Holding]:
    policy = SitePolicy(bind_prefixes=(str(home),))

    def new_life() -> HeldMounts:
        return HeldMounts(engine, lambda: policy, owner=home.name, ledger=tmp_path / "ledger")

    gate = Gate(engine.path, lease_service, policy, pins=new_life())
    async with AsyncExitStack() as stack:
        alice = await stack.enter_async_context(serving_gate(gate, ALICE))
        of_alice = Docker(alice.url, docker_environment, busybox_image)
        direct = Docker(f"unix://{engine.path}", docker_environment, busybox_image)
        yield Holding(gate, engine, of_alice, direct, home, new_life)
        mine = await direct("ps", "-aq", "--filter", f"label=test={home.name}")
        if containers := mine.out.decode().split():
            await direct("rm", "-f", *containers)
