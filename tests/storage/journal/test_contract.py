"""What every journal promises: the same cases for SQLite and for the fake in memory."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.job import AttemptState
from gpushared.domain.jobs.node_messages import Contact
from gpushared.domain.model.errors import JournalUnavailable
from gpushared.domain.model.gpu import Drained, GpuId
from gpushared.domain.model.lease import (
    STORY_KEPT_IN_MEMORY,
    Active,
    AttemptKey,
    ContainerId,
    Ended,
    Failed,
    Finished,
    Grant,
    JobId,
    Lease,
    LeaseId,
    NeverClaimed,
    Outcome,
    StoryEntry,
)
from gpushared.domain.model.span import Span
from gpushared.ports import Journal, JournalWrite, PastLeases
from gpushared.storage.journal import SqliteJournal, journal_file
from gpushared.testing import MemoryJournal, fake_lease

ACTIVE = Active((Grant(GpuId("GPU-1"), 1 << 30, 250),), ContainerId("c" * 64), since=5.0)


@pytest.fixture(params=["memory", "sqlite"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    made: Journal = MemoryJournal() if request.param == "memory" else SqliteJournal(tmp_path / "journal.db")
    yield made
    await made.close()


def write(*leases: Lease, next_sequence: int | None = None) -> JournalWrite:
    """The leases with all of their stories."""
    entries = tuple((lease.id, entry) for lease in leases for entry in lease.story)
    highest = max((lease.sequence for lease in leases), default=0)
    return JournalWrite(leases, entries, next_sequence or highest + 1)


def ended(sequence: int, at: float) -> Lease:
    return fake_lease(sequence, Ended(Finished(0), at))


async def test_a_new_journal_is_empty_and_counts_from_one(journal: Journal) -> None:
    snapshot = await journal.load()
    assert (snapshot.leases, snapshot.next_sequence) == ((), 1)


async def test_what_was_committed_is_loaded_in_the_order_of_the_requests(journal: Journal) -> None:
    second, first = fake_lease(2), fake_lease(1, ACTIVE)
    await journal.commit([write(second), write(first, next_sequence=7)])
    snapshot = await journal.load()
    assert (snapshot.leases, snapshot.next_sequence) == ((first, second), 7)


async def test_a_lease_is_as_it_was_last_committed(journal: Journal) -> None:
    await journal.commit([write(fake_lease(1))])
    await journal.commit([write(replace(fake_lease(1, ACTIVE), container_name="trainer"))])
    (lease,) = (await journal.load()).leases
    assert (lease.state, lease.container_name) == (ACTIVE, "trainer")


async def test_the_last_of_several_writes_in_one_commit_wins(journal: Journal) -> None:
    await journal.commit([write(fake_lease(1)), write(fake_lease(1, ACTIVE)), write(ended(1, at=9.0))])
    assert await journal.lease(LeaseId("l-1")) == ended(1, at=9.0)


async def test_leases_that_are_over_are_not_loaded_but_found(journal: Journal) -> None:
    await journal.commit([write(ended(1, at=9.0))])
    assert (await journal.load()).leases == ()
    assert await journal.lease(LeaseId("l-1")) == ended(1, at=9.0)


async def test_the_counter_outlives_the_leases(journal: Journal) -> None:
    await journal.commit([write(ended(41, at=9.0))])
    assert (await journal.load()).next_sequence == 42


async def test_gpus_stay_drained_until_a_write_says_otherwise(journal: Journal) -> None:
    drained = {
        GpuId("GPU-1"): Drained("fell off the bus (XID 79)", 4.5, "gpushared", sick=True),
        GpuId("GPU-2"): Drained("new fan", 5.0, "root"),
    }
    await journal.commit([JournalWrite((), (), 1, drained)])
    await journal.commit([write(fake_lease(1))])
    assert (await journal.load()).drained == drained
    left = {GpuId("GPU-2"): drained[GpuId("GPU-2")]}
    await journal.commit([JournalWrite((), (), 2, {}), JournalWrite((), (), 2, left), write(fake_lease(1))])
    assert (await journal.load()).drained == left


def attempt(number: int, state: AttemptState, at: float, coordinator: str = "") -> Attempt:
    return Attempt(AttemptKey(JobId("job"), number), state, revision=number, at=at, coordinator=coordinator)


async def test_an_attempt_is_as_it_was_last_committed_whoever_else_has_one_of_its_name(
    journal: Journal,
) -> None:
    first, other = attempt(1, AttemptState.PREPARING, 1.0), attempt(1, AttemptState.REFUSED, 2.0, "lab")
    now = attempt(1, AttemptState.RUNNING, 3.0)
    await journal.commit([JournalWrite((), (), 1, attempts=(first, other))])
    await journal.commit(
        [JournalWrite((), (), 1, attempts=(first,)), JournalWrite((), (), 1, attempts=(now,))]
    )
    assert (await journal.load()).attempts == (now, other)


async def test_only_final_records_of_attempts_are_forgotten(journal: Journal) -> None:
    old, new = attempt(1, AttemptState.ENDED, 5.0), attempt(2, AttemptState.REFUSED, 15.0)
    live = attempt(3, AttemptState.RUNNING, 1.0)
    await journal.commit([JournalWrite((), (), 1, attempts=(old, new, live))])
    await journal.commit([JournalWrite((), (), 1, forgotten_before=10.0)])
    assert (await journal.load()).attempts == (new, live)


async def test_what_is_known_of_a_coordinator_is_what_was_last_said_of_it(journal: Journal) -> None:
    lab, shop = Contact(epoch=1), Contact(epoch=7, revision=9, boot_id="b", at=12.5)
    await journal.commit([JournalWrite((), (), 1, contacts={"lab": lab, "shop": shop})])
    newer = replace(lab, epoch=2, at=1.0)
    await journal.commit([JournalWrite((), (), 1, contacts={"lab": newer})])
    assert (await journal.load()).contacts == {"lab": newer, "shop": shop}


async def test_an_unknown_lease_is_none_and_has_no_story(journal: Journal) -> None:
    for name in ("l-1", "", "half a pair \ud83d", "nul \0"):
        assert await journal.lease(LeaseId(name)) is None
        assert await journal.story(LeaseId(name)) == ()


async def test_ended_leases_come_newest_first_up_to_the_limit(journal: Journal) -> None:
    await journal.commit([write(ended(1, at=30.0), ended(2, at=10.0), ended(3, at=20.0), ended(4, at=20.0))])
    assert [lease.sequence for lease in await journal.ended(3)] == [1, 4, 3]


OVER = [
    replace(ended(number, at=float(number)), owner_name="ada" if number % 2 else "bob")
    for number in range(1, 8)
]
ENDINGS: dict[int, Outcome] = {1: Failed("x"), 2: NeverClaimed(), 7: Failed("x")}


@pytest.mark.parametrize(
    ("which", "found"),
    {
        "all": (PastLeases(), [7, 6, 5, 4, 3, 2, 1]),
        "since a time": (PastLeases(since=5.0), [7, 6, 5]),
        "of a user": (PastLeases(owner="ada"), [7, 5, 3, 1]),
        "of nobody": (PastLeases(owner="eve"), []),
        "of an odd name": (PastLeases(owner="\ud83d'"), []),
        "by outcome": (PastLeases(outcomes=frozenset({"failed", "never_claimed"})), [7, 2, 1]),
        "after a page": (PastLeases(before=(5.0, 5)), [4, 3, 2, 1]),
        "all of it": (PastLeases(2.0, "ada", frozenset({"failed"}), (9.0, 9)), [7]),
    }.values(),
)
@pytest.mark.parametrize("limit", [0, 2, 100])
async def test_past_leases_are_found_by_condition_and_the_others_counted(
    journal: Journal, which: PastLeases, found: list[int], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where many more have to be looked through than are looked at in one step."""
    monkeypatch.setattr(journal_file, "PAST_STEP", 2)
    over = [
        replace(one, state=Ended(ENDINGS.get(one.sequence, Finished(0)), float(one.sequence))) for one in OVER
    ]
    await journal.commit([write(fake_lease(8), *over)])
    leases, more = await journal.past(which, limit)
    assert [lease.sequence for lease in leases] == found[:limit]
    assert more == len(found) - len(leases)


@pytest.mark.parametrize(("limit", "found"), [(0, 0), (-1, 0), (1, 1), (1 << 80, 2)])
async def test_any_limit_is_taken(journal: Journal, limit: int, found: int) -> None:
    await journal.commit([write(ended(1, at=1.0), ended(2, at=2.0))])
    assert len(await journal.ended(limit)) == found


async def test_a_story_keeps_every_line_in_order_across_commits(journal: Journal) -> None:
    lines = tuple(f"line {number}" for number in range(STORY_KEPT_IN_MEMORY + 20))
    await journal.commit([write(fake_lease(1, story=lines[:90])), write(fake_lease(2, story=("another's",)))])
    await journal.commit([write(fake_lease(1, story=lines[90:]))])
    assert tuple(entry.text for entry in await journal.story(LeaseId("l-1"))) == lines


async def test_a_loaded_lease_carries_the_newest_part_of_its_story(journal: Journal) -> None:
    lines = tuple(f"line {number}" for number in range(STORY_KEPT_IN_MEMORY + 20))
    await journal.commit([write(fake_lease(1, story=lines))])
    (lease,) = (await journal.load()).leases
    assert tuple(entry.text for entry in lease.story) == lines[20:]
    assert await journal.lease(lease.id) == lease


@pytest.mark.parametrize("text", ["", "ünïcödé 🎈", "two\nlines", "nul \0 inside", "'; DROP TABLE lease; --"])
async def test_a_line_of_a_story_may_hold_any_text(journal: Journal, text: str) -> None:
    await journal.commit([write(fake_lease(1, story=(text,)))])
    assert [entry.text for entry in await journal.story(LeaseId("l-1"))] == [text]


async def test_half_a_surrogate_pair_in_a_story_does_no_harm(journal: Journal) -> None:
    await journal.commit([write(fake_lease(1, story=("half \ud83d",)))])
    assert len(await journal.story(LeaseId("l-1"))) == 1


async def test_a_lease_may_hold_half_a_surrogate_pair(journal: Journal) -> None:
    lease = replace(fake_lease(1), container_name="half \ud83d", request_id="🎈\0")
    await journal.commit([write(lease)])
    assert await journal.lease(lease.id) == lease


async def test_a_commit_of_nothing_changes_nothing(journal: Journal) -> None:
    await journal.commit([write(fake_lease(1))])
    await journal.commit([])
    assert len((await journal.load()).leases) == 1


REFUSED = {
    "a number that another lease has": [
        write(fake_lease(3)),
        write(replace(fake_lease(1), id=LeaseId("l-9"))),
    ],
    "a story of a lease that was never written": [
        write(fake_lease(3)),
        JournalWrite((), ((LeaseId("l-9"), StoryEntry(1.0, "queued", "who?")),), 9),
    ],
}


@pytest.mark.parametrize("writes", REFUSED.values(), ids=REFUSED.keys())
async def test_a_commit_that_is_refused_leaves_nothing_behind(
    journal: Journal, writes: list[JournalWrite]
) -> None:
    await journal.commit([write(fake_lease(1))])
    with pytest.raises(JournalUnavailable):
        await journal.commit(writes)
    snapshot = await journal.load()
    assert (snapshot.leases, snapshot.next_sequence) == ((fake_lease(1),), 2)


async def test_spans_stay_until_they_are_forgotten_and_their_numbers_are_used_once(journal: Journal) -> None:
    waited = Span(LeaseId("l-1"), "vision", 1000, 5000)
    held = Span(LeaseId("l-1"), "vision", 5000, 9000, GpuId("GPU-1"), 250, 1 << 30)
    await journal.commit([replace(write(fake_lease(1)), spans=(waited, held))])
    (first, found), (second, other) = await journal.spans(10)
    assert (found, other) == (waited, held)
    assert await journal.spans(1) == ((first, waited),)
    await journal.forget_spans(second)
    await journal.commit([replace(write(fake_lease(1)), spans=(held,))])
    ((third, found),) = await journal.spans(10)
    assert found == held
    assert first < second < third


async def test_a_journal_is_told_from_every_other(journal: Journal, tmp_path: Path) -> None:
    other = SqliteJournal(tmp_path / "other.db")
    assert await journal.identity() == await journal.identity() != await other.identity()
    await other.close()


async def test_an_older_copy_of_a_journal_is_a_journal_of_its_own(journal: Journal) -> None:
    await journal.commit([replace(write(fake_lease(1)), spans=(Span(LeaseId("l-1"), "vision", 1, 5),))])
    ((newest, _),) = await journal.spans(9)
    before = await journal.identity(newest)
    assert await journal.identity(newest + 7) != before
    assert await journal.identity(newest + 7) == await journal.identity()
