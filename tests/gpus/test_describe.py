"""What the NVML adapter tells of the driver's own settings, on drivers played by the fake library."""

from __future__ import annotations

import pytest

from gpushared.domain.model.errors import GpusUnavailable
from gpushared.gpus.nvml_driver import NvmlCode
from gpushared.ports import GpuSettings
from tests.gpus.drivers import FakeNvmlDriver
from tests.gpus.fake_nvml import FakeGpu


async def test_the_driver_tells_its_version_and_how_each_gpu_is_set(fake: FakeNvmlDriver) -> None:
    fake.machine.gpus = [FakeGpu("GPU-a", persistence=1, compute_mode=3, mig=1, capability=(9, 0))]
    fake.machine.write()
    facts = await fake.open().describe()
    assert facts.version == "580.95.05"
    (settings,) = facts.gpus
    assert (settings.index, settings.name) == (0, "NVIDIA Fake 16GB")
    assert (settings.persistence, settings.compute_mode, settings.mig) == (True, 3, True)
    assert settings.compute_capability == (9, 0)


async def test_a_setting_that_a_gpu_does_not_tell_is_none_and_no_error(fake: FakeNvmlDriver) -> None:
    fake.machine.gpus = [FakeGpu("GPU-a")]
    fake.machine.write()
    (settings,) = (await fake.open().describe()).gpus
    assert settings == GpuSettings(settings.gpu, 0, "NVIDIA Fake 16GB")


async def test_a_lost_gpu_is_described_by_its_trouble_beside_healthy_ones(fake: FakeNvmlDriver) -> None:
    gpus = fake.open()
    await gpus.describe()
    fake.machine.gpus[1].lost = True
    fake.machine.write()
    healthy, lost = (await gpus.describe()).gpus
    assert healthy.trouble is None
    assert "lost" in (lost.trouble or "")


async def test_a_driver_that_was_changed_while_it_ran_says_so(fake: FakeNvmlDriver) -> None:
    fake.machine.errors["nvmlInitWithFlags"] = NvmlCode.LIB_RM_VERSION_MISMATCH
    fake.machine.write()
    with pytest.raises(GpusUnavailable, match="library and its kernel module differ"):
        await fake.open().describe()
