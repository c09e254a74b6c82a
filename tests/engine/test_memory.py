"""What a container has of the host's memory, without what the kernel can take back."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushared.domain.model.host import ContainerMemory
from gpushared.domain.model.lease import ContainerId
from gpushared.engine.docker_engine import DockerEngine
from gpushared.engine.reality import memory_used
from tests.engine.containers import DockerContainers, unique_name

BOX = ContainerId("ab" * 32)
V2 = "anon 700\nfile 300\nshmem 50\nactive_file 150\ninactive_file 100\n"
V1 = "cache 9\nactive_file 1\ntotal_active_file 150\ntotal_inactive_file 100\n"
MIB = 1024**2


def lay(root: Path, cgroup: str, files: dict[str, str]) -> None:
    """A process 7 with this ``/proc/7/cgroup``, and files below ``/sys/fs/cgroup``."""
    for name, text in {"proc/7/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("cgroup", "place", "used", "stat"),
    [
        pytest.param(f"0::/docker/{BOX}\n", f"docker/{BOX}", "memory.current", V2, id="v2"),
        pytest.param(
            f"0::/system.slice/docker-{BOX}.scope\n",
            f"system.slice/docker-{BOX}.scope",
            "memory.current",
            V2,
            id="v2 with systemd",
        ),
        pytest.param(
            f"0::/docker/{BOX}/own/below\n", f"docker/{BOX}", "memory.current", V2, id="a cgroup below it"
        ),
        pytest.param(
            f"3:cpu,memory:/docker/{BOX}\n1:name=systemd:/docker/{BOX}\n0::/docker/{BOX}\n",
            f"memory/docker/{BOX}",
            "memory.usage_in_bytes",
            V1,
            id="v1 beside v2",
        ),
    ],
)
def test_what_it_uses_is_read_without_its_files(
    tmp_path: Path, cgroup: str, place: str, used: str, stat: str
) -> None:
    lay(tmp_path, cgroup, {f"sys/{place}/{used}": "1000\n", f"sys/{place}/memory.stat": stat})
    assert memory_used(7, BOX, proc=tmp_path / "proc", cgroups=tmp_path / "sys") == 750


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        pytest.param(f"0::/docker/{'cd' * 32}\n", {}, id="of another container"),
        pytest.param(f"0::/docker/{BOX}\n", {}, id="without files"),
        pytest.param(
            f"0::/docker/{BOX}\n",
            {f"sys/docker/{BOX}/memory.current": "much", f"sys/docker/{BOX}/memory.stat": ""},
            id="that says no number",
        ),
    ],
)
def test_what_cannot_be_read_counts_for_nothing(tmp_path: Path, cgroup: str, files: dict[str, str]) -> None:
    lay(tmp_path, cgroup, files)
    assert memory_used(7, BOX, proc=tmp_path / "proc", cgroups=tmp_path / "sys") == 0
    assert memory_used(8, BOX, proc=tmp_path / "proc", cgroups=tmp_path / "sys") == 0


async def test_an_inspect_tells_the_limit_and_what_is_used_of_it(
    engine: DockerEngine, containers: DockerContainers
) -> None:
    """Memory of programs and of tmpfs counts, files that were written do not."""
    container = containers.create(unique_name(), command=("sleep", "1000"))
    assert await memory_of(engine, container) == ContainerMemory()
    containers.client.update_container(container, mem_limit=128 * MIB, memswap_limit=128 * MIB)
    assert await memory_of(engine, container) == ContainerMemory(128 * MIB)
    containers.start(container)
    for megabytes, file in ((20, "/dev/shm/counts"), (60, "/tmp/does-not")):
        write = f"head -c {megabytes * MIB} /dev/zero > {file} && sync {file}"
        started = containers.client.exec_create(container, ["sh", "-c", write])
        containers.client.exec_start(started["Id"])
    memory = await memory_of(engine, container)
    assert memory.limit_bytes == 128 * MIB
    assert 20 * MIB <= memory.used_bytes < 60 * MIB


async def memory_of(engine: DockerEngine, container: ContainerId) -> ContainerMemory:
    facts = await engine.inspect(container)
    assert facts is not None
    assert facts.memory is not None
    return facts.memory
