"""What the driver tells of the work of single processes, and what is made of its silence."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpushared.domain.model.errors import RequestError
from gpushared.gpus.nvml import NvmlGpus
from gpushared.gpus.nvml_driver import NvmlCode
from gpushared.gpus.simulated import SimulatedGpus
from tests.gpus.drivers import FakeNvmlDriver
from tests.gpus.fake_nvml import FakeInstance, fake_nvml_library

ONE, TWO = 101, 102
GIB = 2**30


@pytest.fixture
def told(fake: FakeNvmlDriver) -> FakeNvmlDriver:
    """Two processes on the first GPU, whose driver tells processes apart."""
    fake.machine.gpus[0].process_utilization = "told"
    for pid in (ONE, TWO):
        fake.hold(0, pid, GIB)
    return fake


async def ratios(gpus: NvmlGpus) -> dict[int, float | None]:
    """How busy each process kept the first GPU."""
    reading = (await gpus.sample())[0]
    assert reading.trouble is None
    return {process.pid: process.utilization_ratio for process in reading.processes}


async def test_a_process_is_as_busy_as_its_busiest_sample_and_one_without_samples_did_nothing(
    told: FakeNvmlDriver,
):
    told.machine.gpus[0].did += [(ONE, 1000, 20), (ONE, 2000, 70), (ONE, 3000, 5)]
    told.machine.write()
    assert await ratios(told.open()) == {ONE: 0.7, TWO: 0.0}


async def test_samples_count_once(told: FakeNvmlDriver):
    gpus = told.open()
    told.machine.gpus[0].did.append((ONE, 1000, 20))
    told.machine.write()
    assert (await ratios(gpus))[ONE] == 0.2
    assert (await ratios(gpus))[ONE] == 0.0
    told.machine.gpus[0].did.append((ONE, 1001, 30))
    told.machine.write()
    assert (await ratios(gpus))[ONE] == 0.3


@pytest.mark.parametrize("word", ["told", "silent"])
async def test_a_driver_without_any_samples_says_that_nobody_did_anything(told: FakeNvmlDriver, word: str):
    told.machine.gpus[0].process_utilization = word
    told.machine.write()
    assert await ratios(told.open()) == {ONE: 0.0, TWO: 0.0}


@pytest.mark.parametrize(
    "code", [NvmlCode.NOT_SUPPORTED, NvmlCode.NO_PERMISSION, NvmlCode.INSUFFICIENT_SIZE, 999]
)
async def test_a_gpu_that_does_not_tell_leaves_it_unknown(told: FakeNvmlDriver, code: int):
    told.machine.gpus[0].errors["nvmlDeviceGetProcessUtilization"] = code
    told.machine.write()
    assert await ratios(told.open()) == {ONE: None, TWO: None}


async def test_a_list_that_grew_between_two_calls_is_asked_for_again(told: FakeNvmlDriver):
    told.machine.gpus[0].did.append((ONE, 1000, 20))
    told.machine.gpus[0].errors["nvmlDeviceGetProcessUtilization"] = (NvmlCode.INSUFFICIENT_SIZE, 2)
    told.machine.write()
    assert (await ratios(told.open()))[ONE] == 0.2


async def test_a_driver_without_the_function_leaves_it_unknown(told: FakeNvmlDriver, tmp_path: Path):
    old = fake_nvml_library(tmp_path / "old", without=["nvmlDeviceGetProcessUtilization"])
    assert await ratios(told.open(library=old)) == {ONE: None, TWO: None}


async def test_a_gpu_that_is_lost_while_it_is_asked_is_lost(told: FakeNvmlDriver):
    told.machine.gpus[0].errors["nvmlDeviceGetProcessUtilization"] = NvmlCode.GPU_IS_LOST
    told.machine.write()
    assert (await told.open().sample())[0].lost


async def test_the_silence_of_mps_clients_is_unknown_while_the_driver_names_only_their_server(
    told: FakeNvmlDriver,
):
    server = 100
    told.hold(0, ONE, GIB, mps_client=True)
    told.hold(0, TWO, GIB, mps_client=True)
    told.hold(0, server, GIB)
    told.machine.gpus[0].did.append((server, 1000, 90))
    told.machine.write()
    assert await ratios(told.open()) == {server: 0.9, ONE: None, TWO: None}


async def test_of_a_client_of_mps_only_its_work_is_believed(told: FakeNvmlDriver):
    """A real driver names a client now and then, and counts all later work for the server."""
    gpus = told.open()
    for pid in (ONE, TWO):
        told.hold(0, pid, GIB, mps_client=True)
    assert await ratios(gpus) == {ONE: None, TWO: None}
    told.machine.gpus[0].did.append((ONE, 1000, 40))
    told.machine.write()
    assert await ratios(gpus) == {ONE: 0.4, TWO: None}
    assert await ratios(gpus) == {ONE: None, TWO: None}


async def test_nonsense_of_the_driver_stays_a_ratio(told: FakeNvmlDriver):
    told.machine.gpus[0].did.append((ONE, 1000, 4_294_967_295))
    told.machine.write()
    assert (await ratios(told.open()))[ONE] == 1.0


async def test_a_clock_that_is_set_back_makes_nobody_idle(told: FakeNvmlDriver):
    """Samples after that bear older times than those before."""
    gpus, now = told.open(), time.time_ns() // 1000
    told.machine.gpus[0].did.append((ONE, now + 3600 * 10**6, 20))
    told.machine.write()
    await ratios(gpus)
    told.machine.gpus[0].did[:] = [(ONE, now, 30)]
    told.machine.write()
    assert (await ratios(gpus))[ONE] == 0.3


async def test_mig_instances_do_not_tell(told: FakeNvmlDriver):
    gpu = told.machine.gpus[0]
    gpu.mig, gpu.instances = 1, [FakeInstance(0, "MIG-a", compute={ONE: GIB})]
    told.machine.write()
    (instance,) = [reading for reading in await told.open().sample() if reading.gpu == "MIG-a"]
    assert [process.utilization_ratio for process in instance.processes] == [None]


async def test_simulated_processes_are_as_busy_as_they_are_said_to_be():
    gpus, pid = SimulatedGpus.parse("h100"), os.getpid()
    gpus.set_processes(0, {pid: GIB})
    assert (await gpus.sample())[0].processes[0].utilization_ratio is None
    gpus.set_process_utilization(0, {pid: 0.25})
    assert (await gpus.sample())[0].processes[0].utilization_ratio == 0.25
    with pytest.raises(RequestError, match="does not exist"):
        gpus.set_process_utilization(0, {pid: 1.5})
    await gpus.close()
