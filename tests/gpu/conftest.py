"""A real GPU, the probe, MPS, and leases on them; each test says why it is skipped where one is missing."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from bench.gpu.child import Child
from bench.gpu.lab import BuildFailed, Lab, build_probe, inherited
from bench.gpu.leases import inside
from bench.gpu.machine import Machine, Need, look
from gpushared.domain.leases.node_rules import MpsMode
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.gpus.nvml import NvmlGpus
from gpushared.ports import Edits
from gpushared.sharing.control import ControlTiming
from gpushared.sharing.daemon_pool import MpsTiming
from gpushared.sharing.mps import MpsSharing

HERE = Path(__file__).resolve().parent
CGROUP = Path("/sys/fs/cgroup")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever is in this directory needs a GPU."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


def need(machine: Machine, *needs: Need) -> None:
    for one in needs:
        if why := machine.lacks(one):
            pytest.skip(why)


@pytest.fixture(scope="session")
def machine() -> Machine:
    found = asyncio.run(look())
    need(found, Need.GPU)
    return found


@pytest.fixture(scope="session")
def probe_directory(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("probe")
    try:
        asyncio.run(build_probe(machine.nvcc, directory))
    except BuildFailed as error:
        pytest.skip(str(error))
    return directory


@pytest.fixture
async def lab(machine: Machine, probe_directory: Path, tmp_path: Path) -> AsyncIterator[Lab]:
    """A place with the probe in it; what it started is gone afterwards."""
    made = Lab(machine, tmp_path)
    for path in probe_directory.iterdir():
        shutil.copy2(path, made.probe_path.parent)
    yield made
    await made.close()


@pytest.fixture
async def gpus(machine: Machine) -> AsyncIterator[NvmlGpus]:
    need(machine, Need.NVML)
    adapter = NvmlGpus(timeout_seconds=30)
    yield adapter
    await adapter.close()


@pytest.fixture
async def gpu(gpus: NvmlGpus, machine: Machine) -> Gpu:
    """The GPU of the tests as the daemon sees it."""
    return next(one for one in await gpus.survey() if one.id == GpuId(machine.uuid))


@pytest.fixture
async def sharing(machine: Machine, lab: Lab) -> AsyncIterator[MpsSharing]:
    """Our own sharing over the driver's MPS."""
    need(machine, Need.MPS, Need.ROOT)
    libraries = {key: value for key, value in inherited().items() if key == "LD_LIBRARY_PATH"}
    made = MpsSharing(
        lab.new_home(),
        binary=machine.mps_control,
        mode=MpsMode.REQUIRED,
        timing=MpsTiming(ControlTiming(start_seconds=30), poll_seconds=0.2),
        environ=libraries,
    )
    yield made
    await lab.clear()
    await made.close(keep_running=False)


class Contained:
    """Starts probes as a container would run them: the lease's edits, a cgroup named after a container."""

    def __init__(self, lab: Lab, stack: AsyncExitStack) -> None:
        self._lab = lab
        self._stack = stack

    async def start(
        self, edits: Edits, *actions: str, container: str | None = None, uid: int | None = None
    ) -> Child:
        """``container``: the id whose cgroup it runs in; none stays in ours."""
        words = inside(edits, [self._lab.probe_path, *actions], uid=uid)
        if container is not None:
            join = 'echo $$ > "$0" && exec "$@"'
            words = ["sh", "-c", join, str(self._cgroup(container) / "cgroup.procs"), *map(str, words)]
        return await self._lab.start_words(words, env={**edits.env_defaults, **edits.env})

    def _cgroup(self, container: str) -> Path:
        """As the engine names it without systemd."""
        root = CGROUP if (CGROUP / "cgroup.controllers").exists() else CGROUP / "memory"
        path = root / "docker" / container
        try:
            path.mkdir(parents=True)
        except OSError as error:
            pytest.skip(f"no cgroup can be made here: {error}")
        self._stack.push_async_callback(_remove, path)
        return path


async def _remove(path: Path) -> None:
    """A cgroup can go a moment after its last process."""
    for _ in range(100):
        with suppress(OSError):
            path.rmdir()
            break
        await asyncio.sleep(0.02)
    with suppress(OSError):
        path.parent.rmdir()


@pytest.fixture
async def contained(machine: Machine, lab: Lab) -> AsyncIterator[Contained]:
    need(machine, Need.ROOT, Need.UNSHARE)
    if not os.path.exists("/proc/self/cgroup"):  # noqa: PTH110 - one question, no path to build on
        pytest.skip("this kernel has no cgroups")
    async with AsyncExitStack() as stack:
        yield Contained(lab, stack)
        await lab.clear()
