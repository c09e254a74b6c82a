"""Compute modes over NVML, on a driver played by the fake library."""

from __future__ import annotations

import pytest

from gpushared.domain.model.errors import GpusUnavailable
from gpushared.domain.model.gpu import GpuId
from gpushared.gpus.nvml_settings import NvmlComputeModes
from tests.gpus.drivers import FakeNvmlDriver
from tests.gpus.fake_nvml import FakeGpu

A, B = GpuId("GPU-a"), GpuId("GPU-b")
EXCLUSIVE_PROCESS = 3


@pytest.fixture
def modes(fake: FakeNvmlDriver) -> NvmlComputeModes:
    """One GPU with compute modes, and one without."""
    fake.machine.gpus = [FakeGpu("GPU-a", compute_mode=0), FakeGpu("GPU-b")]
    fake.machine.write()
    return NvmlComputeModes(fake.open())


async def test_a_mode_that_was_set_is_read_back(modes: NvmlComputeModes, fake: FakeNvmlDriver) -> None:
    assert await modes.compute_mode(A) == 0
    await modes.set_compute_mode(A, EXCLUSIVE_PROCESS)
    assert await modes.compute_mode(A) == EXCLUSIVE_PROCESS
    assert fake.machine.modes_set() == [("GPU-a", EXCLUSIVE_PROCESS)]


async def test_a_gpu_without_modes_tells_none_and_takes_none(modes: NvmlComputeModes) -> None:
    assert await modes.compute_mode(B) is None
    with pytest.raises(GpusUnavailable, match="does not support"):
        await modes.set_compute_mode(B, EXCLUSIVE_PROCESS)


async def test_without_the_right_to_set_modes_nothing_is_set(
    modes: NvmlComputeModes, fake: FakeNvmlDriver
) -> None:
    fake.machine.unprivileged = True
    fake.machine.write()
    with pytest.raises(GpusUnavailable, match="permission"):
        await modes.set_compute_mode(A, EXCLUSIVE_PROCESS)
    assert await modes.compute_mode(A) == 0


async def test_a_gpu_that_is_not_there_is_an_error_that_names_it(modes: NvmlComputeModes) -> None:
    with pytest.raises(GpusUnavailable, match="there is no GPU GPU-c"):
        await modes.compute_mode(GpuId("GPU-c"))
