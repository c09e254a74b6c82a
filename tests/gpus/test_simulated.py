from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.gpu import MIB
from gpushared.gpus import simulated
from gpushared.gpus.simulated import SimulatedGpus
from gpushared.gpus.simulated_models import MODELS
from gpushared.ports import GpuProcess, GpuReading

GIB = 2**30


@pytest.fixture
async def gpus() -> AsyncIterator[SimulatedGpus]:
    made = SimulatedGpus.parse("h100:2,t4")
    yield made
    await made.close()


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs until its input ends."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


async def readings_of(gpus: SimulatedGpus) -> list[GpuReading]:
    """Return the readings without the energy, which time alone changes."""
    return [replace(one, energy_joules=None) for one in await gpus.sample()]


def _wait_for_zombie(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def _names(spec: str) -> list[str]:
    gpus = SimulatedGpus.parse(spec)
    names = [gpu.name for gpu in await gpus.survey()]
    await gpus.close()
    return names


@pytest.mark.parametrize(
    ("spec", "models"),
    [
        ("h100", ["h100"]),
        ("a100:3", ["a100"] * 3),
        ("rtx4090:64", ["rtx4090"] * 64),
        ("h100:2,t4", ["h100", "h100", "t4"]),
        (" H100:1 , T4 ", ["h100", "t4"]),
        ("t4,t4", ["t4", "t4"]),
    ],
)
async def test_a_spec_names_models_and_counts(spec: str, models: list[str]):
    assert await _names(spec) == [MODELS[model].name for model in models]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", "write MODEL"),
        (",", "write MODEL"),
        ("h100,", "write MODEL"),
        ("h100:", "write MODEL"),
        ("h100:0", "asks for 0"),
        ("h100:65", "asks for 65"),
        ("h100:40,t4:40", "80 simulated GPUs are too many"),
        ("h100:-1", "write MODEL"),
        ("h100:1.5", "write MODEL"),
        ("h100:²", "write MODEL"),
        ("h100:nan", "write MODEL"),
        ("2", "write MODEL"),
        ("h10", "did you mean 'h100'"),
        ("rtx4080:2", "did you mean 'rtx4090'"),
        ("zzz", "There are h100, a100, rtx4090, t4"),
        ("\uff48100", "write MODEL"),
        ("h100," * 2_000_000, "10000000 characters"),
    ],
    ids=lambda text: text[:20] or "nothing",
)
def test_a_spec_that_makes_no_sense_is_refused_with_a_hint(spec: str, says: str):
    with pytest.raises(RequestError) as refused:
        SimulatedGpus.parse(spec)
    assert says in str(refused.value)
    assert refused.value.hint
    assert len(str(refused.value)) < 200


async def test_a_gpu_keeps_its_id_when_others_are_added_beside_it():
    small, large = SimulatedGpus.parse("t4"), SimulatedGpus.parse("h100,t4,a100")
    (t4,), (_, same_t4, _) = await small.survey(), await large.survey()
    assert same_t4.id == t4.id
    await small.close()
    await large.close()


async def test_machines_have_gpus_of_their_own() -> None:
    """As real ones: a pool knows a GPU by its id alone."""
    one, other = SimulatedGpus.parse("t4", machine="ws1"), SimulatedGpus.parse("t4", machine="ws2")
    assert (await one.survey())[0].id != (await other.survey())[0].id
    await one.close()
    await other.close()


async def test_leasable_memory_is_the_models_less_driver_and_mps(gpus: SimulatedGpus):
    h100 = (await gpus.survey())[0]
    assert (h100.memory_total_bytes, h100.leasable_bytes) == (81559 * MIB, (81559 - 551 - 300) * MIB)


async def test_the_memory_of_a_process_that_ends_comes_back_even_before_its_parent_collects_it(
    gpus: SimulatedGpus, program: subprocess.Popen[bytes]
):
    gpus.set_processes(0, {program.pid: GIB})
    assert (await gpus.sample())[0].processes == (GpuProcess(program.pid, GIB),)
    program.kill()
    _wait_for_zombie(program.pid)
    reading = (await gpus.sample())[0]
    assert (reading.memory_used_bytes, reading.processes) == (0, ())


async def test_a_later_process_of_the_same_pid_holds_nothing(gpus: SimulatedGpus):
    gpus.set_processes(0, {1: GIB})
    gpu = gpus._gpus[0]
    gpus._change(replace(gpu, holders={1: replace(gpu.holders[1], started=gpu.holders[1].started + 1)}))
    assert (await gpus.sample())[0].processes == ()


async def test_setting_one_process_leaves_the_others(gpus: SimulatedGpus, program: subprocess.Popen[bytes]):
    gpus.set_processes(0, {1: GIB, program.pid: 2 * GIB})
    gpus.set_processes(0, {1: 0})
    assert (await gpus.sample())[0].processes == (GpuProcess(program.pid, 2 * GIB),)


async def test_a_busy_gpu_is_warm_and_draws_power(gpus: SimulatedGpus):
    gpus.set_utilization(1, 1.0)
    idle, busy, _ = await gpus.sample()
    assert (idle.temperature_celsius, idle.power_watts) == (30, 70.0)
    assert (busy.temperature_celsius, busy.power_watts) == (70, 700.0)


async def test_energy_is_power_over_time(gpus: SimulatedGpus, monkeypatch: pytest.MonkeyPatch):
    began = (await gpus.sample())[0].energy_joules or 0.0
    start = time.monotonic()
    monkeypatch.setattr(simulated, "time", SimpleNamespace(monotonic=lambda: start + 100))
    gpus.set_utilization(0, 1.0)
    monkeypatch.setattr(simulated, "time", SimpleNamespace(monotonic=lambda: start + 110))
    used = ((await gpus.sample())[0].energy_joules or 0.0) - began
    assert used == pytest.approx(100 * 70 + 10 * 700, abs=70)


async def test_an_empty_trouble_heals(gpus: SimulatedGpus):
    gpus.set_trouble(0, "The GPU is lost")
    gpus.set_trouble(0, "")
    assert (await gpus.survey())[0].trouble is None


async def test_a_hang_shorter_than_the_time_out_is_only_slow(gpus: SimulatedGpus):
    gpus.set_hang(0.01)
    assert len(await gpus.sample()) == 3


BAD_CHANGES: dict[str, Callable[[SimulatedGpus], None]] = {
    "no such GPU": lambda gpus: gpus.set_trouble(3, "lost"),
    "a negative index": lambda gpus: gpus.set_utilization(-1, 0.5),
    "no such process": lambda gpus: gpus.set_processes(0, {2**22 + 1: GIB}),
    "a negative process": lambda gpus: gpus.set_processes(0, {-1: GIB}),
    "negative memory": lambda gpus: gpus.set_processes(0, {1: -1}),
    "one byte more than the GPU has": lambda gpus: gpus.set_processes(0, {1: (81559 - 551) * MIB + 1}),
    "more than full": lambda gpus: gpus.set_utilization(0, 1.01),
    "no number": lambda gpus: gpus.set_utilization(0, float("nan")),
    "a negative hang": lambda gpus: gpus.set_hang(-1),
    "an endless hang": lambda gpus: gpus.set_hang(float("inf")),
}


@pytest.mark.parametrize("change", BAD_CHANGES.values(), ids=BAD_CHANGES)
async def test_a_change_that_no_gpu_could_make_is_refused_and_changes_nothing(
    gpus: SimulatedGpus, change: Callable[[SimulatedGpus], None]
):
    before = await readings_of(gpus)
    with pytest.raises(RequestError) as refused:
        change(gpus)
    assert refused.value.hint
    assert await readings_of(gpus) == before
