"""An old copy of a store in a file is noticed by a mark beside it, and the doubt outlives the process."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpushared.domain.model.errors import ConfigError, Unavailable
from gpushared.ports.job_store import StoreUnavailable, Transaction
from gpushared.storage import high_water, job_store
from gpushared.storage.high_water import HighWater, HighWaterMark, read_high_water, write_high_water
from gpushared.storage.job_store import SqliteStore

SECONDS = 10


class StoreFiles:
    """The file of a store, its mark elsewhere, and a copy."""

    def __init__(self, folder: Path) -> None:
        self.file, self.mark, self.copy = folder / "pool.db", folder / "mark.json", folder / "copy.db"

    @asynccontextmanager
    async def led(self, *, serves: bool = True) -> AsyncIterator[tuple[SqliteStore, int]]:
        """As a coordinator does it; it serves once it has stored what it doubts."""
        store = SqliteStore(self.file, mark=self.mark)
        serving = None
        try:
            epoch = await store.lead()
            if serves:
                serving = asyncio.create_task(store.lost())
                await asyncio.sleep(0)
            yield store, epoch
        finally:
            if serving is not None:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
            await store.close()

    async def write(self, *keys: str) -> int:
        """The epoch of a coordinator that wrote these, one after the other."""
        async with self.led() as (store, epoch):
            for key in keys:
                await store.commit(Transaction(epoch, {key: b""}))
            return epoch

    def keep_copy(self) -> None:
        shutil.copy(self.file, self.copy)

    def put_back(self) -> None:
        shutil.copy(self.copy, self.file)


@pytest.fixture
def files(tmp_path: Path) -> StoreFiles:
    return StoreFiles(tmp_path)


async def test_nobody_knows_without_a_mark(files: StoreFiles) -> None:
    async with files.led() as (store, _):
        assert await store.is_behind() is None
    async with unmarked(files.file) as (store, _):
        assert await store.is_behind() is None


async def test_a_store_that_went_on_is_not_behind(files: StoreFiles) -> None:
    await files.write("a", "b")
    for _ in range(3):
        async with files.led() as (store, _):
            assert await store.is_behind() is False
        await files.write("c")


async def test_an_old_copy_leads_above_every_epoch_that_nodes_have_seen(files: StoreFiles) -> None:
    await files.write("a")
    files.keep_copy()
    epochs = [await files.write("b") for _ in range(3)]
    files.put_back()
    async with files.led() as (store, epoch):
        assert await store.is_behind() is True
        assert epoch > max(epochs)


async def test_a_copy_of_the_same_epoch_is_noticed_by_its_revision(files: StoreFiles) -> None:
    async with files.led() as (store, epoch):
        await store.commit(Transaction(epoch, {"a": b""}))
        files.keep_copy()
        for suffix in ("-wal", "-shm"):
            if (beside := Path(f"{files.file}{suffix}")).exists():
                shutil.copy(beside, f"{files.copy}{suffix}")
        await store.commit(Transaction(epoch, {"b": b""}))
    for suffix in ("", "-wal", "-shm"):
        Path(f"{files.file}{suffix}").unlink(missing_ok=True)
        if (beside := Path(f"{files.copy}{suffix}")).exists():
            shutil.copy(beside, f"{files.file}{suffix}")
    assert read_high_water(files.mark).epoch == epoch
    async with files.led() as (store, _):
        assert dict((await store.load()).records).keys() == {"a"}
        assert await store.is_behind() is True


async def test_a_store_that_was_made_anew_is_behind_although_it_has_more_revisions(files: StoreFiles) -> None:
    await files.write("a")
    await files.write("b")
    files.file.unlink()
    async with unmarked(files.file) as (store, epoch):
        for key in "abcdefgh":
            await store.commit(Transaction(epoch, {key: b""}))
    async with files.led() as (store, _):
        assert await store.is_behind() is True


@asynccontextmanager
async def unmarked(path: Path) -> AsyncIterator[tuple[SqliteStore, int]]:
    """A store without a mark."""
    store = SqliteStore(path)
    try:
        yield store, await store.lead()
    finally:
        await store.close()


async def test_the_doubt_is_durable_before_the_epoch_rises(
    files: StoreFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    await files.write("a")
    files.keep_copy()
    await files.write("b")
    files.put_back()
    store = SqliteStore(files.file, mark=files.mark)
    before = await store.epoch()

    def full(_: int) -> int:
        assert read_high_water(files.mark).doubted
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(store._file, "lead", full)
        with pytest.raises(StoreUnavailable):
            await store.lead()
    assert await store.epoch() == before
    await store.close()
    assert read_high_water(files.mark).doubted


async def test_a_doubt_that_cannot_be_kept_keeps_it_from_leading(
    files: StoreFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    await files.write("a")
    files.keep_copy()
    await files.write("b")
    files.put_back()

    def full(_: Path, __: HighWater) -> None:
        raise Unavailable("the disk is full", hint="make room")

    store = SqliteStore(files.file, mark=files.mark)
    before = await store.epoch()
    with monkeypatch.context() as patch:
        patch.setattr(high_water, "write_high_water", full)
        with pytest.raises(Unavailable, match="the disk is full"):
            await store.lead()
    assert await store.epoch() == before
    await store.lead()
    assert await store.is_behind() is True
    await store.close()


async def test_the_doubt_lasts_until_the_coordinator_has_stored_it(files: StoreFiles) -> None:
    """Until then a coordinator that ends would leave an epoch that hides the loss."""
    await files.write("a")
    files.keep_copy()
    await files.write("b")
    files.put_back()
    for _ in range(3):
        async with files.led(serves=False) as (store, epoch):
            await store.commit(Transaction(epoch, {"c": b""}))
            assert await store.is_behind() is True
    async with files.led() as (store, epoch):
        assert await store.is_behind() is True
    assert read_high_water(files.mark) == HighWater(epoch, (await revision(files.file)), doubted=False)
    async with files.led() as (store, _):
        assert await store.is_behind() is False


async def revision(path: Path) -> int:
    store = SqliteStore(path)
    try:
        return (await store.load()).revision
    finally:
        await store.close()


async def test_a_new_epoch_of_the_same_process_changes_nothing_of_what_was_found(files: StoreFiles) -> None:
    await files.write("a", "b")
    async with files.led(serves=False) as (store, epoch):
        assert await store.lead(above=epoch + 5) > epoch + 5
        assert await store.is_behind() is False
    files.keep_copy()
    await files.write("c")
    files.put_back()
    async with files.led(serves=False) as (store, _):
        await store.lead()
        assert await store.is_behind() is True


async def test_a_mark_that_cannot_be_written_is_told_and_tried_again(
    files: StoreFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_store, "MARK_SECONDS", 0.001)
    tries, wrote = 0, asyncio.Event()
    home = asyncio.get_running_loop()

    def at_times_full(path: Path, mark: HighWater) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise Unavailable("the disk is full", hint="make room")
        write_high_water(path, mark)
        home.call_soon_threadsafe(wrote.set)

    monkeypatch.setattr(high_water, "write_high_water", at_times_full)
    async with files.led() as (_, epoch):
        async with asyncio.timeout(SECONDS):
            await wrote.wait()
        assert read_high_water(files.mark).epoch == epoch
    assert "the mark of the store is not kept: the disk is full" in caplog.text


async def test_the_mark_is_written_only_when_the_store_went_on(files: StoreFiles) -> None:
    mark = HighWaterMark(files.mark)
    await mark.keep(1, 7)
    files.mark.unlink()
    await mark.keep(1, 7)
    assert not files.mark.exists()
    await mark.keep(1, 8)
    assert read_high_water(files.mark) == HighWater(1, 8)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"epoch": "x", "revision": 1}', b"\xff"])
async def test_a_mark_that_cannot_be_read_stops_the_coordinator_and_says_what_helps(
    files: StoreFiles, content: bytes
) -> None:
    files.mark.write_bytes(content)
    store = SqliteStore(files.file, mark=files.mark)
    with pytest.raises(ConfigError, match=r"mark\.json cannot be read") as raised:
        await store.lead()
    assert "put it back, or remove it" in raised.value.hint
    assert await store.epoch() == 0
    await store.close()


async def test_a_mark_of_an_earlier_version_has_no_doubt(files: StoreFiles) -> None:
    files.mark.write_bytes(b'{"epoch": 3, "revision": 9}')
    assert read_high_water(files.mark) == HighWater(3, 9, doubted=False)
