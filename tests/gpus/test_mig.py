"""MIG instances: as the driver lists them, and as they are simulated."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.gpu import (
    MIB,
    Gpu,
    GpuId,
    MigInstance,
)
from gpushared.gpus.simulated import SimulatedGpus
from gpushared.ports import GpuProcess, GpuReading
from tests.gpus.drivers import FakeNvmlDriver, close_and_join
from tests.gpus.fake_nvml import FakeInstance

GIB = 1024 * MIB
ME = os.getpid()


@pytest.fixture
def split(fake: FakeNvmlDriver) -> FakeNvmlDriver:
    """GPU 0 of two is split into three instances, with holes in its list."""
    fake.machine.gpus[0].mig = 1
    fake.machine.gpus[1].mig = 0
    fake.machine.gpus[0].instances = [
        FakeInstance(0, "MIG-small"),
        FakeInstance(2, "MIG-other"),
        FakeInstance(5, "MIG-large", "3g.8gb", total_bytes=8 * GIB - 200 * MIB, slices=3),
    ]
    fake.machine.write()
    return fake


async def look(driver: FakeNvmlDriver) -> tuple[dict[GpuId, Gpu], dict[GpuId, GpuReading]]:
    """One survey and one sample of a daemon that has run for a while."""
    gpus = driver.opened[0] if driver.opened else driver.open()
    surveyed, readings = await gpus.survey(), await gpus.sample()
    assert [gpu.id for gpu in surveyed] == [reading.gpu for reading in readings]
    return {gpu.id: gpu for gpu in surveyed}, {reading.gpu: reading for reading in readings}


async def test_a_split_gpu_is_followed_by_its_instances_whatever_holes_there_are(
    split: FakeNvmlDriver,
) -> None:
    gpus, _ = await look(split)
    assert list(gpus) == ["GPU-fake-a", "MIG-small", "MIG-other", "MIG-large", "GPU-fake-b"]
    assert [gpu.label for gpu in gpus.values()] == ["0", "0:0", "0:2", "0:5", "1"]
    assert [gpu.parent for gpu in gpus.values()] == [None, *["GPU-fake-a"] * 3, None]
    assert [gpu.split for gpu in gpus.values()] == [True, False, False, False, False]
    assert all(gpu.trouble is None for gpu in gpus.values())


async def test_an_instance_has_the_memory_and_the_shares_that_it_was_made_with(split: FakeNvmlDriver) -> None:
    """All of its memory can be leased but what the driver holds; shares go by slices of the GPU."""
    gpus, _ = await look(split)
    small, large = gpus[GpuId("MIG-small")], gpus[GpuId("MIG-large")]
    assert small.name == "NVIDIA Fake 16GB MIG 1g.10gb"
    assert small.mig == MigInstance(0, "1g.10gb", memory_permille=125, compute_permille=142)
    assert large.mig == MigInstance(5, "3g.8gb", memory_permille=500, compute_permille=428)
    assert small.leasable_bytes == small.memory_total_bytes - 13 * MIB
    assert gpus[GpuId("GPU-fake-a")].leasable_bytes == 0


async def test_a_driver_that_does_not_tell_slices_leaves_an_instance_to_be_asked_for_by_memory(
    split: FakeNvmlDriver,
) -> None:
    split.machine.gpus[0].instances[0].errors = {"nvmlDeviceGetAttributes_v2": 3}
    split.machine.write()
    gpus, _ = await look(split)
    small = gpus[GpuId("MIG-small")]
    assert small.mig is not None
    assert (small.mig.compute_permille, small.trouble) == (0, None)


async def test_a_process_is_counted_once_on_its_instance(split: FakeNvmlDriver) -> None:
    """The GPU itself does not list what runs on its instances, and still tells its temperature."""
    split.machine.gpus[0].instances[1].compute = {ME: GIB}
    split.machine.write()
    _, readings = await look(split)
    assert [reading.processes for reading in readings.values() if reading.processes] == [
        (GpuProcess(ME, GIB, mps_client=False),)
    ]
    other, gpu = readings[GpuId("MIG-other")], readings[GpuId("GPU-fake-a")]
    assert (other.memory_used_bytes, gpu.memory_used_bytes) == (GIB, GIB)
    assert (other.utilization_ratio, other.temperature_celsius) == (None, None)
    assert (gpu.utilization_ratio, gpu.temperature_celsius) == (None, 40)


async def test_mig_without_instances_says_how_to_make_some(split: FakeNvmlDriver) -> None:
    split.machine.gpus[0].instances = []
    split.machine.write()
    gpus, readings = await look(split)
    gpu = gpus[GpuId("GPU-fake-a")]
    assert gpu.trouble is not None
    assert "nvidia-smi mig -i 0 -cgi PROFILE -C" in gpu.trouble
    assert readings[gpu.id].trouble == gpu.trouble


async def test_an_instance_that_is_made_later_is_found_by_the_next_look(split: FakeNvmlDriver) -> None:
    await look(split)
    split.machine.gpus[0].instances.append(FakeInstance(3, "MIG-new"))
    split.machine.write()
    gpus, _ = await look(split)
    assert gpus[GpuId("MIG-new")].label == "0:3"


async def test_an_instance_that_is_destroyed_is_listed_no_more_until_it_is_made_again(
    split: FakeNvmlDriver,
) -> None:
    await look(split)
    small = split.machine.gpus[0].instances.pop(0)
    split.machine.write()
    gpus, _ = await look(split)
    assert [gpu for gpu in gpus if gpu.startswith("MIG-")] == ["MIG-other", "MIG-large"]
    split.machine.gpus[0].instances.append(small)
    split.machine.write()
    assert (await look(split))[0][GpuId("MIG-small")].trouble is None


async def test_where_mig_is_switched_off_the_gpu_is_one_again(split: FakeNvmlDriver) -> None:
    await look(split)
    split.machine.gpus[0].instances, split.machine.gpus[0].mig = [], 0
    split.machine.write()
    gpus, _ = await look(split)
    assert list(gpus) == ["GPU-fake-a", "GPU-fake-b"]
    assert [gpu.split for gpu in gpus.values()] == [False, False]
    assert gpus[GpuId("GPU-fake-a")].leasable_bytes > 0


async def test_an_instance_whose_place_changes_stays_the_same_one(split: FakeNvmlDriver) -> None:
    await look(split)
    split.machine.gpus[0].instances[1].place = 1
    split.machine.write()
    gpus, _ = await look(split)
    assert gpus[GpuId("MIG-other")].label == "0:1"


async def test_the_instances_of_a_lost_gpu_are_lost_with_it(split: FakeNvmlDriver) -> None:
    await look(split)
    split.machine.gpus[0].lost = True
    split.machine.write()
    gpus, readings = await look(split)
    for lost in ("GPU-fake-a", "MIG-small", "MIG-other", "MIG-large"):
        assert "lost" in (gpus[GpuId(lost)].trouble or "")
        assert readings[GpuId(lost)].lost
    assert gpus[GpuId("GPU-fake-b")].trouble is None


async def test_compute_instances_that_share_their_memory_are_not_leased(split: FakeNvmlDriver) -> None:
    """Two in one GPU instance: nothing would hold either to its part. They are looked at all the same."""
    first, second, _ = split.machine.gpus[0].instances
    second.gpu_instance = first.gpu_instance = 9
    second.compute = {ME: GIB}
    split.machine.write()
    gpus, readings = await look(split)
    troubled = [gpu.id for gpu in gpus.values() if gpu.trouble and "shares its memory" in gpu.trouble]
    assert troubled == ["MIG-small", "MIG-other"]
    reading = readings[GpuId("MIG-other")]
    assert (reading.memory_used_bytes, reading.lost) == (GIB, False)


async def test_the_doctor_is_told_of_gpus_and_of_the_instances_of_each(split: FakeNvmlDriver) -> None:
    facts = await split.open().describe()
    assert [(one.gpu, one.mig, one.mig_instances) for one in facts.gpus] == [
        ("GPU-fake-a", True, ("MIG-small", "MIG-other", "MIG-large")),
        ("GPU-fake-b", False, ()),
    ]


# --- simulated ---


@pytest.fixture
async def simulated() -> AsyncIterator[SimulatedGpus]:
    gpus = SimulatedGpus.parse("t4,a100/2x1g.10gb+3g.40gb")
    yield gpus
    await close_and_join(gpus)


async def test_simulated_instances_follow_their_gpu_like_real_ones(simulated: SimulatedGpus) -> None:
    gpus = await simulated.survey()
    assert [gpu.label for gpu in gpus] == ["0", "1", "1:0", "1:1", "1:2"]
    assert [gpu.mig.profile for gpu in gpus if gpu.mig] == ["1g.10gb", "1g.10gb", "3g.40gb"]
    assert all(gpu.id.startswith("MIG-") and gpu.parent == gpus[1].id for gpu in gpus[2:])
    assert [gpu.split for gpu in gpus] == [False, True, False, False, False]
    again = SimulatedGpus.parse("t4,a100/2x1g.10gb+3g.40gb")
    assert await again.survey() == gpus
    await close_and_join(again)


async def test_a_process_runs_on_a_simulated_instance_and_never_on_its_gpu(simulated: SimulatedGpus) -> None:
    simulated.set_processes(1, {ME: GIB}, mig_index=2)
    readings = {reading.gpu: reading for reading in await simulated.sample()}
    _, gpu, *instances = await simulated.survey()
    assert [readings[one.id].memory_used_bytes for one in (gpu, *instances)] == [GIB, 0, 0, GIB]
    assert [len(readings[one.id].processes) for one in (gpu, *instances)] == [0, 0, 0, 1]
    with pytest.raises(RequestError, match="MIG is on"):
        simulated.set_processes(1, {ME: GIB})
    with pytest.raises(RequestError, match="GPU 1:0 has 9728 MiB"):
        simulated.set_processes(1, {ME: 10 * GIB}, mig_index=0)
    with pytest.raises(RequestError, match="no simulated GPU 1:7"):
        simulated.set_processes(1, {ME: GIB}, mig_index=7)


async def test_simulated_instances_are_lost_with_their_gpu(simulated: SimulatedGpus) -> None:
    simulated.set_trouble(1, "fell off the bus")
    assert [gpu.trouble for gpu in await simulated.survey()] == [None, *["fell off the bus"] * 4]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("a100/", "does not name"),
        ("a100/9g.90gb", "no MIG profile"),
        ("t4/1g.10gb", "no MIG profile"),
        ("a100/8x1g.10gb", "do not fit"),
        ("a100/3g.40gb+3g.40gb+1g.10gb", "do not fit"),
        ("a100/0x1g.10gb", "do not fit"),
    ],
)
def test_instances_that_a_gpu_could_not_have_are_refused_with_a_hint(spec: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        SimulatedGpus.parse(spec)
    assert refused.value.hint
