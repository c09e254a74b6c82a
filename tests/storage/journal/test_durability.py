"""No committed write is ever lost, and no half of one is ever seen."""

import asyncio
import random
import resource
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpushared.domain.model.errors import JournalUnavailable
from gpushared.domain.model.lease import LeaseId
from gpushared.ports import JournalWrite
from gpushared.storage.journal import SqliteJournal
from gpushared.testing import fake_lease

WRITER = Path(__file__).with_name("writer.py")
LINES_OF_EACH = 3
ENDLESS = 1_000_000


async def check_whole(path: Path) -> int:
    """Check that the journal is what some number of whole commits by the writer leave; return that number."""
    journal = SqliteJournal(path)
    try:
        snapshot = await journal.load()
        last = snapshot.next_sequence - 1
        assert [lease.sequence for lease in snapshot.leases] == ([last] if last else [])
        over = await journal.ended(ENDLESS)
        assert [lease.sequence for lease in over] == list(range(last - 1, 0, -1))
        for sequence in range(max(1, last - 3), last + 1):
            assert len(await journal.story(LeaseId(f"l-{sequence}"))) == LINES_OF_EACH
        return last
    finally:
        await journal.close()


def kill_after(path: Path, told: int) -> int:
    """Let a writer run, kill it without warning after it told of ``told`` commits; return the last told."""
    with subprocess.Popen([sys.executable, WRITER, path, str(ENDLESS)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(told):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split(b"\n")[:-1]  # what it told before it died, unfinished lines aside
    return int(rest[-1]) if rest else 0


async def test_a_writer_killed_at_any_moment_loses_nothing_it_was_told_is_safe(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    for _ in range(8):
        written = await asyncio.to_thread(kill_after, path, random.randint(1, 60))
        found = await check_whole(path)
        assert found >= written
        assert found > 0


async def test_a_log_cut_off_anywhere_is_read_as_whole_commits(tmp_path: Path) -> None:
    """A power cut leaves any part of what was not yet synced."""
    source = tmp_path / "source" / "journal.db"
    journal = SqliteJournal(source)
    write = runpy.run_path(str(WRITER), run_name="writer")["write"]
    for sequence in range(1, 31):
        await journal.commit([write(sequence)])
    image, log = source.read_bytes(), Path(f"{source}-wal").read_bytes()
    await journal.close()

    found = []
    for size in [*sorted(random.sample(range(len(log)), 25)), len(log)]:
        path = tmp_path / f"cut-{size}" / "journal.db"
        path.parent.mkdir()
        path.write_bytes(image)
        Path(f"{path}-wal").write_bytes(log[:size])
        found.append(await check_whole(path))
        shutil.rmtree(path.parent)
    assert found == sorted(found)
    assert found[-1] == 30


def big(sequence: int) -> JournalWrite:
    """A commit of some 50 KiB."""
    lease = fake_lease(sequence, story=("x" * 50_000,))
    return JournalWrite((lease,), ((lease.id, lease.story[0]),), sequence + 1)


async def fill(journal: SqliteJournal) -> tuple[int, JournalUnavailable]:
    """Commit until it is refused; how many were not, and the refusal."""
    for sequence in range(1, ENDLESS):
        try:
            await journal.commit([big(sequence)])
        except JournalUnavailable as error:
            return sequence - 1, error
    raise AssertionError("it never became full")


async def check_survives_full(journal: SqliteJournal, path: Path, kept: int) -> None:
    """With space again, the same journal goes on, and a new one finds exactly what was committed."""
    await journal.commit([big(kept + 1)])
    await journal.close()
    again = SqliteJournal(path)
    snapshot = await again.load()
    assert [lease.sequence for lease in snapshot.leases] == list(range(1, kept + 2))
    assert snapshot.next_sequence == kept + 2
    await again.close()


async def test_a_full_disk_refuses_commits_until_there_is_space_again(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(400_000))
    path = small_disk / "journal.db"
    journal = SqliteJournal(path)
    kept, error = await fill(journal)
    assert kept > 0
    assert "disk is full" in error.message
    assert "free some space" in error.hint
    with pytest.raises(JournalUnavailable):
        await journal.commit([big(kept + 1)])
    assert len((await journal.load()).leases) == kept
    ballast.unlink()
    await check_survives_full(journal, path, kept)


async def test_a_disk_that_is_full_from_the_start_is_no_journal_until_there_is_space(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(2_000_000))
    journal = SqliteJournal(small_disk / "journal.db")
    with pytest.raises(JournalUnavailable):
        await journal.load()
    ballast.unlink()
    await journal.commit([big(1)])
    assert len((await journal.load()).leases) == 1
    await journal.close()


LIMITED = """
import asyncio, resource, runpy, sys
from pathlib import Path
tests = runpy.run_path(sys.argv[1])
async def main():
    journal = tests["SqliteJournal"](path := Path(sys.argv[2]))
    await journal.load()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    kept, error = await tests["fill"](journal)
    assert kept > 0, kept
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await tests["check_survives_full"](journal, path, kept)
    print(kept, error)
asyncio.run(main())
"""


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_FSIZE)[1] != resource.RLIM_INFINITY,
    reason="files have a hard size limit here already",
)
def test_a_write_that_fails_midway_leaves_the_journal_usable(tmp_path: Path) -> None:
    """A limit of the file size makes write() fail with an I/O error, as a sick disk does."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, __file__, tmp_path / "journal.db"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be read or written" in done.stdout
