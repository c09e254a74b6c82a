"""Clients that are not typed by hand: what they send works for those whom the gate judges, too."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushared.domain.request import Caller
from gpushared.gate.gate import Gate
from gpushared.gate.policy.site import Policy
from tests.bed.parts import need_file
from tests.gate.desks import FakeDesk
from tests.gate.docker import Docker
from tests.gate.serving import ALICE, ROOT, serving_gate
from tests.parity.conftest import PACKAGED_CLI
from tests.parity.pairs import Pair, with_client

KEEP_UP = 'echo Container started\ntrap "exit 0" 15\nexec "$@"\nwhile sleep 1 & wait $!; do :; done'
"""What a development container runs, so that editors can join it."""


@pytest.fixture
def workspace() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="parity-workspace-"))
    path.chmod(0o755)
    (path / "code").mkdir()
    os.chown(path / "code", ALICE.uid, ALICE.gid)
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("caller", [ROOT, ALICE], ids=["trusted", "confined"])
async def test_a_development_container_comes_up_is_joined_and_sees_the_workspace(
    caller: Caller,
    docker_engine: str,
    docker_environment: dict[str, str],
    busybox_image: str,
    workspace: Path,
) -> None:
    """With the words that tools for development containers give to the client."""
    gate = Gate(docker_engine, FakeDesk(), Policy(bind_prefixes=("~", str(workspace))))
    name = workspace.name
    async with serving_gate(gate, caller) as served:
        docker = Docker(served.url, docker_environment, busybox_image)
        process = await docker.start(
            *("run", "--sig-proxy=false", "-a", "STDOUT", "-a", "STDERR", "--name", name),
            *("--mount", f"type=bind,source={workspace}/code,target=/workspaces/code,consistency=cached"),
            *("-l", f"devcontainer.local_folder={workspace}", "-l", 'devcontainer.metadata=[{"id":"x"}]'),
            *("-e", "EDITOR_SESSION=1", "--entrypoint", "/bin/sh", busybox_image, "-c", KEEP_UP, "-"),
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(30):
                assert await process.stdout.readline() == b"Container started\n"
            listed = await docker(
                "ps", "-q", "-a", "--filter", f"label=devcontainer.local_folder={workspace}"
            )
            script = "id -u; echo there > /workspaces/code/file"
            joined = await docker(
                "exec", "-i", "-w", "/workspaces/code", name, "/bin/sh", stdin=script.encode()
            )
        finally:
            await docker("rm", "-f", name)
            await process.communicate()
    assert len(listed.out.split()) == 1
    assert (joined.code, joined.out) == (0, f"{caller.uid}\n".encode()), joined.err
    assert (workspace / "code" / "file").stat().st_uid == caller.uid


async def test_a_build_by_buildkit_sends_its_files_over_a_session_of_its_own(pair: Pair) -> None:
    """The client of 20.10 has BuildKit in itself: it serves its files over an upgraded connection."""
    need_file("engine", PACKAGED_CLI)
    context = pair.directory / "shared"
    (context / "copied").write_text("copied\n")
    (context / "Dockerfile").write_text(f"FROM {pair.image}\nCOPY copied /copied\nCMD cat /copied\n")
    for side in pair.sides:
        name = f"{pair.mark}-{side.name}"
        environment = with_client(side.docker.environment, PACKAGED_CLI)
        docker = Docker(environment["DOCKER_HOST"], {**environment, "DOCKER_BUILDKIT": "1"}, pair.image)
        built = await docker("build", "--progress", "plain", "-t", name, str(context))
        ran = await docker.run(name)
        await docker("rmi", "-f", name)
        assert built.code == 0, built.err
        assert b"load build context" in built.err
        assert (ran.code, ran.out) == (0, b"copied\n")
