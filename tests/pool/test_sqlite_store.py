"""What only the store in a file promises, and what it says when the file is not as it should be."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.domain.model.errors import ConfigError, TimedOut
from gpushared.ports.job_store import Conflict, Deposed, StoreUnavailable, Transaction
from gpushared.storage import job_store
from gpushared.storage.job_store import NODE_TEXTS, SqliteStore
from gpushared.storage.sqlite.file_calls import MAX_WAITING_CALLS
from tests.disks import fill

WRITER = Path(__file__).with_name("writer.py")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "pool.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(path, busy_seconds=0.05)
    yield made
    await made.close()


async def test_files_are_for_their_owner_only(store: SqliteStore, path: Path) -> None:
    await store.commit(Transaction(await store.lead(), {"a": b"1"}))
    modes = {file.name: file.stat().st_mode & 0o077 for file in path.parent.iterdir()}
    assert set(modes) >= {"pool.db", "pool.db-wal", "pool.db.lock"}
    assert set(modes.values()) == {0}


async def test_every_commit_is_synced_to_disk(store: SqliteStore) -> None:
    """No kill can show this: only a power cut loses what was not synced."""
    await store.load()
    pragmas = await store._call(
        lambda: [
            store._file._opened().execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous")
        ]
    )
    assert pragmas == ["wal", 2]


# --- killed --------------------------------------------------------------------------------------------


def kill_after(path: Path, told: int) -> int:
    """Let a writer run and kill it without warning after so many commits; the last that it told of."""
    with subprocess.Popen([sys.executable, WRITER, path], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(told)]
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.read().splitlines(keepends=True)
    return int([line for line in lines if line.endswith(b"\n")][-1])


async def check_whole(path: Path) -> int:
    """That the store is what some number of whole transactions leave; that number."""
    store = SqliteStore(path)
    try:
        contents = await store.load()
        numbers = {int(record.value) for record in contents.records.values()}
        assert len(numbers) <= 1
        last = max(numbers, default=0)
        assert [key for key in contents.records if key.startswith("own/")] == (
            [f"own/{last}"] if last else []
        )
        assert contents.revision == last
        return last
    finally:
        await store.close()


async def test_a_leader_killed_at_any_moment_loses_nothing_and_the_next_one_leads(path: Path) -> None:
    for _ in range(6):
        written = await asyncio.to_thread(kill_after, path, random.randint(1, 60))
        assert await check_whole(path) >= written > 0


async def test_a_log_cut_off_anywhere_is_read_as_whole_transactions(path: Path, tmp_path: Path) -> None:
    """A power cut leaves any part of what was not yet synced."""
    await asyncio.to_thread(kill_after, path, 30)
    image, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    found = []
    for size in [*sorted(random.sample(range(len(log)), 20)), len(log)]:
        twin = tmp_path / f"cut-{size}" / "pool.db"
        twin.parent.mkdir()
        twin.write_bytes(image)
        Path(f"{twin}-wal").write_bytes(log[:size])
        found.append(await check_whole(twin))
    assert found == sorted(found)
    assert found[-1] >= 30


# --- used twice ----------------------------------------------------------------------------------------


async def test_a_second_coordinator_is_told_who_leads(store: SqliteStore, path: Path) -> None:
    epoch = await store.lead()
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from gpushared.storage.job_store import SqliteStore\n"
        "asyncio.run(SqliteStore(Path(sys.argv[1])).lead())"
    )
    words = [sys.executable, "-c", program, str(path)]
    done = await asyncio.to_thread(lambda: subprocess.run(words, capture_output=True, text=True, check=False))
    assert done.returncode != 0
    assert f"another coordinator leads with {path} (process {os.getpid()})" in done.stderr
    assert "one store serves one coordinator" in done.stderr
    await store.commit(Transaction(epoch, {"a": b"1"}))


async def test_a_leader_whose_file_somebody_else_led_does_not_write(store: SqliteStore, path: Path) -> None:
    """As when the lock is worth nothing: on a network file system, or removed by hand."""
    epoch = await store.lead()
    Path(f"{path}.lock").unlink()
    other = SqliteStore(path)
    newer = await other.lead()
    with pytest.raises(Deposed, match=f"its epoch is {epoch}, the store's is {newer}"):
        await store.commit(Transaction(epoch, {"a": b"1"}))
    await other.commit(Transaction(newer, {"a": b"2"}))
    await other.close()


# --- not as it should be -------------------------------------------------------------------------------


async def made(path: Path) -> None:
    store = SqliteStore(path)
    await store.commit(Transaction(await store.lead(), {f"k/{n}": bytes(2000) for n in range(40)}))
    await store.close()


async def test_a_store_of_a_newer_version_is_left_alone(path: Path, store: SqliteStore) -> None:
    await made(path)
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {job_store.VERSION + 1}")
    db.close()
    with pytest.raises(ConfigError, match=f"has version {job_store.VERSION + 1}, this program knows up to"):
        await store.load()
    with pytest.raises(ConfigError) as raised:
        await store.lead()
    assert "install the newer gpushared" in raised.value.hint


async def test_a_database_of_another_program_is_left_alone(path: Path, store: SqliteStore) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    with pytest.raises(ConfigError, match="of another program"):
        await store.load()


async def test_a_damaged_file_is_found_when_it_is_opened(path: Path, store: SqliteStore) -> None:
    await made(path)
    image = bytearray(path.read_bytes())
    image[4096 * 4 : 4096 * 6] = random.Random(7).randbytes(4096 * 2)
    path.write_bytes(image)
    with pytest.raises(StoreUnavailable, match="is damaged") as raised:
        await store.load()
    assert "restore a copy" in raised.value.hint


async def test_a_file_that_vanished_does_not_come_back_empty(path: Path, store: SqliteStore) -> None:
    epoch = await store.lead()
    await store.commit(Transaction(epoch, {"a": b"1"}))
    moved = path.rename(path.with_suffix(".moved"))
    with pytest.raises(StoreUnavailable, match="was moved, replaced or deleted"):
        await store.commit(Transaction(epoch, {"a": b"2"}))
    assert not path.exists()
    moved.rename(path)
    await store.commit(Transaction(epoch, {"a": b"3"}))
    assert (await store.load()).records["a"].value == b"3"


async def test_changes_that_were_forgotten_send_their_followers_to_load_again(path: Path) -> None:
    store = SqliteStore(path, max_changes=3)
    epoch = await store.lead()
    revisions = [await store.commit(Transaction(epoch, {"a": b"%d" % n})) for n in range(6)]
    with pytest.raises(Conflict, match="load again"):
        await anext(store.watch("", revisions[1]))
    assert (await anext(store.watch("", revisions[2]))).revision == revisions[3]
    await store.close()


# --- slow ----------------------------------------------------------------------------------------------


async def test_a_commit_that_hangs_times_out_and_has_an_end_before_the_next_call(path: Path) -> None:
    store = SqliteStore(path, timeout_seconds=0.2, busy_seconds=30)
    epoch = await store.lead()
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(TimedOut, match="did not answer in"):
        await store.commit(Transaction(epoch, {"a": b"1"}))
    with pytest.raises(StoreUnavailable, match="busy with an earlier call"):
        await store.load()
    blocker.execute("ROLLBACK")
    blocker.close()
    patient = SqliteStore(path)
    assert (await patient.load()).revision in {0, 1}
    await patient.close()
    while True:
        try:
            contents = await store.load()
            break
        except StoreUnavailable:
            continue
    assert contents.records["a"].value == b"1"
    assert (await anext(store.watch("", 0))).value == b"1"
    await store.close()


async def test_more_calls_than_may_wait_are_refused_at_once(path: Path) -> None:
    store = SqliteStore(path, busy_seconds=30)
    epoch = await store.lead()
    await store.commit(Transaction(epoch, {"a": b"0"}))
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    calls = [
        asyncio.create_task(store.commit(Transaction(epoch, {"a": b"%d" % n})))
        for n in range(MAX_WAITING_CALLS + 10)
    ]
    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert "wait for the store" in str(done.pop().exception())
    blocker.execute("ROLLBACK")
    blocker.close()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, StoreUnavailable)]
    assert 0 < len(refused) <= 10
    assert sum(isinstance(answer, int) for answer in answers) == len(calls) - len(refused)
    await store.close()


# --- full ----------------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_until_there_is_space_again(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(400_000))
    path = small_disk / "pool.db"
    store = SqliteStore(path)
    epoch = await store.lead()
    kept = 0
    refusal: StoreUnavailable | None = None
    while refusal is None:
        try:
            await store.commit(Transaction(epoch, {f"k/{kept}": bytes(50_000)}))
            kept += 1
        except StoreUnavailable as error:
            refusal = error
    assert "disk is full" in refusal.message
    assert "goes on by itself" in refusal.hint
    assert await store.count("k/") == kept > 0
    ballast.unlink()
    await store.commit(Transaction(epoch, {f"k/{kept}": bytes(50_000)}))
    await store.close()
    again = SqliteStore(path)
    assert await again.count("k/") == kept + 1
    await again.close()


async def test_a_store_on_a_disk_that_is_full_at_the_start_is_read_and_goes_on_with_room(
    small_disk: Path,
) -> None:
    """SQLite needs room even to open it; whoever alone can lead leads meanwhile, and writes that later."""
    path = small_disk / "pool.db"
    before = SqliteStore(path)
    epoch = await before.lead()
    await before.commit(Transaction(epoch, {"a": b"1"}))
    await before.close()
    ballast = fill(small_disk)
    others, nodes = SqliteStore(path), SqliteStore(path, texts=NODE_TEXTS, leads_unwritten=True)
    with pytest.raises(StoreUnavailable, match=r"the store .* the disk is full") as refused:
        await others.lead()
    assert "the coordinator" in refused.value.hint
    await others.close()
    assert await nodes.lead() == epoch + 1
    assert (await nodes.load()).records["a"].value == b"1"
    with pytest.raises(StoreUnavailable, match=r"job store .* the disk is full") as refused:
        await nodes.commit(Transaction(epoch + 1, {"b": b"2"}))
    assert "the daemon" in refused.value.hint
    ballast.unlink()
    await nodes.commit(Transaction(epoch + 1, {"b": b"2"}))
    await nodes.close()
    again = SqliteStore(path)
    assert (await again.load()).records.keys() == {"a", "b"}
    assert await again.epoch() == epoch + 1
    await again.close()


async def test_a_store_of_an_older_version_is_read_though_a_full_disk_keeps_it_from_becoming_newer(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_disk / "pool.db"
    before = SqliteStore(path)
    await before.commit(Transaction(await before.lead(), {"a": b"1"}))
    await before.close()
    newer = (
        "CREATE TABLE more (key TEXT)",
        *(f"CREATE TABLE more_{number} (key TEXT)" for number in range(50)),
    )
    schema = replace(job_store.SCHEMA, migrations=(*job_store.SCHEMA.migrations, newer))
    monkeypatch.setattr(job_store, "SCHEMA", schema)
    ballast = fill(small_disk)
    store = SqliteStore(path)
    assert (await store.load()).records.keys() == {"a"}
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await store.lead()
    ballast.unlink()
    await store.commit(Transaction(await store.lead(), {"b": b"2"}))
    await store.close()
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (schema.version,)
        assert db.execute("SELECT count(*) FROM more").fetchone() == (0,)
    db.close()
