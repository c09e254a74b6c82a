"""Every job of a coordinator is in its history once, with its wait in the queue, over restarts too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.daemon.troubles import Troubles
from gpushared.domain.accounting.summary import summary_of
from gpushared.domain.jobs.coordinator_events import AttemptReported, CancelAsked, JobSubmitted, PoolTick
from gpushared.domain.jobs.job import AttemptState, Ending, EndKind
from gpushared.domain.jobs.protocol import Place, Report
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.span import Span
from gpushared.jobs import job_recorder
from gpushared.jobs.job_recorder import JobRecorder
from gpushared.storage.history import SqliteHistory
from gpushared.storage.history.records import HistoryBatch, HistoryFilter, JobHistory, SourceName
from gpushared.testing import StoreWorld, fake_lease
from tests.pool.pools import ADA, NODE, Pool, coordinator, job_id, spec

BEGIN = 1_000_000.0


@asynccontextmanager
async def recorded(pool: Pool, folder: Path) -> AsyncIterator[JobRecorder]:
    history = SqliteHistory(folder / "history.db")
    recorder = JobRecorder(pool.loop, history, Troubles())
    yield recorder
    await recorder.close()
    await history.close()


async def kept(recorder: JobRecorder, **wanted: object) -> dict[str, JobHistory]:
    async with recorder._writing:
        await recorder._write()
    found = await recorder._history.jobs(HistoryFilter(**wanted), 100)  # type: ignore[arg-type]
    return {one.summary.job: one for one in found}


async def run_to_its_end(
    pool: Pool, place: Place, seconds: float, code: int = 0, *, silent_seconds: float = 0
) -> float:
    """Return when the job ended; the coordinator hears it ``silent_seconds`` later."""
    begun = pool.clock.now()
    started = Report(place.key, AttemptState.RUNNING, 1, lease=LeaseId("l-1"), started_at=begun)
    await pool.loop.send(AttemptReported(NODE, started))
    pool.clock.advance(seconds)
    ending = Ending(EndKind.EXITED, exit_code=code)
    ended_at = pool.clock.now()
    over = replace(started, state=AttemptState.ENDED, revision=2, ending=ending, ended_at=ended_at)
    pool.clock.advance(silent_seconds)
    await pool.loop.send(AttemptReported(NODE, over))
    return ended_at


async def test_a_job_waits_runs_and_ends(tmp_path: Path) -> None:
    async with coordinator() as pool, recorded(pool, tmp_path) as recorder:
        await pool.submit(1)
        pool.clock.advance(100)
        assert await kept(recorder) == {}
        (waits,) = (await kept(recorder, job=job_id(1))).values()
        assert (waits.summary.outcome, waits.waited_ms) == ("", 100_000)
        await pool.join()
        place = await pool.until_placed(1)
        placed_after = pool.clock.now() - BEGIN
        await run_to_its_end(pool, place, 60)
        (one,) = (await kept(recorder)).values()
        assert one.waited_ms == pytest.approx(placed_after * 1000, abs=200)
        assert (one.summary.outcome, one.summary.exit_code, one.summary.nodes) == ("succeeded", 0, "n1")
        assert (one.summary.owner, one.summary.attempts, one.summary.queued_since) == ("ada", 1, None)
        assert one.started_ms is not None
        assert one.ended_ms == one.started_ms + 60_000


async def test_the_wait_on_a_node_that_was_cut_off_counts_as_a_wait(tmp_path: Path) -> None:
    async with coordinator() as pool, recorded(pool, tmp_path) as recorder:
        await kept(recorder)
        await pool.join()
        pool.clock.advance(200)
        asked = JobSubmitted(job_id(1), spec(origin=NODE), held=True, kept_seconds=90.0)
        await pool.loop.send(asked)
        pool.clock.advance(10)
        (one,) = (await kept(recorder, job=job_id(1))).values()
        assert (one.submitted_ms, one.waited_ms) == (round((BEGIN + 110) * 1000), 100_000)
        assert one.summary.submitted_at == BEGIN + 110


async def test_a_job_whose_end_was_heard_late_ended_when_its_node_says_so(tmp_path: Path) -> None:
    """Its row stays as it is over a restart, which could not tell the waits of several attempts apart."""
    world = StoreWorld()
    async with coordinator(world) as pool, recorded(pool, tmp_path) as recorder:
        await kept(recorder)
        await pool.join()
        await pool.submit(1, retries=1)
        await run_to_its_end(pool, await pool.until_placed(1), 10, code=1)
        pool.told.clear()
        ended_at = await run_to_its_end(pool, await pool.until_placed(1), 10, silent_seconds=90)
        (one,) = (await kept(recorder)).values()
        assert one.ended_ms == round(ended_at * 1000)
    async with coordinator(world) as pool, recorded(pool, tmp_path) as recorder:
        assert (await kept(recorder)) == {job_id(1): one}


async def test_a_job_that_ended_while_the_history_was_away_is_read_from_the_store(tmp_path: Path) -> None:
    world = StoreWorld()
    async with coordinator(world) as pool, recorded(pool, tmp_path) as recorder:
        for number in (1, 2):
            await pool.submit(number, request_id=str(number))
        await kept(recorder)
    async with coordinator(world) as pool:
        await pool.loop.send(CancelAsked(job_id(1), ADA, 0))
        await pool.submit(3, request_id="3")
        await pool.loop.send(CancelAsked(job_id(3), ADA, 0))
    async with coordinator(world) as pool, recorded(pool, tmp_path) as recorder:
        found = await kept(recorder)
        assert {job: one.summary.outcome for job, one in found.items()} == {
            job_id(1): "cancelled",
            job_id(3): "cancelled",
        }
        assert (await kept(recorder, job=job_id(2)))[job_id(2)].summary.ended_at is None


async def test_a_history_that_was_removed_is_filled_from_the_store(tmp_path: Path) -> None:
    world = StoreWorld()
    async with coordinator(world) as pool:
        await pool.submit(1)
        pool.clock.advance(5)
        await pool.loop.send(CancelAsked(job_id(1), ADA, 0))
    async with coordinator(world) as pool, recorded(pool, tmp_path) as recorder:
        (one,) = (await kept(recorder)).values()
        assert (one.summary.outcome, one.waited_ms) == ("cancelled", 5000)


async def test_the_reasons_of_a_wait_are_told_over_a_restart(tmp_path: Path) -> None:
    world = StoreWorld()
    async with coordinator(world) as pool, recorded(pool, tmp_path) as recorder:
        await kept(recorder)
        await pool.loop.send(JobSubmitted(job_id(1), spec(), held=True))
        for _ in range(3):
            pool.clock.advance(10)
            await recorder._note_waits()
        assert (await kept(recorder, job=job_id(1)))[job_id(1)].reasons == {"held": 30_000}
    async with coordinator(world) as pool, recorded(pool, tmp_path) as recorder:
        pool.clock.advance(30)
        await kept(recorder)
        pool.clock.advance(40)
        await recorder._note_waits()
        (one,) = (await kept(recorder, job=job_id(1))).values()
        assert one.reasons == {"held": 100_000}
        assert one.waited_ms == 70_000


async def test_the_wait_of_a_job_is_its_own_and_that_of_its_leases(tmp_path: Path) -> None:
    """A request counts once, however many leases its attempts have."""
    async with coordinator() as pool, recorded(pool, tmp_path) as recorder:
        await pool.submit(1)
        pool.clock.advance(100)
        await pool.loop.send(PoolTick())
        await kept(recorder)
        end_ms = round(pool.clock.now() * 1000)
        lease = replace(
            summary_of(fake_lease(1)), lease=LeaseId("l-1"), job=job_id(1), created_at=BEGIN, owner="ada"
        )
        waited = Span(LeaseId("l-1"), "ada", end_ms - 7000, end_ms)
        await recorder._history.write(
            HistoryBatch(SourceName("n1", 1), end_ms, leases=(lease,), spans=((1, waited),))
        )
        (wait,) = await recorder._history.waits(HistoryFilter())
        assert (str(wait.lease), wait.node, wait.waited_ms, wait.waits_still) == (
            str(job_id(1)),
            "",
            107_000,
            True,
        )
        assert await recorder._history.waits(HistoryFilter(owner="bob")) == []


async def test_what_is_too_much_to_be_kept_in_memory_is_read_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_recorder, "MAX_UNWRITTEN", 2)
    async with coordinator() as pool, recorded(pool, tmp_path) as recorder:
        await kept(recorder)
        for number in range(1, 6):
            await pool.submit(number, request_id=str(number))
        await pool.loop.send(CancelAsked(job_id(1), ADA, 0))
        assert set(await kept(recorder)) == {job_id(1)}
        assert (await kept(recorder, job=job_id(5)))[job_id(5)].summary.ended_at is None
