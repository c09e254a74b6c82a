"""The NVML adapter on drivers and GPUs that are old, sick or away, played by the fake library."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gpushared.domain.model.errors import GpusUnavailable
from gpushared.domain.model.gpu import MIB
from gpushared.gpus.nvml import NvmlGpus
from gpushared.gpus.nvml_driver import DriverError, NvmlCode, NvmlDriver, _ask
from gpushared.ports import GpuProcess
from tests.gpus.drivers import FakeNvmlDriver
from tests.gpus.fake_nvml import FakeGpu, FakeMachine, fake_nvml_library

GIB = 2**30

# --- the driver as a whole ---


async def test_a_missing_library_says_to_install_the_driver_or_to_simulate(tmp_path: Path):
    gpus = NvmlGpus(library=str(tmp_path / "libnvidia-ml.so.1"))
    with pytest.raises(GpusUnavailable, match=r"libnvidia-ml\.so\.1 was not found .*--simulate"):
        await gpus.survey()
    await gpus.close()


async def test_a_library_installed_later_is_found_without_a_restart(tmp_path: Path, fake: FakeNvmlDriver):
    gpus = fake.open(library=tmp_path / "later" / "libnvidia-ml.so.1")
    with pytest.raises(GpusUnavailable):
        await gpus.survey()
    (tmp_path / "later").symlink_to(fake.library.parent)
    assert len(await gpus.survey()) == 2


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (NvmlCode.NO_PERMISSION, "no permission .*run it as root"),
        (NvmlCode.DRIVER_NOT_LOADED, "not loaded .*modprobe nvidia"),
        (NvmlCode.LIB_RM_VERSION_MISMATCH, "library and its kernel module differ .*reboot"),
        (NvmlCode.TIMEOUT, "gave up .*dmesg"),
        (NvmlCode.FUNCTION_NOT_FOUND, "too old.*update the driver"),
        (999, "answered nvmlInit with error 999"),
        (12345, "answered nvmlInit with error 12345"),
    ],
)
async def test_a_driver_that_does_not_open_says_why_and_what_to_do(
    fake: FakeNvmlDriver, code: int, says: str
):
    fake.machine.errors["nvmlInitWithFlags"] = code
    fake.machine.write()
    gpus = fake.open()
    with pytest.raises(GpusUnavailable, match=says):
        await gpus.survey()
    with pytest.raises(GpusUnavailable, match=says):
        await gpus.sample()


async def test_a_driver_unloaded_and_loaded_again_is_found_again(fake: FakeNvmlDriver):
    gpus = fake.open()
    before = await gpus.survey()
    fake.machine.unload_driver()
    with pytest.raises(GpusUnavailable, match="not loaded"):
        await gpus.sample()
    fake.machine.write()
    assert await gpus.survey() == before


@pytest.mark.parametrize("code", [NvmlCode.LIB_RM_VERSION_MISMATCH, NvmlCode.UNINITIALIZED])
async def test_a_driver_lost_in_the_middle_of_a_sample_is_opened_again(fake: FakeNvmlDriver, code: int):
    gpus = fake.open()
    await gpus.sample()
    fake.machine.gpus[1].errors["nvmlDeviceGetPowerUsage"] = code
    fake.machine.write()
    with pytest.raises(GpusUnavailable):
        await gpus.sample()
    fake.machine.gpus[1].errors.clear()
    fake.machine.write()
    assert [reading.trouble for reading in await gpus.sample()] == [None, None]


async def test_a_driver_lost_while_its_gpus_are_listed_is_no_trouble_of_a_gpu(fake: FakeNvmlDriver):
    fake.machine.errors["nvmlDeviceGetUUID"] = NvmlCode.DRIVER_NOT_LOADED
    fake.machine.write()
    with pytest.raises(GpusUnavailable, match="not loaded"):
        await fake.open().survey()


async def test_what_was_opened_is_shut_even_when_listing_the_gpus_failed(fake: FakeNvmlDriver):
    fake.machine.errors["nvmlDeviceGetCount_v2"] = 999
    fake.machine.write()
    with pytest.raises(GpusUnavailable):
        await fake.open().survey()
    fake.machine.errors.clear()
    fake.machine.write()
    count = ctypes.c_uint()
    library = ctypes.CDLL(str(fake.library))
    assert library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == NvmlCode.UNINITIALIZED


async def test_a_machine_whose_driver_lists_no_gpu_has_none(fake: FakeNvmlDriver):
    fake.machine.gpus.clear()
    fake.machine.write()
    gpus = fake.open()
    assert (await gpus.survey(), await gpus.sample()) == ((), ())


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
async def test_a_driver_without_a_needed_function_is_too_old(
    fake: FakeNvmlDriver, tmp_path: Path, function: str
):
    gpus = fake.open(library=fake_nvml_library(tmp_path / "lib", without=[function]))
    with pytest.raises(GpusUnavailable, match="its library lacks a function"):
        await gpus.survey()


def test_the_bindings_own_complaint_about_an_old_library_is_a_missing_function(
    old_library: Path, machine: FakeMachine
):
    driver = NvmlDriver(str(old_library))
    driver.open()
    with pytest.raises(DriverError) as missing:
        _ask("nvmlDeviceGetComputeRunningProcesses", driver.handle(0))
    assert missing.value.code == NvmlCode.FUNCTION_NOT_FOUND
    driver.close()


async def test_an_old_driver_gives_the_same_figures_by_its_older_functions(
    fake: FakeNvmlDriver, old_library: Path
):
    fake.hold(0, 1, GIB)
    with_old = fake.open(library=old_library)
    old = (await with_old.sample())[0]
    await with_old.close()
    new = (await fake.open().sample())[0]
    assert old.processes == (GpuProcess(1, GIB, mps_client=False),)
    assert (old.processes, old.temperature_celsius) == (new.processes, new.temperature_celsius)
    # It does not tell its own part from that of the processes.
    assert (old.memory_used_bytes, new.memory_used_bytes) == (GIB + 500 * MIB, GIB)


# --- single GPUs ---


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (NvmlCode.GPU_IS_LOST, "lost.*reboot"),
        (NvmlCode.RESET_REQUIRED, "has to be reset.*gpu-reset"),
        (NvmlCode.NO_PERMISSION, "no permission"),
        (NvmlCode.IN_USE, "exclusive use"),
        (999, "answered nvmlDeviceGetMemoryInfo with error 999"),
    ],
)
async def test_a_sick_gpu_says_why_beside_a_healthy_one(fake: FakeNvmlDriver, code: int, says: str):
    fake.machine.gpus[1].errors["nvmlDeviceGetMemoryInfo_v2"] = code
    fake.machine.write()
    gpus = fake.open()
    for healthy, sick in (await gpus.survey(), await gpus.sample()):
        assert healthy.trouble is None
        assert re.search(says, sick.trouble or "")


async def test_a_gpu_lost_before_the_daemon_came_is_listed_until_it_can_be_read(fake: FakeNvmlDriver):
    fake.lose(0)
    gpus = fake.open()
    unreadable, healthy = await gpus.survey()
    assert (unreadable.id, unreadable.leasable_bytes) == ("GPU-unreadable-0", 0)
    assert "lost" in (unreadable.trouble or "")
    fake.lose(0, lost=False)
    assert [gpu.id for gpu in await gpus.survey()] == ["GPU-fake-a", healthy.id]


async def test_a_gpu_lost_in_use_keeps_its_id_when_the_driver_is_opened_again(fake: FakeNvmlDriver):
    gpus = fake.open()
    before = await gpus.survey()
    fake.lose(0)
    for _ in range(3):
        lost, healthy = await gpus.survey()
        assert (lost.id, lost.memory_total_bytes) == (before[0].id, before[0].memory_total_bytes)
        assert healthy == before[1]


async def test_a_gpu_that_the_driver_lists_no_more_stays_listed_as_gone(fake: FakeNvmlDriver):
    gpus = fake.open()
    await gpus.survey()
    fake.lose(0)
    await gpus.survey()
    # The kernel has taken it off the bus, and the other one moves up.
    gone = fake.machine.gpus.pop(0)
    fake.machine.write()
    survey = await gpus.survey()
    assert [(gpu.id, gpu.index, gpu.trouble is None) for gpu in survey] == [
        ("GPU-fake-b", 0, True),
        ("GPU-fake-a", 0, False),
    ]
    assert "gone" in (survey[1].trouble or "")
    fake.machine.gpus.insert(0, gone)
    fake.lose(0, lost=False)
    assert [gpu.trouble for gpu in await gpus.survey()] == [None, None]


async def test_while_a_gpu_is_lost_the_driver_is_not_opened_anew_with_every_call(fake: FakeNvmlDriver):
    gpus = fake.open(retry_seconds=3600)
    await gpus.survey()
    fake.lose(0)
    await gpus.survey()
    fake.machine.errors["nvmlInitWithFlags"] = 999
    fake.machine.write()
    assert [gpu.trouble is None for gpu in await gpus.survey()] == [False, True]


async def test_figures_that_a_gpu_does_not_support_are_none(fake: FakeNvmlDriver):
    bare = FakeGpu(
        "GPU-bare",
        utilization_percent=None,
        temperature_celsius=None,
        power_milliwatts=None,
        energy_millijoules=None,
    )
    fake.machine.gpus = [bare]
    fake.machine.write()
    (reading,) = await fake.open().sample()
    assert (reading.utilization_ratio, reading.temperature_celsius) == (None, None)
    assert (reading.power_watts, reading.energy_joules) == (None, None)
    assert (reading.memory_used_bytes, reading.trouble) == (0, None)


@pytest.mark.parametrize("code", [3, 4, 6, 10, 13, 21, 25, 999])
@pytest.mark.parametrize(
    ("functions", "figure"),
    [
        (["nvmlDeviceGetUtilizationRates"], "utilization_ratio"),
        (["nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"], "temperature_celsius"),
        (["nvmlDeviceGetPowerUsage"], "power_watts"),
        (["nvmlDeviceGetTotalEnergyConsumption"], "energy_joules"),
    ],
)
async def test_a_figure_that_fails_is_none_and_no_trouble(
    fake: FakeNvmlDriver, functions: list[str], figure: str, code: int
):
    fake.machine.gpus[0].errors.update(dict.fromkeys(functions, code))
    fake.machine.write()
    failed, whole = await fake.open().sample()
    assert (getattr(failed, figure), failed.trouble) == (None, None)
    assert getattr(whole, figure) is not None


@pytest.mark.parametrize("code", [NvmlCode.GPU_IS_LOST, NvmlCode.RESET_REQUIRED])
async def test_a_gpu_that_goes_away_in_the_middle_of_a_reading_has_no_figures(
    fake: FakeNvmlDriver, code: int
):
    fake.machine.gpus[0].errors["nvmlDeviceGetPowerUsage"] = code
    fake.machine.write()
    away, healthy = await fake.open().sample()
    assert (away.memory_used_bytes, away.trouble is None) == (None, False)
    assert healthy.trouble is None


@pytest.mark.parametrize("total_bytes", [None, 0])
async def test_a_gpu_that_does_not_tell_its_memory_cannot_be_leased_but_is_read(
    fake: FakeNvmlDriver, total_bytes: int | None
):
    fake.machine.gpus = [FakeGpu("GPU-unified", total_bytes=total_bytes, reserved_bytes=0)]
    fake.machine.write()
    gpus = fake.open()
    (gpu,), (reading,) = await gpus.survey(), await gpus.sample()
    assert (gpu.memory_total_bytes, gpu.leasable_bytes) == (0, 0)
    assert "does not tell this GPU's memory" in (gpu.trouble or "")
    assert (reading.memory_used_bytes, reading.temperature_celsius, reading.trouble) == (
        None,
        40,
        gpu.trouble,
    )


@pytest.mark.parametrize(("mode", "usable"), [(None, True), (0, True), (1, False)])
async def test_a_gpu_split_by_mig_is_not_leased(fake: FakeNvmlDriver, mode: int | None, usable: bool):
    fake.machine.gpus[0].mig = mode
    fake.machine.write()
    gpus = fake.open()
    surveyed, readings = await gpus.survey(), await gpus.sample()
    assert [gpu.leasable_bytes > 0 for gpu in surveyed] == [usable, True]
    assert [gpu.trouble is None for gpu in surveyed] == [usable, True]
    assert [reading.trouble for reading in readings] == [gpu.trouble for gpu in surveyed]
    assert readings[0].memory_used_bytes is not None


async def test_leasable_memory_is_the_total_less_the_drivers_part_and_mps_in_whole_mib(fake: FakeNvmlDriver):
    fake.machine.gpus = [FakeGpu("GPU-odd", total_bytes=1000 * MIB + 5, reserved_bytes=100 * MIB + 6)]
    fake.machine.write()
    assert [gpu.leasable_bytes for gpu in await fake.open(mps_reserve_bytes=50 * MIB).survey()] == [849 * MIB]


async def test_a_gpu_smaller_than_what_is_kept_back_has_nothing_to_lease(fake: FakeNvmlDriver):
    fake.machine.gpus = [FakeGpu("GPU-tiny", total_bytes=128 * MIB, reserved_bytes=64 * MIB)]
    fake.machine.write()
    assert [gpu.leasable_bytes for gpu in await fake.open().survey()] == [0]


# --- processes ---


async def test_a_process_in_several_lists_counts_once_with_its_largest_figure(fake: FakeNvmlDriver):
    gpu = fake.machine.gpus[0]
    gpu.compute, gpu.mps = {30: GIB, 10: None, 40: None}, {30: 2 * GIB, 20: GIB, 40: GIB}
    gpu.graphics = {30: 5, 50: None}
    fake.machine.write()
    reading = (await fake.open().sample())[0]
    assert reading.processes == (
        GpuProcess(10, None, mps_client=False),
        GpuProcess(20, GIB, mps_client=True),
        GpuProcess(30, 2 * GIB, mps_client=True),
        GpuProcess(40, GIB, mps_client=True),
        GpuProcess(50, None),
    )


async def test_a_hundred_processes_are_all_listed(fake: FakeNvmlDriver):
    fake.machine.gpus[0].compute = {pid: pid * MIB for pid in range(1, 101)}
    fake.machine.write()
    reading = (await fake.open().sample())[0]
    assert [process.pid for process in reading.processes] == list(range(1, 101))


async def test_a_process_list_that_cannot_be_had_whole_is_trouble_rather_than_empty(fake: FakeNvmlDriver):
    fake.hold(0, 1, GIB)
    fake.machine.gpus[0].errors["nvmlDeviceGetComputeRunningProcesses_v3"] = NvmlCode.INSUFFICIENT_SIZE
    fake.machine.write()
    reading = (await fake.open().sample())[0]
    assert "error 7" in (reading.trouble or "")


async def test_processes_that_come_while_they_are_listed_are_listed_too(fake: FakeNvmlDriver):
    fake.hold(0, 1, GIB)
    # The binding takes the first answer as the size of the list; the second one says that it grew since.
    fake.machine.gpus[0].errors["nvmlDeviceGetComputeRunningProcesses_v3"] = (NvmlCode.INSUFFICIENT_SIZE, 2)
    fake.machine.write()
    assert (await fake.open().sample())[0].processes == (GpuProcess(1, GIB, mps_client=False),)


async def test_a_gpu_that_lists_no_processes_is_no_trouble(fake: FakeNvmlDriver):
    fake.machine.gpus[0].errors = {
        f"nvmlDeviceGet{kind}RunningProcesses_v3": NvmlCode.NOT_SUPPORTED
        for kind in ("Compute", "MPSCompute", "Graphics")
    }
    fake.machine.write()
    reading = (await fake.open().sample())[0]
    assert (reading.processes, reading.trouble) == ((), None)


# --- whole processes ---


def test_a_daemon_finds_the_fake_library_by_the_loaders_path(library: Path, machine: FakeMachine):
    asked = _run("print([gpu.id for gpu in await NvmlGpus().survey()])", machine.environment(library))
    assert asked.stdout == "['GPU-fake-a', 'GPU-fake-b']\n"


def test_a_call_that_hangs_does_not_hold_up_the_exit_of_the_process(library: Path, machine: FakeMachine):
    machine.hang = "nvmlInitWithFlags"
    machine.write()
    body = """
    gpus = NvmlGpus(timeout_seconds=0.05)
    try:
        await gpus.survey()
    except TimedOut:
        await gpus.close()
        print("leaving")
    """
    assert _run(body, machine.environment(library)).stdout == "leaving\n"


def _run(body: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    program = "\n".join(
        [
            "import asyncio",
            "from gpushared.domain.model.errors import TimedOut",
            "from gpushared.gpus.nvml import NvmlGpus",
            "async def main():",
            textwrap.indent(textwrap.dedent(body), "    "),
            "asyncio.run(main())",
        ]
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )


async def test_where_the_driver_lists_no_mps_clients_nobody_is_said_to_be_without_mps(fake: FakeNvmlDriver):
    gpu = fake.machine.gpus[0]
    gpu.compute = {10: GIB}
    gpu.errors = {"nvmlDeviceGetMPSComputeRunningProcesses_v3": NvmlCode.NOT_SUPPORTED}
    fake.machine.write()
    assert (await fake.open().sample())[0].processes == (GpuProcess(10, GIB, mps_client=None),)


async def test_a_process_that_only_draws_is_neither_a_client_nor_without_mps(fake: FakeNvmlDriver):
    fake.machine.gpus[0].graphics = {10: GIB}
    fake.machine.write()
    assert (await fake.open().sample())[0].processes == (GpuProcess(10, GIB, mps_client=None),)


async def test_a_gpu_that_tells_of_no_errors_is_named_once_and_the_others_are_watched(
    fake: FakeNvmlDriver, caplog: pytest.LogCaptureFixture
):
    fake.machine.gpus[0].errors["nvmlDeviceGetSupportedEventTypes"] = NvmlCode.NOT_SUPPORTED
    fake.machine.gpus[1].errors["nvmlDeviceRegisterEvents"] = NvmlCode.NOT_SUPPORTED
    fake.machine.gpus.append(FakeGpu("GPU-fake-c"))
    fake.machine.write()
    gpus = fake.open()
    await gpus.sample()
    fake.machine.gpus[0].lost = True
    fake.err(2, 79)
    for _ in range(3):  # with a lost GPU, NVML is opened anew each time
        assert len(await gpus.sample()) == 3
    assert [message.count("GPU-fake-") for message in caplog.messages] == [1, 1]
    assert all("its health is not watched" in message for message in caplog.messages)


async def test_errors_of_programs_without_end_do_not_hold_up_a_sample(fake: FakeNvmlDriver):
    gpus = fake.open()
    await gpus.sample()
    fake.err(1, *[31] * 250)
    assert len((await gpus.sample())[1].xids) == 250


async def test_what_a_gpu_answers_by_mistake_does_not_make_it_lost(fake: FakeNvmlDriver):
    """Only the driver's own word that it is off the bus, or needs a reset, does."""
    gpus = fake.open()
    for code, lost in ((999, False), (10, False), (15, True), (16, True)):
        fake.machine.gpus[0].errors["nvmlDeviceGetMemoryInfo_v2"] = code
        fake.machine.write()
        assert (await gpus.sample())[0].lost is lost


async def test_a_gpu_that_the_driver_lists_no_more_is_lost(fake: FakeNvmlDriver):
    gpus = fake.open()
    await gpus.sample()
    fake.machine.gpus.pop()
    fake.machine.write()
    await gpus.sample()
    assert [reading.lost for reading in await gpus.sample()] == [False, True]
