"""What the rest of the daemon may rely on, whatever the GPUs are."""

from __future__ import annotations

import asyncio
import os

import psutil
import pytest

from gpushared.domain.model.errors import GpusUnavailable, TimedOut
from gpushared.domain.model.gpu import MIB
from gpushared.ports import GpuProcess
from tests.gpus.drivers import Driver, PlayableDriver, answers_again

GIB = 2**30

# --- on every machine ---


async def test_a_survey_lists_every_gpu_by_index_with_an_id_of_its_own(driver: Driver):
    gpus = await driver.open().survey()
    assert [gpu.index for gpu in gpus] == list(range(len(gpus)))
    assert len({gpu.id for gpu in gpus}) == len(gpus) > 0
    assert all(gpu.id.startswith("GPU-") and gpu.name for gpu in gpus)


async def test_leasable_memory_is_in_whole_mib_and_less_than_the_total(driver: Driver):
    for gpu in await driver.open().survey():
        assert gpu.leasable_bytes % MIB == 0
        assert 0 < gpu.leasable_bytes < gpu.memory_total_bytes


async def test_what_is_reserved_for_mps_is_not_leasable(driver: Driver):
    with_little = await driver.open(mps_reserve_bytes=100 * MIB).survey()
    with_much = await driver.open(mps_reserve_bytes=1100 * MIB).survey()
    less = [a.leasable_bytes - b.leasable_bytes for a, b in zip(with_little, with_much, strict=True)]
    assert less == [1000 * MIB] * len(with_little)


async def test_a_restarted_daemon_finds_the_same_gpus(driver: Driver):
    first = driver.open()
    before = await first.survey()
    await first.close()
    assert await driver.open().survey() == before


async def test_a_sample_has_one_reading_for_each_gpu_of_the_survey(driver: Driver):
    gpus = driver.open()
    assert [reading.gpu for reading in await gpus.sample()] == [gpu.id for gpu in await gpus.survey()]


async def test_readings_keep_to_their_units(driver: Driver):
    gpus = driver.open()
    for gpu, reading in zip(await gpus.survey(), await gpus.sample(), strict=True):
        assert reading.trouble is None
        assert 0 <= (reading.memory_used_bytes or 0) <= gpu.memory_total_bytes
        assert 0 <= (reading.utilization_ratio or 0) <= 1
        assert 0 < (reading.temperature_celsius or 1) < 120
        assert 0 <= (reading.power_watts or 0) < 2000
        assert (reading.energy_joules or 0) >= 0


async def test_processes_are_host_processes_each_listed_once(driver: Driver):
    for reading in await driver.open().sample():
        pids = [process.pid for process in reading.processes]
        assert len(set(pids)) == len(pids)
        assert all(map(psutil.pid_exists, pids))


async def test_calls_at_the_same_time_are_all_answered(driver: Driver):
    gpus = driver.open()
    surveys = await asyncio.gather(*(gpus.survey() for _ in range(8)))
    assert all(survey == surveys[0] for survey in surveys)


async def test_closing_twice_is_harmless_and_nothing_answers_afterwards(driver: Driver):
    gpus = driver.open()
    await gpus.survey()
    await gpus.close()
    await gpus.close()
    with pytest.raises(GpusUnavailable):
        await gpus.survey()


async def test_closing_what_was_never_used_is_harmless(driver: Driver):
    await driver.open().close()


# --- where the test plays the driver ---


async def test_a_process_shows_with_its_memory_until_it_lets_go(playable: PlayableDriver):
    gpus, pid = playable.open(), os.getpid()
    playable.hold(1, pid, 3 * GIB)
    idle, held = await gpus.sample()
    assert (idle.memory_used_bytes, idle.processes) == (0, ())
    assert held.memory_used_bytes == 3 * GIB
    assert [(process.pid, process.memory_bytes) for process in held.processes] == [(pid, 3 * GIB)]
    playable.hold(1, pid, 0)
    assert [(reading.memory_used_bytes, reading.processes) for reading in await gpus.sample()] == [
        (0, ())
    ] * 2


@pytest.mark.parametrize("mps_client", [True, False])
async def test_a_process_is_an_mps_client_where_the_driver_lists_it_so(
    playable: PlayableDriver, mps_client: bool
):
    gpus, pid = playable.open(), os.getpid()
    playable.hold(0, pid, GIB, mps_client=mps_client)
    assert (await gpus.sample())[0].processes == (GpuProcess(pid, GIB, mps_client),)


async def test_what_processes_hold_does_not_change_what_is_leasable(playable: PlayableDriver):
    gpus = playable.open()
    before = await gpus.survey()
    playable.hold(0, os.getpid(), GIB)
    assert await gpus.survey() == before


async def test_utilisation_is_a_ratio(playable: PlayableDriver):
    gpus = playable.open()
    playable.busy(0, 37)
    assert [reading.utilization_ratio for reading in await gpus.sample()] == [0.37, 0.0]


async def test_a_lost_gpu_keeps_its_place_and_does_not_spoil_the_other(playable: PlayableDriver):
    gpus = playable.open()
    before = await gpus.survey()
    playable.lose(0)
    lost, healthy = await gpus.survey()
    assert "lost" in (lost.trouble or "")
    assert (lost.id, lost.name, lost.leasable_bytes) == (
        before[0].id,
        before[0].name,
        before[0].leasable_bytes,
    )
    assert healthy == before[1]


async def test_an_error_is_told_once_with_the_gpu_that_met_it(playable: PlayableDriver):
    gpus = playable.open()
    assert [reading.xids for reading in await gpus.sample()] == [(), ()]
    playable.err(1, 31, 43)
    assert [reading.xids for reading in await gpus.sample()] == [(), (31, 43)]
    assert [reading.xids for reading in await gpus.sample()] == [(), ()]


async def test_a_gpu_that_falls_off_the_bus_is_lost_and_tells_why(playable: PlayableDriver):
    gpus = playable.open()
    assert [reading.lost for reading in await gpus.sample()] == [False, False]
    playable.err(0, 79)
    playable.lose(0)
    lost, healthy = await gpus.sample()
    assert (lost.lost, lost.xids) == (True, (79,))
    assert (healthy.lost, healthy.xids) == (False, ())


async def test_errors_told_to_a_look_that_came_too_late_are_told_by_the_next(playable: PlayableDriver):
    gpus = playable.open(timeout_seconds=0.2)
    await answers_again(gpus)
    playable.hang()
    playable.err(0, 48)
    with pytest.raises(TimedOut):
        await gpus.sample()
    playable.hang(hangs=False)
    assert (await answers_again(gpus))[0].xids == (48,)


async def test_a_reading_of_a_lost_gpu_has_trouble_and_no_figures(playable: PlayableDriver):
    gpus = playable.open()
    playable.lose(0)
    lost, healthy = await gpus.sample()
    assert "lost" in (lost.trouble or "")
    figures = (lost.memory_used_bytes, lost.utilization_ratio, lost.temperature_celsius, lost.power_watts)
    assert (figures, lost.processes) == ((None,) * 4, ())
    assert healthy.trouble is None
    assert healthy.memory_used_bytes == 0


async def test_a_gpu_that_comes_back_is_as_before(playable: PlayableDriver):
    gpus = playable.open()
    before = await gpus.survey()
    playable.lose(0)
    await gpus.survey()
    playable.lose(0, lost=False)
    assert await gpus.survey() == before


async def test_a_call_that_hangs_times_out_while_the_event_loop_runs_on(playable: PlayableDriver):
    gpus = playable.open(timeout_seconds=0.1)
    order: list[str] = []
    playable.hang()
    asyncio.get_running_loop().call_later(0.01, order.append, "something else")
    with pytest.raises(TimedOut, match="did not answer within"):
        await gpus.sample()
    assert order == ["something else"]


async def test_calls_after_one_that_hangs_are_refused_without_waiting(playable: PlayableDriver):
    gpus = playable.open(timeout_seconds=0.1)
    playable.hang()
    with pytest.raises(TimedOut):
        await gpus.survey()
    for call in (gpus.survey, gpus.sample):
        with pytest.raises(GpusUnavailable, match="hangs"):
            await call()


async def test_calls_are_served_again_once_the_one_that_hung_is_back(playable: PlayableDriver):
    gpus = playable.open(timeout_seconds=0.1)
    playable.hang()
    with pytest.raises(TimedOut):
        await gpus.survey()
    playable.hang(hangs=False)
    assert [reading.trouble for reading in await answers_again(gpus)] == [None, None]


async def test_closing_while_a_call_hangs_does_not_wait_for_it(playable: PlayableDriver):
    gpus = playable.open(timeout_seconds=0.1)
    playable.hang()
    with pytest.raises(TimedOut):
        await gpus.survey()
    await gpus.close()


async def test_more_callers_than_the_bound_are_refused_rather_than_queued(playable: PlayableDriver):
    gpus = playable.open(timeout_seconds=0.1)
    playable.hang()
    outcomes = await asyncio.gather(*(gpus.sample() for _ in range(40)), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, GpusUnavailable)]
    timed_out = [outcome for outcome in outcomes if isinstance(outcome, TimedOut)]
    assert len(refused) + len(timed_out) == 40
    assert 16 <= len(timed_out) <= 17
