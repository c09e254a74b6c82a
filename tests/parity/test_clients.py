"""Clients that are not typed by hand: what they send works for those whom the gate judges, too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpushared.domain.model.request import Caller
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.docker_gate import Gate
from tests.gate.docker import Docker
from tests.gate.lease_services import FakeLeaseService
from tests.gate.serving import ALICE, ROOT, serving_gate

KEEP_UP = 'echo Container started\ntrap "exit 0" 15\nexec "$@"\nwhile sleep 1 & wait $!; do :; done'
"""What a development container runs, so that editors can join it."""


@pytest.mark.parametrize("caller", [ROOT, ALICE], ids=["trusted", "confined"])
async def test_a_development_container_comes_up_is_joined_and_sees_the_workspace(
    caller: Caller,
    docker_engine: str,
    docker_environment: dict[str, str],
    busybox_image: str,
    workspace: Path,
) -> None:
    """With the words that tools for them give to the client; volumes are there before."""
    gate = Gate(docker_engine, FakeLeaseService(), SitePolicy(bind_prefixes=("~", str(workspace))))
    name = workspace.name
    async with serving_gate(gate, caller) as served:
        docker = Docker(served.url, docker_environment, busybox_image)
        made = await docker("volume", "create", name)
        process = await docker.start(
            *("run", "--sig-proxy=false", "-a", "STDOUT", "-a", "STDERR", "--name", name),
            *("--mount", f"type=bind,source={workspace}/code,target=/workspaces/code,consistency=cached"),
            *("--mount", f"type=volume,source={name},target=/cache", "--init"),
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
            removed = await docker("volume", "rm", name)
    assert (made.code, removed.code) == (0, 0), removed.err
    assert len(listed.out.split()) == 1
    assert (joined.code, joined.out) == (0, f"{caller.uid}\n".encode()), joined.err
    assert (workspace / "code" / "file").stat().st_uid == caller.uid
