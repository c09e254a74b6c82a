"""The recorder: what happens is in the history once, whatever happens to its file; leases never wait for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpushared.config.history_settings import HistoryConfig
from gpushared.domain.leases import events as m
from gpushared.domain.model.errors import HistoryUnavailable, JournalUnavailable
from gpushared.domain.model.lease import Lease
from gpushared.domain.model.request import Isolation, Request
from gpushared.node.runtime.history_recorder import HistoryRecorder
from gpushared.storage.history import SqliteHistory, history_writer
from gpushared.storage.history.records import HistoryFilter, LeaseHistory, SeriesName
from tests.disks import fill, small_disk
from tests.node.test_parts_together import ALICE, GPU, QUARTER, World, world

__all__ = ["small_disk"]
ALL = HistoryFilter()


@asynccontextmanager
async def a_node() -> AsyncIterator[World]:
    async with world() as node:
        await node.sampler.survey()
        yield node


@asynccontextmanager
async def recording(node: World, path: Path) -> AsyncIterator[HistoryRecorder]:
    """A recorder as a daemon that starts now would make it."""
    history = SqliteHistory(path)
    made = HistoryRecorder(
        node.loop, node.sampler, node.journal, history, node.troubles, "box", HistoryConfig
    )
    yield made
    node.loop.observers.clear()
    await history.close()


async def found(recorder: HistoryRecorder, lease: Lease) -> LeaseHistory:
    (one,) = await recorder._history.leases(HistoryFilter(lease=lease.id), 9)
    return one


async def end(node: World, lease: Lease) -> None:
    await node.loop.send(m.StopAsked(lease.id, ALICE, 0))


async def test_a_lease_is_in_the_history_with_what_it_held(tmp_path: Path) -> None:
    async with a_node() as node, recording(node, tmp_path / "h.db") as recorder:
        lease = await node.ask()
        node.clock.advance(3600)
        await recorder.flush()
        running = await found(recorder, lease)
        assert running.ended_ms is None
        assert running.account.gpu_hours == pytest.approx(0.25)
        await end(node, lease)
        await recorder.close()
        over = await found(recorder, lease)
        assert (over.summary.outcome, over.run_ms, over.waited_ms) == ("stopped", 3_600_000, 0)
        assert over.account == running.account


async def test_what_a_lease_uses_is_sampled(tmp_path: Path) -> None:
    async with a_node() as node, recording(node, tmp_path / "h.db") as recorder:
        lease = await node.hold()
        for _ in range(120):
            node.clock.advance(1)
            await node.sampler.sample_and_report()
            recorder._take_sample(node.sampler.newest)
        await recorder.close()
        points = await recorder._history.points(SeriesName("box", GPU.id, lease.id), 0, 2**60)
        assert sum(point.minute.seen_seconds for point in points) >= 60
        one = await found(recorder, lease)
        assert one.account.idle_permille_ms + one.account.active_permille_ms > 0


async def sampled(node: World, recorder: HistoryRecorder, seconds: int) -> None:
    for _ in range(seconds):
        node.clock.advance(1)
        await node.sampler.sample_and_report()
        recorder._take_sample(node.sampler.newest)


async def test_a_restart_before_a_full_hour_loses_nothing_of_the_hour(tmp_path: Path) -> None:
    async with a_node() as node:
        node.clock.advance(-node.clock.now() % 3600 + 3000)
        async with recording(node, tmp_path / "h.db") as recorder:
            lease = await node.hold()
            await sampled(node, recorder, 500)
            await recorder.close()
        async with recording(node, tmp_path / "h.db") as later:
            await sampled(node, later, 200)
            await later.flush()
            seen_ms = (await found(later, lease)).account.idle_permille_ms // 250
        assert seen_ms == pytest.approx(698_000, abs=1000)


async def test_a_lease_that_is_back_on_its_gpu_keeps_the_samples_of_before(tmp_path: Path) -> None:
    async with a_node() as node, recording(node, tmp_path / "h.db") as recorder:
        lease = await node.hold()
        await sampled(node, recorder, 100)
        for write in (False, True):
            recorder._gather_uses()
            if write:
                await recorder._write()
            recorder._series.clear()  # as when it leaves the GPU
            await sampled(node, recorder, 50)
        await recorder.close()
        seen_ms = (await found(recorder, lease)).account.idle_permille_ms // 250
        assert seen_ms == pytest.approx(199_000, abs=1000)


async def test_the_reasons_of_a_wait_are_counted_once_over_restarts(tmp_path: Path) -> None:
    async with a_node() as node:
        await node.ask(Request(isolation=Isolation.EXCLUSIVE))
        waiting = await node.ask()
        for _ in range(3):
            async with recording(node, tmp_path / "h.db") as recorder:
                for _ in range(30):
                    node.clock.advance(10)
                    recorder._take_waits()
                await recorder.close()
        async with recording(node, tmp_path / "h.db") as recorder:
            await recorder.flush()
            (wait,) = await recorder._history.waits(HistoryFilter(lease=waiting.id))
            assert sum(wait.reasons.values()) == wait.waited_ms == 900_000


async def test_an_older_copy_of_the_journal_overwrites_nothing(tmp_path: Path) -> None:
    async with a_node() as node:
        async with recording(node, tmp_path / "h.db") as recorder:
            for _ in range(3):
                lease = await node.ask()
                node.clock.advance(3600)
                await end(node, lease)
            await recorder.flush()
            before = await recorder._history.accounts(ALL)
        node.journal._span_count = 1  # as the copy has it
        async with recording(node, tmp_path / "h.db") as recorder:
            lease = await node.ask()
            node.clock.advance(3600)
            await end(node, lease)
            await recorder.flush()
            assert len(await recorder._history.accounts(ALL)) == len(before) + 1


async def test_a_crash_between_both_files_counts_nothing_twice(tmp_path: Path) -> None:
    async with a_node() as node, recording(node, tmp_path / "h.db") as recorder:
        lease = await node.ask()
        node.clock.advance(3600)
        await end(node, lease)
        forget, node.journal.forget_spans = node.journal.forget_spans, _cannot  # type: ignore[method-assign]
        with pytest.raises(JournalUnavailable):
            await recorder.flush()
        node.journal.forget_spans = forget  # type: ignore[method-assign]
        async with recording(node, tmp_path / "h.db") as after_the_crash:
            await after_the_crash.flush()
            one = await found(after_the_crash, lease)
            assert one.account.gpu_hours == pytest.approx(0.25)
        assert await node.journal.spans(9) == ()


async def _cannot(newest: int) -> None:
    raise JournalUnavailable(f"killed before it forgot {newest}")


async def test_a_lease_that_ended_unseen_is_found_after_a_restart(tmp_path: Path) -> None:
    async with a_node() as node:
        async with recording(node, tmp_path / "h.db") as recorder:
            first = await node.ask()
            await end(node, first)
            await recorder.flush()
        node.clock.advance(60)
        second = await node.ask()
        await end(node, second)
        async with recording(node, tmp_path / "h.db") as later:
            await later.flush()
            assert (await found(later, second)).summary.outcome == "stopped"
            assert len(await later._history.leases(ALL, 9)) == 2


async def test_leases_go_on_while_the_disk_of_the_history_is_full(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_writer, "FRESH_SECONDS", 0.0)
    async with a_node() as node, recording(node, small_disk / "h.db") as recorder:
        assert await recorder._try_to_write()
        ballast = fill(small_disk)
        leases = [await node.ask() for _ in range(3)]
        node.clock.advance(60)
        for lease in leases:
            await end(node, lease)
        for lease in [await node.ask() for _ in range(40)]:
            await end(node, lease)
        assert not await recorder._try_to_write()
        assert "the history is behind" in node.troubles.of("history")
        assert "disk is full" in node.troubles.of("history")
        ballast.unlink()
        assert await recorder._try_to_write()
        assert node.troubles.of("history") == ""
        assert len(await recorder._history.leases(ALL, 99)) == 43


async def test_a_damaged_history_is_said_in_one_sentence_and_a_new_one_begins_without_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "h.db"
    path.write_bytes(b"this is no database" * 1000)
    async with a_node() as node:
        async with recording(node, path) as recorder:
            assert not await recorder._try_to_write()
            troubles = node.troubles.of("history")
            assert "is damaged" in troubles
            assert "move it away" in troubles
            with pytest.raises(HistoryUnavailable):
                await recorder.flush()
        path.unlink()
        async with recording(node, path) as recorder:
            lease = await node.ask(QUARTER)
            await recorder.flush()
            assert (await found(recorder, lease)).summary.outcome == ""


async def test_times_follow_the_time_of_day_when_somebody_sets_it(tmp_path: Path) -> None:
    async with a_node() as node, recording(node, tmp_path / "h.db") as recorder:
        lease = await node.ask()
        await node.loop.send(m.DayTimeSet(7200.0))
        await recorder.flush()
        one = await found(recorder, lease)
        assert one.created_ms == round(lease.created_at * 1000) + 7_200_000


async def test_the_newest_samples_of_each_gpu_are_told_in_the_time_of_day(tmp_path: Path) -> None:
    async with a_node() as node, recording(node, tmp_path / "h.db") as recorder:
        await sampled(node, recorder, 60)
        now_ms = round(node.loop.state.day(node.clock.now()) * 1000)
        points = recorder.points(GPU.id, now_ms - 45_000)
        assert 4 <= len(points) <= 6
        assert all(now_ms - 60_000 <= point.at_ms <= now_ms for point in points)
        assert {point.length_ms for point in points} == {10_000}
        assert recorder.points("GPU-of-nobody", 0) == []
        assert GPU.id in {gpu.id for gpu in recorder.gpus()}
