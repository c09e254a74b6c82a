"""The driver's limits on cgroups, over the fake library, which refuses as NVIDIA documents it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushared.domain.model.errors import GpusUnavailable, TimedOut
from gpushared.domain.model.gpu import GpuId
from gpushared.gpus.nvml_settings import TRIAL_CGROUP, NvmlMemoryLimits
from tests.gpus.drivers import FakeNvmlDriver
from tests.gpus.fake_nvml import NO_MEMORY_LIMITS, FakeMachine, fake_nvml_library

GPU = GpuId("GPU-fake-a")
GIB = 2**30
SET, GET = NO_MEMORY_LIMITS
UNKNOWN_ERROR = 999

trial = pytest.mark.skipif(os.geteuid() != 0, reason="without root no limit is tried")


@pytest.fixture
def cgroups(tmp_path: Path, machine: FakeMachine) -> Path:
    """A tree that passes for cgroup v2, with one cgroup in it; this machine's own may be v1."""
    root = tmp_path / "cgroup"
    (root / "box").mkdir(parents=True)
    (root / "cgroup.controllers").touch()
    machine.cgroups = root
    machine.write()
    return root


@pytest.fixture
def limits(fake: FakeNvmlDriver, cgroups: Path) -> NvmlMemoryLimits:
    return NvmlMemoryLimits(fake.open(), cgroup_root=cgroups)


async def test_a_limit_is_set_without_a_guarantee(
    limits: NvmlMemoryLimits, machine: FakeMachine, cgroups: Path
) -> None:
    """A soft limit would be kept for a cgroup that is gone."""
    box = str(cgroups / "box")
    await limits.limit_memory(GPU, box, 4 * GIB)
    assert machine.memory_limits() == {(GPU, box): (0, 4 * GIB)}


async def test_a_limit_is_replaced_and_taken_off(
    limits: NvmlMemoryLimits, machine: FakeMachine, cgroups: Path
) -> None:
    """Taking it off twice is no error."""
    box = str(cgroups / "box")
    await limits.limit_memory(GPU, box, 4 * GIB)
    await limits.limit_memory(GPU, box, 2 * GIB)
    assert machine.memory_limits()[GPU, box] == (0, 2 * GIB)
    await limits.release_memory(GPU, box)
    await limits.release_memory(GPU, box)
    assert machine.memory_limits() == {}


@trial
async def test_the_trial_leaves_nothing_behind(
    limits: NvmlMemoryLimits, machine: FakeMachine, cgroups: Path
) -> None:
    """Neither the limit nor the cgroup that it was tried on."""
    assert await limits.memory_limits_trouble() is None
    assert machine.memory_limits() == {}
    assert not (cgroups / TRIAL_CGROUP).exists()


def _unprivileged(machine: FakeMachine) -> None:
    machine.unprivileged = True


def _split(machine: FakeMachine) -> None:
    for gpu in machine.gpus:
        gpu.mig = 1


def _deaf(machine: FakeMachine) -> None:
    machine.cgroups = None


def _broken(machine: FakeMachine) -> None:
    machine.errors = {SET: UNKNOWN_ERROR}


@trial
@pytest.mark.parametrize(
    ("happens", "sentence"),
    [
        (_unprivileged, "for root only"),
        (_split, "every GPU is split by MIG"),
        (_deaf, "does not support memory limits on this machine"),
        (_broken, f"answered {SET} with error {UNKNOWN_ERROR}"),
    ],
)
async def test_the_trial_says_what_is_missing(
    limits: NvmlMemoryLimits,
    machine: FakeMachine,
    cgroups: Path,
    happens: Callable[[FakeMachine], None],
    sentence: str,
) -> None:
    """As the driver refuses: not root, MIG, a machine that it does not know, anything else by its number."""
    happens(machine)
    machine.write()
    assert sentence in str(await limits.memory_limits_trouble())
    assert not (cgroups / TRIAL_CGROUP).exists()


@trial
async def test_one_gpu_that_is_not_split_is_enough(limits: NvmlMemoryLimits, machine: FakeMachine) -> None:
    """MIG on another one takes nothing away."""
    machine.gpus[0].mig = 1
    machine.write()
    assert await limits.memory_limits_trouble() is None


async def test_with_cgroup_v1_the_driver_is_not_even_asked(fake: FakeNvmlDriver, tmp_path: Path) -> None:
    """A tree of v1 has no list of controllers."""
    limits = NvmlMemoryLimits(fake.open(), cgroup_root=tmp_path)
    assert await limits.memory_limits_trouble() == f"{tmp_path} is not cgroup v2, which the driver needs"


@pytest.fixture
def old(tmp_path: Path, fake: FakeNvmlDriver, cgroups: Path) -> NvmlMemoryLimits:
    library = fake_nvml_library(tmp_path / "old", without=NO_MEMORY_LIMITS)
    return NvmlMemoryLimits(fake.open(library=library), cgroup_root=cgroups)


@trial
async def test_an_older_driver_is_named_as_the_reason(old: NvmlMemoryLimits, cgroups: Path) -> None:
    """Its library lacks the functions."""
    assert "release 615" in str(await old.memory_limits_trouble())
    with pytest.raises(GpusUnavailable, match="too old"):
        await old.limit_memory(GPU, str(cgroups / "box"), GIB)


@trial
async def test_a_driver_that_keeps_another_limit_is_not_believed(
    limits: NvmlMemoryLimits, machine: FakeMachine, cgroups: Path
) -> None:
    """What was set is read back."""
    machine.ignore_limits = True
    machine.write()
    with pytest.raises(GpusUnavailable, match="instead of 4294967296"):
        await limits.limit_memory(GPU, str(cgroups / "box"), 4 * GIB)
    assert "instead of" in str(await limits.memory_limits_trouble())


@pytest.mark.parametrize(("gpu", "cgroup"), [("GPU-none", "box"), (GPU, "gone")])
async def test_what_is_not_there_cannot_be_limited(
    limits: NvmlMemoryLimits, cgroups: Path, gpu: str, cgroup: str
) -> None:
    """Neither a GPU nor a cgroup."""
    with pytest.raises(GpusUnavailable):
        await limits.limit_memory(GpuId(gpu), str(cgroups / cgroup), GIB)


async def test_a_lost_gpu_takes_no_limit(fake: FakeNvmlDriver, machine: FakeMachine, cgroups: Path) -> None:
    """And the error says that it is lost."""
    gpus = fake.open()
    await gpus.survey()
    machine.gpus[0].lost = True
    machine.write()
    with pytest.raises(GpusUnavailable, match="lost"):
        await NvmlMemoryLimits(gpus, cgroup_root=cgroups).limit_memory(GPU, str(cgroups / "box"), GIB)


async def test_a_driver_that_hangs_holds_nobody_up(
    fake: FakeNvmlDriver, machine: FakeMachine, cgroups: Path
) -> None:
    """The call is given up after the adapter's time."""
    gpus = fake.open(timeout_seconds=0.2)
    await gpus.survey()
    machine.hang = SET
    machine.write()
    with pytest.raises(TimedOut):
        await NvmlMemoryLimits(gpus, cgroup_root=cgroups).limit_memory(GPU, str(cgroups / "box"), GIB)
