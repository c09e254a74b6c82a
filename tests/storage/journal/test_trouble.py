"""What is said and done when the journal's file is not as it should be."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpushared.domain.model.errors import ConfigError, JournalUnavailable, TimedOut
from gpushared.domain.model.lease import Ended, Finished, LeaseId
from gpushared.ports import JournalWrite
from gpushared.storage.journal import SqliteJournal, journal_file
from gpushared.storage.sqlite.file_calls import MAX_WAITING_CALLS
from gpushared.testing import fake_lease


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.db"


@pytest.fixture
async def journal(path: Path) -> AsyncIterator[SqliteJournal]:
    made = SqliteJournal(path, busy_seconds=0.05)
    yield made
    await made.close()


def one(sequence: int) -> list[JournalWrite]:
    return [JournalWrite((fake_lease(sequence),), (), sequence + 1)]


def run_python(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, path], check=False, capture_output=True, text=True)


async def test_the_file_is_for_its_owner_only(journal: SqliteJournal, path: Path) -> None:
    await journal.commit(one(1))
    assert [p.stat().st_mode & 0o077 for p in sorted(path.parent.iterdir())] == [0, 0]


async def test_every_commit_is_synced_to_disk(journal: SqliteJournal) -> None:
    """No kill can show this: only a power cut loses what was not synced."""
    await journal.load()
    pragmas = await journal._call(
        lambda: [
            journal._store._opened().execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "foreign_keys", "locking_mode")
        ]
    )
    assert pragmas == ["wal", 2, 1, "exclusive"]


async def test_a_second_daemon_on_the_same_journal_is_refused(journal: SqliteJournal, path: Path) -> None:
    await journal.commit(one(1))
    program = (
        "import asyncio, sys; from pathlib import Path; from gpushared.storage.journal import SqliteJournal\n"
        "asyncio.run(SqliteJournal(Path(sys.argv[1]), busy_seconds=0.05).load())"
    )
    output = (await asyncio.to_thread(run_python, program, path)).stderr
    assert "is in use by another process" in output
    assert "another gpushared" in output


async def test_a_journal_held_by_another_process_works_once_it_is_let_go(
    journal: SqliteJournal, path: Path
) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(JournalUnavailable, match="in use"):
        await journal.load()
    other.execute("ROLLBACK")
    other.close()
    await journal.commit(one(1))


async def test_a_call_that_hangs_is_given_up_while_the_loop_lives_on(path: Path) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    journal = SqliteJournal(path, busy_seconds=3600, timeout_seconds=0.5)
    await journal._call(lambda: None)  # the thread is up, so the next call begins at once
    hung, waiting = await asyncio.gather(
        journal.commit(one(1)), journal.commit(one(2)), return_exceptions=True
    )
    assert isinstance(hung, TimedOut)
    assert isinstance(waiting, JournalUnavailable)
    assert "dmesg" in waiting.hint
    other.execute("ROLLBACK")
    other.close()
    journal._timeout_seconds = 60
    snapshot = await journal.load()
    assert fake_lease(2) not in snapshot.leases  # refused for sure, unlike the first
    await journal.close()


async def test_more_calls_than_the_queue_holds_are_refused_at_once(path: Path) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    journal = SqliteJournal(path, busy_seconds=3600)
    calls = [asyncio.ensure_future(journal.commit(one(n))) for n in range(1, MAX_WAITING_CALLS + 3)]
    done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert {type(call.exception()) for call in done} == {JournalUnavailable}
    other.execute("ROLLBACK")
    other.close()
    await asyncio.gather(*waiting)
    assert len((await journal.load()).leases) == len(waiting)
    await journal.close()


async def test_a_cancelled_call_does_not_disturb_the_next(journal: SqliteJournal) -> None:
    call = asyncio.ensure_future(journal.commit(one(1)))
    await asyncio.sleep(0)
    call.cancel()
    await journal.commit(one(2))
    assert fake_lease(2) in (await journal.load()).leases


async def test_a_closed_journal_refuses_calls_but_may_be_closed_again(journal: SqliteJournal) -> None:
    await journal.commit(one(1))
    await journal.close()
    await journal.close()
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.commit(one(2))


async def test_closing_leaves_one_file_with_everything(journal: SqliteJournal, path: Path) -> None:
    await journal.commit(one(1))
    await journal.close()
    assert [p.name for p in path.parent.iterdir()] == ["journal.db"]


@pytest.mark.parametrize("vanish", [Path.unlink, lambda path: path.rename(path.with_name("moved.db"))])
async def test_a_journal_taken_away_is_not_silently_begun_anew(
    journal: SqliteJournal, path: Path, vanish: object
) -> None:
    await journal.commit(one(1))
    assert callable(vanish)
    vanish(path)
    for _ in range(2):
        with pytest.raises(JournalUnavailable, match="moved, replaced or deleted") as refusal:
            await journal.commit(one(2))
        assert "restart" in refusal.value.hint
    assert not path.exists()


@pytest.mark.parametrize("offset", [0, 5000], ids=["head", "middle"])
async def test_a_damaged_journal_is_refused_and_left_alone(path: Path, offset: int) -> None:
    first = SqliteJournal(path)
    await first.commit(one(1))
    await first.close()
    damaged = bytearray(path.read_bytes())
    damaged[offset : offset + 4096] = b"\xa5" * 4096
    path.write_bytes(damaged)
    journal = SqliteJournal(path)
    with pytest.raises(JournalUnavailable, match="is damaged") as refusal:
        await journal.load()
    assert "move it away" in refusal.value.hint
    await journal.close()
    assert path.read_bytes() == bytes(damaged)


async def test_a_lease_of_a_newer_version_stops_the_load_instead_of_being_forgotten(path: Path) -> None:
    first = SqliteJournal(path)
    await first.commit(one(1))
    await first.close()
    with sqlite3.connect(path) as other:
        other.execute("""UPDATE lease SET body = replace(body, '"queued"', '"hibernating"')""")
    other.close()
    journal = SqliteJournal(path)
    with pytest.raises(JournalUnavailable, match="hibernating") as refusal:
        await journal.load()
    assert "version that wrote it" in refusal.value.hint
    await journal.close()


async def test_a_journal_of_a_newer_version_is_refused_with_both_versions(path: Path) -> None:
    first = SqliteJournal(path)
    await first.load()
    await first.close()
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {journal_file.VERSION + 1}")
    other.close()
    journal = SqliteJournal(path)
    with pytest.raises(
        ConfigError,
        match=f"has version {journal_file.VERSION + 1}, this program knows up to {journal_file.VERSION}",
    ):
        await journal.load()
    await journal.close()


async def test_a_database_of_another_program_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE recipes (cake TEXT)")
    other.close()
    journal = SqliteJournal(path)
    with pytest.raises(ConfigError, match="another program"):
        await journal.load()
    await journal.close()


@pytest.mark.parametrize("name", ["journal.db", "with space?&#.db", "ünïcödé.db"])
async def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    journal = SqliteJournal(tmp_path / name)
    await journal.commit(one(1))
    await journal.close()
    assert [p.name for p in tmp_path.iterdir()] == [name]


async def test_a_folder_instead_of_a_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.db").mkdir()
    journal = SqliteJournal(tmp_path / "journal.db")
    with pytest.raises(JournalUnavailable, match="cannot be opened"):
        await journal.load()
    await journal.close()


READ_ONLY = """
import asyncio, os, sys
from pathlib import Path
from gpushared.domain.model.errors import JournalUnavailable
from gpushared.storage.journal import SqliteJournal
os.setuid(65534)
async def main():
    journal = SqliteJournal(path := Path(sys.argv[1]))
    try:
        await journal.load()
    except JournalUnavailable as error:
        print(error)
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write")
async def test_a_journal_that_may_not_be_written_is_refused(path: Path, tmp_path: Path) -> None:
    first = SqliteJournal(path)
    await first.load()
    await first.close()
    for folder in (path.parent, *path.parent.parents[:-2]):
        folder.chmod(0o755)
    path.chmod(0o444)
    refused = await asyncio.to_thread(run_python, READ_ONLY, path)
    assert "needs write access" in refused.stdout, refused.stderr


async def test_the_oldest_leases_and_their_stories_make_room_in_small_steps(path: Path) -> None:
    journal = SqliteJournal(path, keep_ended=50)
    for first in range(1, 601, 20):
        leases = tuple(
            fake_lease(n, Ended(Finished(0), at=float(n)), story=("over",)) for n in range(first, first + 20)
        )
        entries = tuple((lease.id, lease.story[0]) for lease in leases)
        await journal.commit([JournalWrite((fake_lease(10_000), *leases), entries, 10_001)])
        assert len(await journal.ended(10_000)) <= 50 + journal_file.PRUNE_EVERY
    kept = await journal.ended(10_000)
    assert [lease.sequence for lease in kept] == list(range(600, 600 - len(kept), -1))
    assert len(kept) >= 50
    assert await journal.story(fake_lease(1).id) == ()
    assert len((await journal.load()).leases) == 1
    await journal.close()


async def test_a_flood_of_reads_leaves_room_for_commits(tmp_path: Path) -> None:
    """Anybody may ask for leases; a grant must not fail for it."""
    journal = SqliteJournal(tmp_path / "journal.db")
    reads = [asyncio.create_task(journal.lease(LeaseId("l-none"))) for _ in range(4 * MAX_WAITING_CALLS)]
    try:
        await asyncio.sleep(0)
        await journal.commit([JournalWrite((), (), 7)])
        assert (await journal.load()).next_sequence == 7
        assert await asyncio.gather(*reads) == [None] * len(reads)
    finally:
        await journal.close()
