"""Every journal that was ever released must load: the files are checked in and never made again."""

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.lease import (
    Draining,
    Ended,
    Finished,
    LeaseId,
    MemoryWall,
    Requeued,
    Starting,
    Stopped,
    Suspended,
    state_name,
)
from gpushared.domain.model.request import LeaseClass
from gpushared.domain.scheduling.project_accounts import ProjectAccounts
from gpushared.storage.journal import SqliteJournal, journal_file
from tests.storage.journal.make_journal import (
    ACCOUNTS,
    ATTEMPTS,
    CONTACTS,
    DRAINED,
    GRANTS,
    NEWER_STATES,
    SPANS,
    full_lease,
)

JOURNALS = Path(__file__).with_name("journals")
VERSIONS = range(1, journal_file.VERSION + 1)


DRAINING, GIVING_WAY, JOBS, SPANNING = 2, 3, 4, 5
"""The versions with which these came."""


@pytest.fixture(params=VERSIONS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the journal of a version."""
    (tmp_path / "version").write_text(str(request.param))
    return Path(shutil.copy(JOURNALS / f"v{request.param}.db", tmp_path / "journal.db"))


def version_of(old: Path) -> int:
    return int(old.with_name("version").read_text())


async def test_the_open_leases_are_all_there(old: Path) -> None:
    journal = SqliteJournal(old)
    snapshot = await journal.load()
    assert [state_name(lease.state) for lease in snapshot.leases] == [
        *("queued", "reserved", "starting", "active", "paused", "draining"),
        *(("suspending", "suspended", "resuming", "requeued") if version_of(old) >= GIVING_WAY else ()),
    ]
    assert snapshot.next_sequence == 50
    await journal.close()


async def test_each_field_means_what_it_meant(old: Path) -> None:
    journal = SqliteJournal(old)
    _, _, starting, _, _, draining, *_ = (await journal.load()).leases
    await journal.close()
    assert isinstance(starting.state, Starting)
    assert (starting.state.deadline, starting.state.held) == (None, True)
    assert [(g.gpu, g.memory_bytes, g.compute_permille) for g in starting.grants] == [
        ("GPU-aaaa", 20_000 * MIB, 250),
        ("GPU-bbbb", 20_000 * MIB, 250),
    ]
    assert (starting.owner_uid, starting.owner_name, starting.device_name) == (1001, "alice", "c-3")
    assert (starting.request_id, starting.expires_at) == ("request-3", 9000.25)
    assert (starting.container_name, starting.image) == ("trainer", "registry/image:tag")
    assert starting.request.lease_class is LeaseClass.INFER
    assert (starting.request.gpu_count, starting.request.memory_bytes) == (2, 20_000 * MIB)
    assert starting.walls is not None
    assert starting.walls.memory_wall is MemoryWall.MPS_CLIENT
    assert isinstance(draining.state, Draining)
    assert draining.state.outcome == Stopped("bob")


async def test_gpus_are_drained_as_they_were(old: Path) -> None:
    """Before version 2 none could be."""
    journal = SqliteJournal(old)
    snapshot = await journal.load()
    await journal.close()
    assert snapshot.drained == (DRAINED if version_of(old) >= DRAINING else {})


async def test_leases_that_gave_way_are_as_they_were(old: Path) -> None:
    """Before version 3 none did. Up to version 4 their GPU-seconds were written, not their seconds."""
    if version_of(old) < GIVING_WAY:
        pytest.skip("of an older version")
    journal = SqliteJournal(old)
    suspending, suspended, _, requeued = (await journal.load()).leases[-4:]
    await journal.close()
    full = full_lease(suspending.sequence, NEWER_STATES[0])
    if version_of(old) < SPANNING:
        full = replace(full, preemption=replace(full.preemption, served_seconds=0.0))
    assert suspending == (full if version_of(old) >= JOBS else replace(full, attempt=None, coordinator=""))
    assert isinstance(suspended.state, Suspended)
    assert (suspended.state.held, suspended.state.left_seconds, suspended.state.wanted) == (
        GRANTS,
        59.5,
        True,
    )
    assert isinstance(requeued.state, Requeued)
    assert (requeued.state.place, requeued.project, requeued.preemption.count) == (4, "vision", 2)
    assert requeued.preemption.promised is not None
    assert requeued.preemption.promised.victims == ("l-4",)


async def test_projects_stand_as_they_did(old: Path) -> None:
    """What they used, their turns, and those that were set; before version 3 there were none."""
    journal = SqliteJournal(old)
    accounts = (await journal.load()).accounts
    await journal.close()
    assert accounts == (ACCOUNTS if version_of(old) >= GIVING_WAY else ProjectAccounts())


async def test_attempts_and_coordinators_are_as_they_were(old: Path) -> None:
    """Before version 4 there were none."""
    journal = SqliteJournal(old)
    snapshot = await journal.load()
    await journal.close()
    expected = (ATTEMPTS, CONTACTS) if version_of(old) >= JOBS else ((), {})
    assert (snapshot.attempts, snapshot.contacts) == expected


async def test_what_the_history_has_not_taken_is_there(old: Path) -> None:
    journal = SqliteJournal(old)
    spans = await journal.spans(100)
    await journal.close()
    assert [span for _, span in spans] == list(SPANS if version_of(old) >= SPANNING else ())


async def test_the_history_and_the_stories_are_there(old: Path) -> None:
    journal = SqliteJournal(old)
    over = await journal.ended(100)
    story = await journal.story(LeaseId("l-1"))
    await journal.close()
    assert [type(lease.state.outcome).__name__ for lease in over if isinstance(lease.state, Ended)] == [
        *(("Idle", "Preempted", "OutsideMps", "OverLimit") if version_of(old) >= GIVING_WAY else ()),
        *("Failed", "NeverClaimed", "Expired", "Stopped", "Finished"),
    ]
    assert isinstance(over[-1].state, Ended)
    assert over[-1].state.outcome == Finished(137)
    assert [entry.text for entry in story] == ["asked for 2x0.25", "is now as it is: ünïcödé"]


async def test_an_old_journal_is_of_the_current_version_afterwards(old: Path) -> None:
    for _ in range(2):
        journal = SqliteJournal(old)
        await journal.load()
        await journal.close()
    with sqlite3.connect(old) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
    db.close()
    assert version == journal_file.VERSION


def test_every_version_has_its_journal_checked_in() -> None:
    assert sorted(path.name for path in JOURNALS.iterdir()) == sorted(
        f"v{version}.db" for version in VERSIONS
    )
