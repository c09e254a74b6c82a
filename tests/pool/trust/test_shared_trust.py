"""What one coordinator signs, revokes and replaces is known to the others of its pool, and only to them."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import ConfigError, NotFound, PermissionRefused, TimedOut
from gpushared.pool.trust import trust as trust_module
from gpushared.pool.trust.authority import Authority, key_pem, new_key
from gpushared.pool.trust.certificate_status import issued_line
from gpushared.pool.trust.certificates import (
    ASSERTION_KEY_OID,
    NodeCertificate,
    pem_of,
    read_node_certificate,
)
from gpushared.pool.trust.people import People
from gpushared.pool.trust.shared_trust import ANCHORS, KEY_FILE, LEDGER
from gpushared.pool.trust.trust import CA_FOLDER, PoolTrust
from gpushared.ports.job_store import Conflict, Contents, StoreUnavailable, Transaction
from gpushared.testing import SharedMemoryStore, StoreWorld

SECONDS = 10
POOL = "lab"


class Store(SharedMemoryStore):
    """A store whose next calls a test may hold up, or leave without an answer."""

    def __init__(self, world: StoreWorld, name: str) -> None:
        super().__init__(world, name=name)
        self.reads_slowly: asyncio.Event | None = None
        self.writes_slowly: asyncio.Event | None = None
        self.is_busy = asyncio.Event()
        self.loses_answers = 0

    async def load(self, prefix: str = "") -> Contents:
        found = await super().load(prefix)
        if self.reads_slowly is not None:
            self.is_busy.set()
            await self.reads_slowly.wait()
        return found

    async def commit(self, transaction: Transaction) -> int:
        if self.writes_slowly is not None:
            self.is_busy.set()
            await self.writes_slowly.wait()
        revision = await super().commit(transaction)
        if self.loses_answers:
            self.loses_answers -= 1
            raise TimedOut("etcd did not say if it has written")
        return revision


@dataclass
class Coordinator:
    """One machine of the pool: its folder, its store, its trust."""

    folder: Path
    store: Store
    trust: PoolTrust
    epoch: int = 0

    async def lead(self) -> None:
        self.epoch = await self.store.lead()
        await self.trust.begin(self.epoch)

    async def enrol(self, node: str) -> NodeCertificate:
        words, _ = await self.trust.join_tokens.make("root", time.time(), node=node)
        return (await self.trust.enrolment.enrol(node, csr(), words)).certificate

    async def expel(self, node: str) -> None:
        await self.trust.enrolment.expel(NodeName(node), "root")

    def check(self, certificate: NodeCertificate) -> None:
        self.trust.certificate_status.check(certificate, time.time())

    @property
    def anchors(self) -> bytes:
        return self.trust.authority.anchors_pem

    def anchors_in_folder(self) -> bytes:
        return Authority.load(self.folder / CA_FOLDER).anchors_pem


def csr() -> bytes:
    raw = (
        Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    )
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .add_extension(x509.UnrecognizedExtension(ASSERTION_KEY_OID, raw), critical=False)
        .sign(new_key(), hashes.SHA256())
    )
    return request.public_bytes(serialization.Encoding.PEM)


def coordinator(folder: Path, world: StoreWorld, name: str) -> Coordinator:
    made = Coordinator(folder, Store(world, name), None)  # type: ignore[arg-type]  # follows
    made.trust = PoolTrust(
        folder, made.store, epoch=lambda: made.epoch, people=People, now=time.time, is_shared=True
    )
    return made


@pytest.fixture
def world() -> StoreWorld:
    return StoreWorld()


@pytest.fixture
async def first(tmp_path: Path, world: StoreWorld) -> Coordinator:
    """It leads."""
    Authority.create(tmp_path / "a" / CA_FOLDER, POOL, time.time())
    made = coordinator(tmp_path / "a", world, "a")
    await made.lead()
    return made


@pytest.fixture
def second(first: Coordinator, tmp_path: Path, world: StoreWorld) -> Coordinator:
    """It has a copy of the folder, and stands by."""
    shutil.copytree(first.folder / CA_FOLDER, tmp_path / "b" / CA_FOLDER)
    return coordinator(tmp_path / "b", world, "b")


async def takes_over(first: Coordinator, second: Coordinator) -> None:
    await first.store.close()
    await second.lead()


# --- certificates ------------------------------------------------------------------------------------------


async def test_a_node_that_one_enrolled_is_known_to_the_other(
    first: Coordinator, second: Coordinator
) -> None:
    certificate = await first.enrol("ws1")
    assert second.trust.members() == {}
    assert not await second.trust.shared.load()  # type: ignore[union-attr]  # the anchors are as they were
    assert second.trust.members() == first.trust.members()
    second.check(certificate)


async def test_what_was_revoked_counts_nowhere(first: Coordinator, second: Coordinator) -> None:
    certificate = await first.enrol("ws1")
    await second.trust.load()
    await first.expel("ws1")
    second.check(certificate)
    await second.trust.load()
    with pytest.raises(PermissionRefused, match="was revoked"):
        second.check(certificate)
    await takes_over(first, second)
    assert second.trust.members() == {}
    again = await second.enrol("ws1")
    second.check(again)
    with pytest.raises(PermissionRefused, match="was revoked"):
        second.check(certificate)


async def test_the_next_leader_goes_on_with_the_lines(
    first: Coordinator, second: Coordinator, world: StoreWorld
) -> None:
    nodes = [f"ws{n}" for n in range(4)]
    for node in nodes[:2]:
        await first.enrol(node)
    await takes_over(first, second)
    for node in nodes[2:]:
        await second.enrol(node)
    assert sorted(second.trust.members()) == nodes
    assert sorted(key for key in world.records if key.startswith(LEDGER)) == [
        f"{LEDGER}{n:09d}" for n in range(4)
    ]


@asynccontextmanager
async def following(one: Coordinator) -> AsyncIterator[None]:
    """As a daemon does it that stands by."""
    async with one.trust.running():
        yield


@pytest.mark.parametrize("key", [f"{LEDGER}000000000", "token/api/x", ""], ids=["a line", "a token", "any"])
async def test_what_another_one_wrote_is_read_when_it_is_noticed(
    first: Coordinator, second: Coordinator, key: str
) -> None:
    async with following(second):
        certificate = await first.enrol("ws1")
        second.trust.note_change("job/j1")
        await asyncio.sleep(0)
        assert second.trust.members() == {}
        second.trust.note_change(key)
        await until(second.trust.members)
        second.check(certificate)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            if holds():
                return
            await asyncio.sleep(0.002)


# --- lines whose fate is in doubt --------------------------------------------------------------------------


async def test_a_line_whose_answer_was_lost_counts_once_it_was_found(first: Coordinator) -> None:
    certificate = await first.enrol("ws1")
    first.store.loses_answers = 1
    with pytest.raises(TimedOut):
        await first.expel("ws1")
    with pytest.raises(PermissionRefused, match="was revoked"):
        first.check(certificate)
    with pytest.raises(NotFound):
        await first.expel("ws1")
    await first.enrol("ws2")
    assert set(first.trust.members()) == {"ws2"}


async def test_a_line_that_could_not_be_written_does_not_count(
    first: Coordinator, second: Coordinator
) -> None:
    certificate = await first.enrol("ws1")
    first.store.fail_next(StoreUnavailable("etcd has no room left"))
    with pytest.raises(StoreUnavailable):
        await first.expel("ws1")
    first.check(certificate)
    await first.expel("ws1")
    await second.trust.load()
    assert second.trust.members() == {}


async def test_where_an_unknown_line_is_nothing_is_written_and_all_is_read(
    first: Coordinator, world: StoreWorld
) -> None:
    """A line of this leader arrived after it was given up."""
    await first.enrol("ws1")
    certificate = read_node_certificate(
        pem_of(first.trust.authority.sign_node(csr(), NodeName("ws9"), frozenset(), time.time()))
    )
    late = Transaction(first.epoch, {f"{LEDGER}000000001": line_of(certificate)})
    world.apply(late)
    with pytest.raises(Conflict):
        await first.expel("ws1")
    assert set(first.trust.members()) == {"ws1", "ws9"}
    await first.expel("ws1")
    assert set(first.trust.members()) == {"ws9"}


def line_of(certificate: NodeCertificate) -> bytes:
    return json.dumps(issued_line(certificate, time.time())).encode()


async def test_a_line_that_is_written_while_the_lines_are_read_is_not_forgotten(first: Coordinator) -> None:
    certificate = await first.enrol("ws1")
    first.store.reads_slowly = asyncio.Event()
    reading = asyncio.create_task(first.trust.shared.load())  # type: ignore[union-attr]
    await first.store.is_busy.wait()
    expelling = asyncio.create_task(first.expel("ws1"))
    for _ in range(10):
        await asyncio.sleep(0)
    first.store.reads_slowly.set()
    first.store.reads_slowly = None
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(reading, expelling)
    with pytest.raises(PermissionRefused, match="was revoked"):
        first.check(certificate)
    await first.enrol("ws2")


async def test_one_that_leads_does_not_read_what_it_writes(
    first: Coordinator, second: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that was revoked meanwhile would count again."""
    monkeypatch.setattr(trust_module, "FOLLOW_SECONDS", 0.0)
    async with following(second):
        token, record = await first.trust.api_tokens.make("root", time.time(), person="ada")
        second.trust.note_change("")
        await until(lambda: second.trust.api_tokens._tokens)
        second.store.reads_slowly = asyncio.Event()
        second.trust.note_change("token/api/x")
        await second.store.is_busy.wait()
        await first.trust.api_tokens.revoke(record.id, time.time())
        taking_over = asyncio.create_task(takes_over(first, second))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not taking_over.done()
        second.store.reads_slowly.set()
        await taking_over
        with pytest.raises(PermissionRefused, match="was revoked"):
            second.trust.api_tokens.recognise(token, time.time())
        second.store.is_busy.clear()
        second.trust.note_change("")
        for _ in range(10):
            await asyncio.sleep(0)
        assert not second.store.is_busy.is_set()


# --- the folder's own record -------------------------------------------------------------------------------


@pytest.fixture
async def old(tmp_path: Path, world: StoreWorld) -> Coordinator:
    """A coordinator with a record in a file, which does not lead yet: the store is new."""
    Authority.create(tmp_path / "old" / CA_FOLDER, POOL, time.time())
    made = coordinator(tmp_path / "old", world, "old")
    for number in range(300):
        certificate = read_node_certificate(
            pem_of(made.trust.authority.sign_node(csr(), NodeName(f"n{number}"), frozenset(), time.time()))
        )
        made.trust.ledger.issued(certificate, time.time())
        if number % 3 == 0:
            made.trust.ledger.revoke(NodeName(f"n{number}"), "root", time.time())
    return made


async def test_the_record_in_the_file_goes_into_the_store_and_to_all(
    old: Coordinator, tmp_path: Path, world: StoreWorld
) -> None:
    shutil.copytree(old.folder / CA_FOLDER, tmp_path / "new" / CA_FOLDER)
    (tmp_path / "new" / CA_FOLDER / "issued.jsonl").unlink()
    before = old.trust.members()
    await old.lead()
    assert old.trust.members() == before
    shutil.copy(old.folder / CA_FOLDER / KEY_FILE, tmp_path / "new" / CA_FOLDER)
    new = coordinator(tmp_path / "new", world, "new")
    await new.trust.load()
    assert new.trust.members() == before
    assert new.trust.ledger._revoked == old.trust.ledger._revoked != set()
    await old.enrol("later")
    await new.trust.load()
    assert "later" in new.trust.members()


@pytest.mark.parametrize("written", [1, 2, 3, 4])
async def test_a_record_that_went_only_partly_into_the_store_goes_there_again(
    old: Coordinator, tmp_path: Path, world: StoreWorld, written: int
) -> None:
    before, revoked = old.trust.members(), set(old.trust.ledger._revoked)
    shutil.copytree(old.folder / CA_FOLDER, tmp_path / "new" / CA_FOLDER)
    old.epoch, commits = await old.store.lead(), 0

    async def ends_midway(transaction: Transaction) -> int:
        nonlocal commits
        commits += 1
        if commits == written:
            old.store.depose()
        return await Store.commit(old.store, transaction)

    old.store.commit = ends_midway  # type: ignore[method-assign]
    with pytest.raises(Exception, match="does not lead any more"):
        await old.trust.begin(old.epoch)
    assert sum(key.startswith(LEDGER) for key in world.records) == min(126 * (written - 1), 400)
    new = coordinator(tmp_path / "new", world, "new")
    await new.trust.load()
    await new.lead()
    await new.trust.load()
    assert new.trust.members() == before
    assert new.trust.ledger._revoked == revoked


async def test_lines_that_another_one_left_behind_do_not_stay(old: Coordinator, world: StoreWorld) -> None:
    strange = {f"{LEDGER}{number:09d}": b"{}" for number in range(395, 500)}
    world.apply(Transaction(1, strange))
    before = old.trust.members()
    await old.lead()
    await old.trust.load()
    assert old.trust.members() == before
    assert sum(key.startswith(LEDGER) for key in world.records) == 400


# --- the anchors -------------------------------------------------------------------------------------------


async def test_a_replacement_of_the_authority_is_one_for_all(first: Coordinator, second: Coordinator) -> None:
    told: list[str] = []
    second.trust.anchors_changed = lambda: told.append("changed")
    await first.trust.begin_rotation()
    await second.trust.load()
    assert second.anchors == second.anchors_in_folder() == first.anchors
    assert (second.trust.authority.rotating, told) == (True, ["changed"])
    await second.trust.load()
    assert told == ["changed"]
    await takes_over(first, second)
    await second.trust.finish_rotation()
    assert not second.trust.authority.rotating
    assert second.anchors == second.anchors_in_folder()
    assert len(list((second.folder / CA_FOLDER).glob("anchor-*.key"))) == 1


async def test_a_finished_replacement_removes_the_old_key_everywhere(
    first: Coordinator, second: Coordinator
) -> None:
    certificate = await first.enrol("ws1")
    await first.trust.begin_rotation()
    await second.trust.load()
    second.check(certificate)
    await first.trust.enrolment.renew(csr(), certificate)
    await first.trust.finish_rotation()
    await second.trust.load()
    assert second.anchors == second.anchors_in_folder() == first.anchors
    assert [path.name for path in (second.folder / CA_FOLDER).glob("anchor-*.key")] == ["anchor-2.key"]
    with pytest.raises(PermissionRefused, match="an authority that this pool has replaced"):
        second.check(certificate)


@pytest.mark.parametrize("finishes", [False, True])
async def test_a_replacement_that_the_store_does_not_take_has_not_been_made(
    first: Coordinator, second: Coordinator, finishes: bool
) -> None:
    if finishes:
        await first.trust.begin_rotation()
    before = first.trust.authority.content()
    first.store.fail_next(StoreUnavailable("etcd has no room left"))
    with pytest.raises(StoreUnavailable):
        await (first.trust.finish_rotation() if finishes else first.trust.begin_rotation())
    assert first.trust.authority.content() == before
    assert Authority.load(first.folder / CA_FOLDER).content() == before
    await second.trust.load()
    assert second.trust.authority.content() == before
    await first.enrol("ws1")
    await (first.trust.finish_rotation() if finishes else first.trust.begin_rotation())
    assert first.trust.authority.rotating is not finishes


async def test_a_replacement_whose_caller_leaves_is_made_to_its_end(
    first: Coordinator, second: Coordinator
) -> None:
    told: list[str] = []
    first.trust.anchors_changed = lambda: told.append("changed")
    first.store.writes_slowly = asyncio.Event()
    asking = asyncio.create_task(first.trust.begin_rotation())
    await first.store.is_busy.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    first.store.writes_slowly.set()
    await until(lambda: told)
    await second.trust.load()
    assert second.anchors == first.anchors
    assert first.trust.authority.rotating


# --- the secret --------------------------------------------------------------------------------------------


async def test_no_key_is_in_the_store_in_clear(first: Coordinator, world: StoreWorld) -> None:
    await first.enrol("ws1")
    await first.trust.begin_rotation()
    keys = [anchor.key for anchor in first.trust.authority._anchors]
    secret = [one.private_numbers().private_value.to_bytes(32, "big") for one in keys]
    lines = [line for one in keys for line in key_pem(one).splitlines() if b"-----" not in line]
    written = [value for one in world.transactions for value in one.puts.values()]
    assert any(key == ANCHORS for one in world.transactions for key in one.puts)
    for needle in (b"PRIVATE", b"BEGIN", *secret, *lines, *map(base64.b64encode, secret)):
        assert not any(needle in value for value in written)
    sealed = [one.puts[ANCHORS] for one in world.transactions if ANCHORS in one.puts]
    assert len({value[:12] for value in sealed}) == len(sealed) > 1  # each is sealed anew


async def test_the_key_of_the_store_is_for_its_owner_alone(first: Coordinator) -> None:
    assert (first.folder / CA_FOLDER / KEY_FILE).stat().st_mode & 0o777 == 0o600


async def test_without_the_key_it_says_which_folder_to_copy(first: Coordinator, second: Coordinator) -> None:
    (second.folder / CA_FOLDER / KEY_FILE).unlink()
    with pytest.raises(ConfigError, match=r"its key .*/b/ca/store\.key is missing") as raised:
        await second.trust.load()
    assert "copy the folder" in raised.value.hint
    assert not (second.folder / CA_FOLDER / KEY_FILE).exists()


@pytest.mark.parametrize("key", [bytes(32), b"short", b""], ids=["another", "short", "empty"])
async def test_with_another_key_it_says_so(second: Coordinator, key: bytes) -> None:
    (second.folder / CA_FOLDER / KEY_FILE).write_bytes(key)
    before = second.anchors
    with pytest.raises(ConfigError, match="is not the key of the pool in the store") as raised:
        await second.trust.load()
    assert "copy the folder" in raised.value.hint
    assert second.anchors == second.anchors_in_folder() == before


@pytest.mark.parametrize("at", [0, 11, 12, 200, -1])
async def test_an_authority_that_was_changed_in_the_store_is_not_taken(
    second: Coordinator, world: StoreWorld, at: int
) -> None:
    sealed = bytearray(world.records[ANCHORS].value)
    sealed[at] ^= 1
    world.apply(Transaction(1, {ANCHORS: bytes(sealed)}))
    before = second.anchors
    with pytest.raises(ConfigError):
        await second.trust.load()
    assert second.anchors == before


async def test_the_authority_of_another_pool_is_not_taken(tmp_path: Path, world: StoreWorld) -> None:
    Authority.create(tmp_path / "a" / CA_FOLDER, "vision", time.time())
    other = coordinator(tmp_path / "a", world, "a")
    await other.lead()
    Authority.create(tmp_path / "b" / CA_FOLDER, POOL, time.time())
    shutil.copy(tmp_path / "a" / CA_FOLDER / KEY_FILE, tmp_path / "b" / CA_FOLDER)
    here = coordinator(tmp_path / "b", world, "b")
    with pytest.raises(ConfigError, match="is of the pool vision, and the one here of lab"):
        await here.trust.load()


async def test_a_line_that_cannot_be_read_changes_nothing(
    first: Coordinator, second: Coordinator, world: StoreWorld
) -> None:
    await first.enrol("ws1")
    await second.trust.load()
    world.apply(Transaction(1, {f"{LEDGER}000000001": b'{"what": "issued"}'}))
    with pytest.raises(ConfigError, match="a line of the pool's ledger cannot be read"):
        await second.trust.load()
    assert set(second.trust.members()) == {"ws1"}


async def test_an_older_authority_in_the_store_never_replaces_a_newer_one(
    first: Coordinator, second: Coordinator, world: StoreWorld
) -> None:
    """Whoever puts an old copy of the store back must not shut out nodes with newer certificates."""
    old = world.records[ANCHORS].value
    await first.trust.begin_rotation()
    await first.trust.finish_rotation()
    await second.trust.load()
    newest = second.anchors
    world.apply(Transaction(1, {ANCHORS: old}))
    await second.trust.load()
    assert second.anchors == second.anchors_in_folder() == newest
    await takes_over(first, second)
    assert second.anchors == second.anchors_in_folder() == newest
    assert world.records[ANCHORS].value != old


async def test_a_record_that_is_no_line_does_not_keep_a_revocation_away(
    first: Coordinator, second: Coordinator, world: StoreWorld
) -> None:
    certificate = await first.enrol("ws1")
    world.apply(Transaction(1, {f"{LEDGER}x": b"{}"}))
    await first.expel("ws1")
    await second.trust.load()
    with pytest.raises(PermissionRefused, match="was revoked"):
        second.check(certificate)
