"""Tests of other people's that start their containers by testcontainers work through the gate."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from gpushared.domain.model.request import Caller
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.docker_gate import Gate
from tests.gate.docker import CommandResult, Docker
from tests.gate.lease_services import FakeLeaseService
from tests.gate.serving import ALICE, ROOT, serving_gate

PROGRAM = Path(__file__).with_name("with_testcontainers.py")
SEEN = {
    "published": "word\n",
    "exec": [3, "from outside\n"],
    "on the network": [0, "word\n"],
    "logs": "serving\n",
    "errors": "",
}


@pytest.fixture
def given(workspace: Path) -> Path:
    """A folder of the confined caller's."""
    (workspace / "code" / "word").write_text("word\n")
    return workspace / "code"


async def run_program(url: str, image: str, folder: Path, **settings: str) -> CommandResult:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAM), image, str(folder)),
        env={**environment, "DOCKER_HOST": url, **settings},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(90):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return CommandResult(process.returncode, out, err)


async def left(docker: Docker) -> list[bytes]:
    listed = await docker("ps", "-aq", "--filter", "label=org.testcontainers")
    return listed.out.split()


@pytest.mark.parametrize("caller", [ROOT, ALICE], ids=["trusted", "confined"])
async def test_a_container_is_started_spoken_with_and_removed(
    caller: Caller, docker_engine: str, docker_environment: dict[str, str], busybox_image: str, given: Path
) -> None:
    gate = Gate(docker_engine, FakeLeaseService(), SitePolicy(bind_prefixes=("~", str(given))))
    async with serving_gate(gate, caller) as served:
        before = await left(Docker(served.url, docker_environment, busybox_image))
        done = await run_program(served.url, busybox_image, given, TESTCONTAINERS_RYUK_DISABLED="true")
        assert (done.code, done.err) == (0, b"")
        assert json.loads(done.out) == SEEN
        assert await left(Docker(served.url, docker_environment, busybox_image)) == before


async def test_its_helper_that_tidies_up_is_refused_to_others_with_the_reason(
    docker_engine: str, docker_environment: dict[str, str], busybox_image: str, given: Path
) -> None:
    """It mounts the socket. Any image does for it, under another name than the test's: nothing of it runs."""
    settings = {
        "RYUK_CONTAINER_IMAGE": busybox_image.removesuffix(":latest"),
        "TESTCONTAINERS_DOCKER_SOCKET_OVERRIDE": docker_engine,
    }
    gate = Gate(docker_engine, FakeLeaseService(), SitePolicy(bind_prefixes=("~", str(given))))
    async with serving_gate(gate, ALICE) as served:
        docker = Docker(served.url, docker_environment, busybox_image)
        before = await left(docker)
        done = await run_program(served.url, busybox_image, given, **settings)
        assert await left(docker) == before
    assert done.code == 1
    assert f"{docker_engine} may not be mounted".encode() in done.err, done.err
