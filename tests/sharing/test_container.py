"""A lease's directory seen from inside a real container."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.lease import Grant, Lease
from gpushared.domain.model.request import Isolation
from gpushared.ports import Edits
from gpushared.sharing.daemon_pool import MpsTiming
from gpushared.sharing.mps import MpsSharing
from tests.sharing import daemons
from tests.sharing.samples import FIRST, GPUS, grant, leasable_gib, lease

LIMIT_QUESTION = "get_default_device_pinned_mem_limit 0"
LIBRARIES = ("/lib", "/lib64", "/usr/lib")
"""The control program is linked to the machine's C library, which the small image lacks."""

StartContainer = Callable[[Edits], "Container"]


class Container:
    """A container that sleeps, with a lease's environment and mounts and with the control program in it."""

    def __init__(self, docker: Path, engine: str, image: str, binary: Path, edits: Edits) -> None:
        self._docker = [str(docker), "-H", f"unix://{engine}"]
        mounts = [f"type=bind,src={mount.source},dst={mount.target},readonly" for mount in edits.mounts]
        mounts += [f"type=bind,src={path},dst={path},readonly" for path in LIBRARIES]
        mounts.append(f"type=bind,src={binary.resolve()},dst=/mps,readonly")
        flags = [f"--mount={mount}" for mount in mounts]
        flags += [f"--env={name}={value}" for name, value in edits.env.items()]
        self._id = self._run("run", "--detach", "--network=none", *flags, image, "sleep", "600").strip()

    def ask(self, *commands: str) -> str:
        """What root in the container gets to read from the control program."""
        return self._run("exec", "-i", self._id, "/mps", text="".join(f"{line}\n" for line in commands))

    def listing(self) -> list[str]:
        return self._run("exec", self._id, "sh", "-c", 'ls -A "$CUDA_MPS_PIPE_DIRECTORY"').split()

    def lease(self) -> dict[str, Any]:
        """What is written of the lease inside."""
        found: dict[str, Any] = json.loads(self.run("cat", "/run/gpushare/lease.json"))
        return found

    def run(self, *words: str) -> str:
        return self._run("exec", self._id, *words)

    def remove(self) -> None:
        self._run("rm", "--force", self._id)

    def _run(self, *words: str, text: str = "") -> str:
        command = [*self._docker, *words]
        return subprocess.run(
            command, input=text, capture_output=True, text=True, check=True, timeout=60
        ).stdout


@pytest.fixture
def start(
    docker_cli: Path, docker_engine: str, busybox_image: str, mps_control_binary: Path
) -> Iterator[StartContainer]:
    started: list[Container] = []

    def start_one(edits: Edits) -> Container:
        container = Container(docker_cli, docker_engine, busybox_image, mps_control_binary, edits)
        started.append(container)
        return container

    yield start_one
    for container in started:
        container.remove()


async def opened(binary: Path, runtime_dir: Path, of: Lease) -> tuple[MpsSharing, Edits]:
    sharing = MpsSharing(runtime_dir, binary=binary, timing=MpsTiming(poll_seconds=0.05))
    return sharing, await sharing.open(of, GPUS)


async def test_root_in_a_container_can_ask_but_neither_set_nor_quit(
    mps_control_binary: Path, runtime_dir: Path, start: StartContainer
) -> None:
    sharing, edits = await opened(mps_control_binary, runtime_dir, lease(1))
    container = start(edits)
    assert container.listing() == ["control"]
    answer = container.ask(
        "set_default_active_thread_percentage 10",
        "set_default_device_pinned_mem_limit 0 900G",
        "quit",
        LIMIT_QUESTION,
    )
    assert answer.count("Insufficient privileges for UID 0") == 2
    assert "Not enough privilege to execute quit command" in answer
    assert answer.splitlines()[-1] == f"{leasable_gib(FIRST)}G"
    await sharing.close(keep_running=False)


async def test_root_in_the_container_of_a_separate_lease_cannot_raise_its_own_limits(
    mps_control_binary: Path, runtime_dir: Path, start: StartContainer
) -> None:
    sized = lease(1, Grant(FIRST, 4096 * MIB, 125), isolation=Isolation.SEPARATE)
    sharing, edits = await opened(mps_control_binary, runtime_dir, sized)
    container = start(edits)
    answer = container.ask(
        "set_default_active_thread_percentage 100",
        "set_default_device_pinned_mem_limit 0 900G",
        LIMIT_QUESTION,
        "get_default_active_thread_percentage",
    )
    assert answer.count("Insufficient privileges for UID 0") == 2
    assert answer.splitlines()[-2:] == ["4G", "12.5"]
    assert container.lease()["memory_wall"] == "mps-server"
    await sharing.close(keep_running=False)


async def test_a_running_container_reads_its_lease_as_it_is_now_and_cannot_change_it(
    mps_control_binary: Path, runtime_dir: Path, start: StartContainer
) -> None:
    sharing, edits = await opened(mps_control_binary, runtime_dir, lease(1))
    container = start(edits)
    before = container.lease()
    await sharing.open(lease(1, grant(FIRST, 500)), GPUS)
    after = container.lease()
    assert [one["gpus"][0]["compute_percent"] for one in (before, after)] == [25, 50]
    with pytest.raises(subprocess.CalledProcessError) as refused:
        container.run("rm", "/run/gpushare/lease.json")
    assert "Read-only file system" in refused.value.stderr
    await sharing.close(keep_running=False)


async def test_a_running_container_meets_the_daemon_that_replaced_a_killed_one(
    mps_control_binary: Path, runtime_dir: Path, start: StartContainer
) -> None:
    sharing, edits = await opened(mps_control_binary, runtime_dir, lease(1))
    container = start(edits)
    (old,) = daemons.serving_under(runtime_dir)
    socket = Path(edits.mounts[0].source) / "mps" / "control"
    inode = socket.stat().st_ino
    os.kill(old, signal.SIGKILL)
    await daemons.until(lambda: socket.stat().st_ino != inode)
    assert container.listing() == ["control"]
    assert container.ask(LIMIT_QUESTION).strip() == f"{leasable_gib(FIRST)}G"
    await sharing.close(keep_running=False)
