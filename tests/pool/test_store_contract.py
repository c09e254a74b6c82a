"""What every store of a pool promises: the same cases for each backend.

A backend is added by one more ``Backend``; nothing here asks for more than etcd v3 can do.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushared.domain.model.errors import RequestError, Unavailable
from gpushared.ports.job_store import (
    MAX_OPERATIONS,
    MAX_RECORD_BYTES,
    Conflict,
    Deposed,
    JobStore,
    Leader,
    SharedStore,
    StoreChange,
    StoreUnavailable,
    Transaction,
)
from gpushared.storage.etcd.access import EtcdAccess
from gpushared.storage.etcd.store import EtcdStore
from gpushared.storage.job_store import SqliteStore
from gpushared.testing import MemoryStore, SharedMemoryStore, StoreWorld
from tests.bed.etcd import EtcdCluster

SECONDS = 10


@dataclass(frozen=True)
class Backend:
    """``open`` gives one more store on the same data, as another coordinator would have it."""

    open: Callable[[], JobStore]


def memory(_: Path) -> Backend:
    world = StoreWorld()
    return Backend(lambda: MemoryStore(world))


def shared_memory(_: Path) -> Backend:
    world = StoreWorld()
    return Backend(lambda: SharedMemoryStore(world))


def sqlite(folder: Path) -> Backend:
    return Backend(lambda: SqliteStore(folder / "pool.db"))


def etcd(cluster: EtcdCluster) -> Backend:
    access, prefix = EtcdAccess(cluster.endpoints), f"/gpushare/{secrets.token_hex(8)}/"
    return Backend(lambda: EtcdStore(access, prefix))


@pytest.fixture(params=["memory", "shared", "sqlite", "etcd"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    match request.param:
        case "memory":
            return memory(tmp_path)
        case "shared":
            return shared_memory(tmp_path)
        case "sqlite":
            return sqlite(tmp_path)
        case _:
            return etcd(request.getfixturevalue("etcd_member"))


@pytest.fixture
async def store(backend: Backend) -> AsyncIterator[JobStore]:
    made = backend.open()
    yield made
    await made.close()


class Writer:
    """Leads, and writes without further words."""

    def __init__(self, store: JobStore, epoch: int) -> None:
        self.store = store
        self.epoch = epoch

    async def put(self, **values: str) -> int:
        return await self.store.commit(Transaction(self.epoch, {k: v.encode() for k, v in values.items()}))

    async def delete(self, *keys: str) -> int:
        return await self.store.commit(Transaction(self.epoch, {}, deletes=keys))


@pytest.fixture
async def writer(store: JobStore) -> Writer:
    return Writer(store, await store.lead())


async def values(store: JobStore, prefix: str = "") -> dict[str, str]:
    return {key: record.value.decode() for key, record in (await store.load(prefix)).records.items()}


async def take(changes: AsyncIterator[StoreChange], count: int) -> list[StoreChange]:
    async with asyncio.timeout(SECONDS):
        return [await anext(changes) for _ in range(count)]


# --- records -------------------------------------------------------------------------------------------


async def test_a_new_store_is_empty(store: JobStore) -> None:
    contents = await store.load()
    assert dict(contents.records) == {}
    assert await store.count() == 0


async def test_what_was_written_is_loaded_with_the_revision_of_its_last_change(writer: Writer) -> None:
    first = await writer.put(a="1", b="1")
    second = await writer.put(b="2")
    contents = await writer.store.load()
    assert second > first
    assert contents.revision >= second
    assert {key: (record.value, record.revision) for key, record in contents.records.items()} == {
        "a": (b"1", first),
        "b": (b"2", second),
    }


async def test_what_was_deleted_is_gone_and_may_come_again(writer: Writer) -> None:
    await writer.put(a="1", b="1")
    gone = await writer.delete("a")
    assert await values(writer.store) == {"b": "1"}
    again = await writer.put(a="2")
    assert (await writer.store.load("a")).records["a"].revision == again > gone


async def test_deleting_what_is_not_there_changes_nothing(writer: Writer) -> None:
    before = await writer.put(a="1")
    assert await writer.delete("b") == before
    assert (await writer.store.load()).revision == before


async def test_any_bytes_are_kept(writer: Writer) -> None:
    value = bytes(range(256)) * 16
    await writer.store.commit(Transaction(writer.epoch, {"blob": value, "nothing": b""}))
    records = (await writer.store.load()).records
    assert (records["blob"].value, records["nothing"].value) == (value, b"")


async def test_only_keys_that_begin_so_are_loaded_and_counted(writer: Writer) -> None:
    await writer.put(**{"job/a": "1", "job/b": "2", "jobs": "3", "jo": "4", "job0": "5"})
    assert await values(writer.store, "job/") == {"job/a": "1", "job/b": "2"}
    assert await writer.store.count("job/") == 2
    assert await writer.store.count() == 5


@pytest.mark.parametrize(
    ("after", "reverse", "found"),
    [
        ("", False, ["k/1", "k/2"]),
        ("", True, ["k/4", "k/3"]),
        ("k/2", False, ["k/3", "k/4"]),
        ("k/3", True, ["k/2", "k/1"]),
        ("k/0", False, ["k/1", "k/2"]),
        ("k/4", False, []),
        ("k/1", True, []),
        ("k/25", True, ["k/2", "k/1"]),
    ],
)
async def test_pages_go_on_after_a_key_in_either_direction(
    writer: Writer, after: str, reverse: bool, found: list[str]
) -> None:
    await writer.put(**{f"k/{n}": str(n) for n in (3, 1, 4, 2)}, j="", l="")
    page = await writer.store.page("k/", 2, after=after, reverse=reverse)
    assert [key for key, _ in page] == found
    assert [record.value.decode() for _, record in page] == [key[2:] for key in found]


async def test_keys_are_in_the_order_of_their_code_points(writer: Writer) -> None:
    keys = ["k/Z", "k/a", "k/é", "k/中", "k/😀"]
    await writer.put(**dict.fromkeys(reversed(keys), ""))
    assert [key for key, _ in await writer.store.page("k/", 10)] == keys


# --- transactions --------------------------------------------------------------------------------------


async def test_a_transaction_has_one_revision(writer: Writer) -> None:
    await writer.put(old="1")
    revision = await writer.store.commit(
        Transaction(writer.epoch, {"a": b"1", "b": b"1"}, deletes=("old",), compares={"a": 0})
    )
    records = (await writer.store.load()).records
    assert {key: record.revision for key, record in records.items()} == {"a": revision, "b": revision}


async def test_a_transaction_whose_comparison_fails_changes_nothing(writer: Writer) -> None:
    was = await writer.put(a="1")
    for compares in ({"a": 0}, {"a": was + 1}, {"b": was}, {"a": was, "b": 1}):
        with pytest.raises(Conflict):
            await writer.store.commit(
                Transaction(writer.epoch, {"a": b"2", "c": b"2"}, deletes=("b",), compares=compares)
            )
    assert await values(writer.store) == {"a": "1"}
    assert (await writer.store.load()).revision == was


async def test_a_transaction_whose_comparisons_hold_is_written(writer: Writer) -> None:
    was = await writer.put(a="1", b="1")
    await writer.delete("b")
    await writer.store.commit(Transaction(writer.epoch, {"a": b"2"}, compares={"a": was, "b": 0}))
    assert await values(writer.store) == {"a": "2"}


async def test_as_many_operations_as_promised_are_taken_and_no_more(writer: Writer) -> None:
    puts = {f"k/{n}": b"x" for n in range(MAX_OPERATIONS - 2)}
    await writer.store.commit(Transaction(writer.epoch, puts, deletes=("a",), compares={"b": 0}))
    assert await writer.store.count("k/") == MAX_OPERATIONS - 2
    with pytest.raises(RequestError, match="too many"):
        await writer.store.commit(Transaction(writer.epoch, puts, deletes=("a", "c"), compares={"b": 0}))


@pytest.mark.parametrize(
    ("puts", "deletes"),
    [
        pytest.param({"big": bytes(MAX_RECORD_BYTES + 1)}, (), id="a large record"),
        pytest.param({f"k{n}": bytes(MAX_RECORD_BYTES) for n in range(5)}, (), id="large together"),
        pytest.param({"a": b""}, ("a",), id="put and deleted"),
        pytest.param({}, ("a", "a"), id="deleted twice"),
        pytest.param({"": b""}, (), id="no key"),
        pytest.param({"k" * 513: b""}, (), id="a long key"),
        pytest.param({}, ("\ud83d",), id="half a character"),
    ],
)
async def test_what_no_backend_has_to_take_is_refused_by_each(
    writer: Writer, puts: dict[str, bytes], deletes: tuple[str, ...]
) -> None:
    await writer.put(before="1")
    with pytest.raises(RequestError):
        await writer.store.commit(Transaction(writer.epoch, puts, deletes))
    assert await values(writer.store) == {"before": "1"}


async def test_the_largest_record_is_kept(writer: Writer) -> None:
    await writer.store.commit(Transaction(writer.epoch, {"big": bytes(MAX_RECORD_BYTES)}))
    assert len((await writer.store.load()).records["big"].value) == MAX_RECORD_BYTES


async def test_commits_that_are_under_way_together_all_happen(writer: Writer) -> None:
    revisions = await asyncio.gather(*(writer.put(**{f"k/{n}": "x"}) for n in range(50)))
    assert len(set(revisions)) == 50
    assert await writer.store.count("k/") == 50


# --- leadership ----------------------------------------------------------------------------------------


async def test_who_does_not_lead_cannot_write(store: JobStore) -> None:
    with pytest.raises(Deposed):
        await store.commit(Transaction(1, {"a": b"1"}))
    assert await values(store) == {}


async def test_each_epoch_is_higher_than_all_before(backend: Backend) -> None:
    epochs = []
    for _ in range(3):
        store = backend.open()
        epochs.append(await store.lead())
        epochs.append(await store.lead())
        await store.close()
    assert epochs == sorted(set(epochs))
    assert epochs[0] > 0


async def test_whoever_asks_is_told_the_highest_epoch_with_which_anybody_led(backend: Backend) -> None:
    """Without leading, which would make another one."""
    store = backend.open()
    assert await store.epoch() == 0
    led = await store.lead(above=7)
    assert (await store.epoch(), await store.epoch()) == (led, led)


async def test_an_epoch_may_be_asked_to_be_above_what_others_have_seen(backend: Backend) -> None:
    store = backend.open()
    high = await store.lead(above=1_000_000)
    assert high > 1_000_000
    assert await store.lead(above=5) > high
    await store.close()
    again = backend.open()
    assert await again.lead() > high
    await again.close()


async def test_a_second_one_does_not_lead_while_the_first_does(backend: Backend, writer: Writer) -> None:
    await writer.put(a="1")
    second = backend.open()
    with pytest.raises(Deposed, match="another coordinator leads"):
        await second.lead()
    with pytest.raises(Deposed):
        await second.commit(Transaction(writer.epoch, {"a": b"2"}))
    await writer.put(a="3")
    assert await values(second) == {"a": "3"}
    await writer.store.close()
    assert await second.lead() > writer.epoch
    assert await values(second) == {"a": "3"}
    await second.close()


async def test_what_belongs_to_an_earlier_epoch_is_not_written_any_more(writer: Writer) -> None:
    await writer.put(a="1")
    newer = Writer(writer.store, await writer.store.lead())
    with pytest.raises(Deposed):
        await writer.put(a="2")
    await newer.put(b="2")
    assert await values(writer.store) == {"a": "1", "b": "2"}


# --- following -----------------------------------------------------------------------------------------


async def test_who_follows_hears_of_each_change_in_order(writer: Writer) -> None:
    start = (await writer.store.load()).revision
    changes = writer.store.watch("job/", start)
    first = await writer.put(**{"job/a": "1", "other": "1"})
    second = await writer.put(**{"job/a": "2"})
    await writer.put(other="2")
    third = await writer.delete("job/a")
    assert await take(changes, 3) == [
        StoreChange("job/a", b"1", first),
        StoreChange("job/a", b"2", second),
        StoreChange("job/a", None, third),
    ]


async def test_who_follows_waits_for_what_comes(writer: Writer) -> None:
    revision = await writer.put(a="1")
    changes = writer.store.watch("", revision)
    waiting = asyncio.create_task(take(changes, 1))
    await asyncio.sleep(0)
    newer = await writer.put(a="2")
    assert await waiting == [StoreChange("a", b"2", newer)]


async def test_following_begins_after_any_revision_that_is_still_kept(writer: Writer) -> None:
    revisions = [await writer.put(a=str(n)) for n in range(5)]
    for skipped in range(5):
        changes = await take(writer.store.watch("", revisions[skipped]), 4 - skipped)
        assert [change.revision for change in changes] == revisions[skipped + 1 :]


async def test_changes_of_one_transaction_come_with_one_revision(writer: Writer) -> None:
    start = await writer.put(a="1")
    revision = await writer.store.commit(Transaction(writer.epoch, {"b": b"", "c": b""}, deletes=("a",)))
    changes = await take(writer.store.watch("", start), 3)
    assert sorted((change.key, change.revision) for change in changes) == [
        (key, revision) for key in ("a", "b", "c")
    ]


async def test_after_a_restart_changes_are_told_or_one_is_sent_to_load_again(
    backend: Backend, writer: Writer
) -> None:
    start = await writer.put(a="1")
    newer = await writer.put(a="2")
    await writer.store.close()
    again = backend.open()
    try:
        assert await take(again.watch("", start), 1) == [StoreChange("a", b"2", newer)]
    except Conflict:
        assert await values(again) == {"a": "2"}
    await again.close()


# --- the end -------------------------------------------------------------------------------------------


async def test_what_was_written_outlives_the_store(backend: Backend, writer: Writer) -> None:
    revision = await writer.put(a="1")
    await writer.store.close()
    again = backend.open()
    contents = await again.load()
    assert (contents.records["a"].value, contents.records["a"].revision) == (b"1", revision)
    epoch = await again.lead()
    assert await Writer(again, epoch).put(a="2") > revision
    await again.close()


async def test_a_closed_store_refuses_and_its_followers_end(writer: Writer) -> None:
    revision = await writer.put(a="1")
    waiting = asyncio.create_task(take(writer.store.watch("", revision), 1))
    await asyncio.sleep(0.01)
    await writer.store.close()
    await writer.store.close()
    with pytest.raises(Unavailable):
        await waiting
    for call in (writer.store.load(), writer.store.lead(), writer.put(a="2"), writer.store.count()):
        with pytest.raises(StoreUnavailable, match="closed"):
            await call


# --- several coordinators --------------------------------------------------------------------------------

Opens = Callable[[str], SharedStore]


@pytest.fixture(params=["memory", "etcd"])
async def opens(request: pytest.FixtureRequest) -> AsyncIterator[Opens]:
    """Gives one more store on the same data, as the coordinator of that name has it."""
    world, made = StoreWorld(), list[SharedStore]()
    access, prefix = None, f"/gpushare/{secrets.token_hex(8)}/"
    if request.param == "etcd":
        access = EtcdAccess(request.getfixturevalue("etcd_member").endpoints)

    def store(name: str) -> SharedStore:
        made.append(
            SharedMemoryStore(world, name=name) if access is None else EtcdStore(access, prefix, name=name)
        )
        return made[-1]

    yield store
    for one in made:
        await one.close()


async def test_all_know_who_leads_and_with_which_epoch(opens: Opens) -> None:
    first, second = opens("a"), opens("b")
    assert [await one.leader() for one in (first, second)] == [Leader("", 0)] * 2
    epoch = await first.lead()
    assert [await one.leader() for one in (first, second)] == [Leader("a", epoch)] * 2
    await first.close()
    assert await second.leader() == Leader("", epoch)


async def test_one_that_was_refused_may_lead_later(opens: Opens) -> None:
    first, second = opens("a"), opens("b")
    epoch = await first.lead()
    for _ in range(3):
        with pytest.raises(Deposed):
            await second.lead()
    await first.close()
    assert await second.lead() > epoch
    assert (await second.leader()).name == "b"


async def test_one_that_does_not_lead_hears_what_the_leader_writes(opens: Opens) -> None:
    first, second = opens("a"), opens("b")
    writer = Writer(first, await first.lead())
    start = await writer.put(a="1")
    changes = second.watch("", start)
    before = asyncio.get_running_loop().time()
    newer = await writer.put(a="2")
    gone = await writer.delete("a")
    assert await take(changes, 2) == [StoreChange("a", b"2", newer), StoreChange("a", None, gone)]
    assert before <= second.heard_at <= asyncio.get_running_loop().time()


async def test_who_follows_hears_of_the_next_leader_too(opens: Opens) -> None:
    first, second, third = opens("a"), opens("b"), opens("c")
    revision = await Writer(first, await first.lead()).put(a="1")
    changes = third.watch("", revision)
    await first.close()
    newer = await Writer(second, await second.lead()).put(a="2")
    assert await take(changes, 1) == [StoreChange("a", b"2", newer)]


async def test_coordinators_are_announced_as_long_as_they_live(opens: Opens) -> None:
    first, second = opens("a"), opens("b")
    assert dict(await first.announced()) == {}
    await first.announce("a", b"1")
    await second.announce("b", b"1")
    await second.announce("b", b"2")
    assert dict(await first.announced()) == {"a": b"1", "b": b"2"}
    await first.lead()
    await first.announce("a", b"1")
    assert dict(await second.announced()) == {"a": b"1", "b": b"2"}
    await first.close()
    assert dict(await second.announced()) == {"b": b"2"}


async def test_announcements_are_no_records(opens: Opens) -> None:
    first = opens("a")
    await first.announce("a", b"1")
    await first.lead()
    assert await values(first) == {}


async def test_a_shared_store_has_not_lost_anything_by_itself(opens: Opens) -> None:
    first = opens("a")
    await first.lead()
    assert await first.is_behind() is False


async def test_nobody_doubts_a_leader_whose_store_answers(opens: Opens) -> None:
    first, second = opens("a"), opens("b")
    assert (first.doubt_seconds(), second.doubt_seconds()) == (0.0, 0.0)
    await first.lead()
    assert (first.doubt_seconds(), second.doubt_seconds()) == (0.0, 0.0)


async def test_members_say_how_they_are(opens: Opens) -> None:
    members = await opens("a").health()
    assert [(one.problem, one.leads) for one in members] == [("", True)]
    assert all(one.endpoint and one.version for one in members)
