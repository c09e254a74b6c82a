"""What a store in etcd does while etcd's members fail: real members, killed, stopped, full and replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import grpc
import pytest

from gpushared.api.etcd import rpc_pb2, rpc_pb2_grpc
from gpushared.domain.model.errors import GpushareError, TimedOut
from gpushared.ports.job_store import (
    MAX_OPERATIONS,
    MAX_RECORD_BYTES,
    MAX_TRANSACTION_BYTES,
    Conflict,
    Deposed,
    Leader,
    StoreChange,
    StoreUnavailable,
    Transaction,
)
from gpushared.storage.etcd.access import EtcdAccess
from gpushared.storage.etcd.keys import put
from gpushared.storage.etcd.store import EtcdStore
from tests.bed.etcd import EtcdCluster, EtcdMember
from tests.pool.etcd.wire import Wire
from tests.pool.etcd.writers import PREFIX, SECONDS, TTL_SECONDS, Writer, opened, values

LEASE_SECONDS = 10
"""The time of a lease as a coordinator has it."""

Cluster = Callable[..., EtcdCluster]


def access_first(cluster: EtcdCluster, first: EtcdMember) -> EtcdAccess:
    """The members, beginning with this one."""
    others = [one.endpoint for one in cluster.members if one is not first]
    return EtcdAccess((first.endpoint, *others))


def a_follower(cluster: EtcdCluster) -> EtcdMember:
    leader = cluster.leader()
    return next(one for one in cluster.members if one is not leader)


async def leads_still(store: EtcdStore, epoch: int) -> bool:
    """Long enough for a lease that nobody keeps alive to end."""
    with suppress(TimeoutError):
        async with asyncio.timeout(TTL_SECONDS + 1):
            await store.lost()
    return await store.epoch() == epoch


# --- members that fail ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [EtcdMember.kill, EtcdMember.freeze])
async def test_a_member_that_fails_is_left_for_another_with_the_lease_and_the_changes(
    etcd_cluster: Cluster, fails: Callable[[EtcdMember], None]
) -> None:
    """Calls, the leader's lease and followers go on elsewhere; no change is missed, none comes twice."""
    cluster = etcd_cluster(3)
    member = a_follower(cluster)
    async with opened(access_first(cluster, member)) as store:
        writer = Writer(store, await store.lead())
        start = await writer.put("k/0", "0")
        changes = store.watch("k/", start)
        following = asyncio.create_task(take(changes, 5))
        await writer.put("k/1", "1")
        fails(member)
        for number in range(2, 6):
            await writer.put_surely(f"k/{number}", str(number))
        assert await leads_still(store, writer.epoch)
        assert [change.key for change in await following] == [f"k/{number}" for number in range(1, 6)]


async def test_writes_go_on_when_etcds_leader_is_killed_and_comes_back(etcd_cluster: Cluster) -> None:
    cluster = etcd_cluster(3)
    leader = cluster.leader()
    async with opened(access_first(cluster, leader)) as store:
        writer = Writer(store, await store.lead())
        await writer.put("before", "1")
        leader.kill()
        await writer.put_surely("after", "2")
        leader.start()
        await writer.put_surely("again", "3")
        assert await values(store) == {"before": "1", "after": "2", "again": "3"}


async def until_refused(read: Callable[[], Awaitable[object]]) -> None:
    """Read until that fails: an answer that a member gave before it froze still counts."""
    while True:
        await read()


async def test_without_a_quorum_nothing_is_written_and_all_goes_on_afterwards(etcd_cluster: Cluster) -> None:
    """No call hangs, nobody is told that a write happened, and the leader still leads when etcd is back."""
    cluster = etcd_cluster(3)
    kept, *others = cluster.members
    async with opened(access_first(cluster, kept), call_seconds=1.5, ttl_seconds=LEASE_SECONDS) as store:
        writer = Writer(store, await store.lead())
        await writer.put("before", "1")
        for member in others:
            member.freeze()
        for call in (until_refused(store.load), until_refused(store.count), writer.put("lost", "1")):
            with pytest.raises((StoreUnavailable, TimedOut), match="etcd"):
                async with asyncio.timeout(SECONDS):
                    await call
        for member in others:
            member.thaw()
        await writer.put_surely("after", "2")
        assert (await values(store)).items() >= {"before": "1", "after": "2"}.items()


async def test_when_no_member_answers_the_error_says_so(etcd_cluster: Cluster) -> None:
    cluster = etcd_cluster(1)
    async with opened(EtcdAccess(cluster.endpoints), call_seconds=0.5) as store:
        writer = Writer(store, await store.lead())
        cluster.members[0].kill()
        for _ in range(2):  # the first may have been sent before the connection broke
            with pytest.raises((StoreUnavailable, TimedOut)):
                await writer.put("a", "1")
        with pytest.raises(StoreUnavailable, match=r"etcd does not serve: 127\..*cannot be reached"):
            await writer.put("a", "1")
        cluster.members[0].start()
        await writer.put_surely("a", "1")


async def test_a_member_that_was_silent_is_asked_over_a_new_connection(wire: Wire) -> None:
    """The present one may hear nothing for as long again after the network is well."""
    async with opened(EtcdAccess((wire.endpoint,)), "/silent/") as store:
        writer = Writer(store, await store.lead())
        await writer.put("a", "1")
        wire.silence()
        await writer.put_surely("b", "2")
        wire.silence()
        assert await values(store) == {"a": "1", "b": "2"}


# --- answers that are lost -----------------------------------------------------------------------------


@pytest.fixture
async def wire(etcd_member: EtcdCluster) -> AsyncIterator[Wire]:
    host, _, port = etcd_member.endpoints[0].partition(":")
    async with Wire(host, int(port)).open() as made:
        yield made


async def test_a_write_whose_answer_is_lost_is_unknown_and_a_new_epoch_finds_it(
    etcd_member: EtcdCluster, wire: Wire
) -> None:
    access = EtcdAccess((wire.endpoint, *etcd_member.endpoints))
    async with opened(access, "/lost-answer/", call_seconds=1) as store:
        epoch = await store.lead()
        wire.answers.clear()
        with pytest.raises(TimedOut, match="did not say if it has written"):
            await store.commit(Transaction(epoch, {"a": b"1"}))
        assert await store.lead(above=epoch) > epoch
        assert await values(store) == {"a": "1"}


async def test_a_write_that_arrives_after_a_new_epoch_is_not_written(
    etcd_member: EtcdCluster, wire: Wire
) -> None:
    access = EtcdAccess((wire.endpoint, *etcd_member.endpoints))
    async with opened(access, "/late/", call_seconds=1) as store:
        epoch = await store.lead()
        held = wire.held
        wire.requests.clear()
        with pytest.raises(TimedOut):
            await store.commit(Transaction(epoch, {"a": b"1"}))
        assert wire.held > held
        newer = await store.lead(above=epoch)
        wire.requests.set()
        await store.commit(Transaction(newer, {"b": b"2"}))
        await asyncio.sleep(0.2)  # the late one has long arrived; waiting longer would prove no more
        assert await values(store) == {"b": "2"}


# --- who leads -----------------------------------------------------------------------------------------


async def test_a_leader_whose_lease_has_ended_acts_no_more(etcd_member: EtcdCluster) -> None:
    """It is told so without a write of its own, and for good: another may have led meanwhile."""
    access = EtcdAccess(etcd_member.endpoints)
    async with opened(access, "/lease/") as first, opened(access, "/lease/") as second:
        writer = Writer(first, await first.lead())
        await writer.put("a", "1")
        (lease,) = [
            line.split()[0]
            for line in etcd_member.ctl("lease", "list").splitlines()
            if holds(etcd_member, line)
        ]
        etcd_member.ctl("lease", "revoke", lease)
        with pytest.raises(Deposed, match="its lease at etcd has ended"):
            async with asyncio.timeout(SECONDS):
                await first.lost()
        newer = Writer(second, await second.lead())
        await newer.put("a", "2")
        await second.close()
        for call in (first.lead(), writer.put("a", "3")):
            with pytest.raises(Deposed):
                await call
        assert await values(first) == {"a": "2"}


def holds(cluster: EtcdCluster, lease: str) -> bool:
    """The lease keeps the leader's key of this test alive."""
    words = lease.split()
    if len(words) != 1 or words[0] == "found":
        return False
    return "/lease/leader" in cluster.ctl("lease", "timetolive", words[0], "--keys")


async def test_a_leader_that_was_killed_is_followed_when_its_lease_ends(etcd_member: EtcdCluster) -> None:
    access = EtcdAccess(etcd_member.endpoints)
    async with opened(access, "/killed/") as first:
        epoch = await first.lead()
        for task in (first._leadership._keeping, first._leadership._looking):
            task.cancel()  # type: ignore[union-attr] # as a killed process keeps nothing
        async with opened(access, "/killed/", wait_seconds=SECONDS) as second:
            assert await second.lead() > epoch
            with pytest.raises(Deposed, match="another coordinator leads"):
                await first.commit(Transaction(epoch, {"a": b"1"}))


# --- etcd's own limits ---------------------------------------------------------------------------------


async def test_a_full_etcd_is_told_in_one_sentence_and_nothing_is_forgotten(etcd_cluster: Cluster) -> None:
    cluster = etcd_cluster(1, flags=[f"--quota-backend-bytes={4 * 1024 * 1024}"])
    async with opened(EtcdAccess(cluster.endpoints)) as store:
        writer = Writer(store, await store.lead())
        written: dict[str, str] = {}
        with pytest.raises(StoreUnavailable, match=r"etcd's database is full \(alarm NOSPACE\)"):
            await fill(writer, written)
        assert await values(store, "k/") == written
        assert await leads_still(store, writer.epoch)
        await store.commit(Transaction(writer.epoch, {}, deletes=tuple(written)))
        revision = (await store.load()).revision
        cluster.ctl("compact", str(revision))
        cluster.ctl("defrag")
        cluster.ctl("alarm", "disarm")
        await writer.put_surely("after", "1")
        assert await values(store) == {"after": "1"}


async def test_of_writes_that_fill_etcd_together_each_is_told_what_became_of_it(
    etcd_cluster: Cluster,
) -> None:
    """Etcd answers a write that goes over its quota with an error although it has written it."""
    cluster = etcd_cluster(1, flags=[f"--quota-backend-bytes={4 * 1024 * 1024}"])
    async with opened(EtcdAccess(cluster.endpoints)) as store:
        writer = Writer(store, await store.lead())
        acknowledged: set[str] = set()
        refused = 0
        async with asyncio.timeout(SECONDS):
            while not refused:
                keys = [f"k/{len(acknowledged) + number:03d}" for number in range(10)]
                puts = [writer.put(key, "x" * 100_000) for key in keys]
                done = await asyncio.gather(*puts, return_exceptions=True)
                acknowledged |= {key for key, one in zip(keys, done, strict=True) if isinstance(one, int)}
                refused = sum(isinstance(one, StoreUnavailable) for one in done)
                assert sum(isinstance(one, int) for one in done) + refused == len(keys)
        assert (await values(store, "k/")).keys() == acknowledged


CORRUPT_ALARM = b"\x08\x01\x18\x02"
"""An ``AlarmRequest`` that activates the alarm CORRUPT, which etcd raises when its members differ."""


async def test_an_etcd_that_has_found_itself_corrupt_writes_nothing_and_says_so(
    etcd_cluster: Cluster,
) -> None:
    cluster = etcd_cluster(1)
    async with opened(EtcdAccess(cluster.endpoints)) as store:
        writer = Writer(store, await store.lead())
        await writer.put("a", "1")
        async with grpc.aio.insecure_channel(cluster.endpoints[0]) as channel:
            alarm: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            alarm = channel.unary_unary("/etcdserverpb.Maintenance/Alarm")
            await alarm(CORRUPT_ALARM)
        with pytest.raises(StoreUnavailable, match="corrupt cluster"):
            await writer.put("a", "2")
        cluster.ctl("alarm", "disarm")
        await writer.put_surely("b", "3")
        assert await values(store) == {"a": "1", "b": "3"}


async def test_the_largest_transaction_that_the_port_allows_is_taken(etcd_member: EtcdCluster) -> None:
    async with opened(EtcdAccess(etcd_member.endpoints), "/large/") as store:
        epoch = await store.lead()
        large, rest = MAX_TRANSACTION_BYTES // MAX_RECORD_BYTES, MAX_OPERATIONS
        puts = {f"{number:0512d}": bytes(MAX_RECORD_BYTES) for number in range(large)}
        puts |= {f"{number:0512d}": b"" for number in range(large, rest - 1)}
        await store.commit(Transaction(epoch, puts, compares={"x" * 512: 0}))
        assert await store.count() == rest - 1
        assert len((await store.load()).records) == rest - 1


async def test_large_records_are_read_in_parts_and_backwards(etcd_member: EtcdCluster) -> None:
    async with opened(EtcdAccess(etcd_member.endpoints), "/parts/") as store:
        epoch = await store.lead()
        keys = [f"k/{number:04d}" for number in range(160)]
        for at in range(0, 160, 4):
            await store.commit(Transaction(epoch, dict.fromkeys(keys[at : at + 4], bytes(MAX_RECORD_BYTES))))
        await store.commit(Transaction(epoch, {"k": b"", "l/": b""}))
        assert sorted((await store.load("k/")).records) == keys
        assert [key for key, _ in await store.page("k/", 150, reverse=True)] == keys[:9:-1]


async def test_pages_from_the_end_are_right_in_large_ranges(etcd_member: EtcdCluster) -> None:
    """They are found by halving the range, which must not leave out a key."""
    async with opened(EtcdAccess(etcd_member.endpoints), "/halves/") as store:
        epoch = await store.lead()
        keys = sorted(f"over/{number * number:017d}-j-{number:x}" for number in range(3000))
        for at in range(0, 3000, 125):
            await store.commit(Transaction(epoch, dict.fromkeys(keys[at : at + 125], b"")))
        found: list[str] = []
        while page := await store.page("over/", 70, after=found[-1] if found else "", reverse=True):
            found += [key for key, _ in page]
        assert found == keys[::-1]


async def test_whoever_follows_from_a_compacted_revision_is_sent_to_load_again(etcd_cluster: Cluster) -> None:
    cluster = etcd_cluster(1)
    async with opened(EtcdAccess(cluster.endpoints)) as store:
        writer = Writer(store, await store.lead())
        start = await writer.put("a", "1")
        newest = start
        for number in range(5):
            newest = await writer.put("a", str(number))
        cluster.ctl("compact", str(newest))
        with pytest.raises(Conflict, match="load again"):
            await take(store.watch("", start), 1)
        loaded = await store.load()
        changes = store.watch("", loaded.revision)
        again = await writer.put("a", "new")
        assert await take(changes, 1) == [StoreChange("a", b"new", again)]


# --- what may be used ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("3.5.0", "may lose data"),
        ("3.5.2", "may lose data"),
        ("3.3.27", "needs 3.4 or later"),
        ("odd", "needs 3.4 or later"),
    ],
)
async def test_versions_of_etcd_that_must_not_keep_a_pool_are_refused(version: str, told: str) -> None:
    class Old(rpc_pb2_grpc.MaintenanceServicer):
        async def Status(self, _: rpc_pb2.StatusRequest, __: object) -> rpc_pb2.StatusResponse:  # noqa: N802
            return rpc_pb2.StatusResponse(version=version, leader=1)

    server = grpc.aio.server()
    rpc_pb2_grpc.add_MaintenanceServicer_to_server(Old(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with opened(EtcdAccess((f"127.0.0.1:{port}",)), call_seconds=0.3) as store:
            with pytest.raises(StoreUnavailable, match=f"version {version}.*{told}"):
                await store.lead()
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("format", '{"version": 2, "offset": 0}', "version 2, this program knows up to 1"),
        ("format", '{"version": 1, "offset": 0, "filling": true}', "is not complete"),
        ("format", '{"version": 1, "offset": 0, "moved_to": "sqlite:/p"}', "has moved to sqlite:/p"),
        (
            "format",
            '{"version": 1, "offset": 0, "moved_to": "sqlite:", "moved_host": "h1"}',
            "has moved to a file on h1; only the coordinator there",
        ),
        ("format", "what", "is damaged"),
        ("epoch", "what", "is damaged"),
    ],
)
async def test_a_store_that_this_version_cannot_use_is_refused_by_every_call(
    etcd_member: EtcdCluster, request: pytest.FixtureRequest, key: str, value: str, told: str
) -> None:
    prefix = f"/refused/{request.node.name}/"
    etcd_member.ctl("put", "--", f"{prefix}{key}", value)
    async with opened(EtcdAccess(etcd_member.endpoints), prefix) as store:
        for call in (store.lead, store.epoch, store.load, store.count):
            with pytest.raises(GpushareError, match=told):
                await call()


async def test_a_store_that_moves_away_from_a_coordinator_that_knows_it_is_not_led(
    etcd_member: EtcdCluster,
) -> None:
    prefix = "/moves/away/"
    async with opened(EtcdAccess(etcd_member.endpoints), prefix) as store:
        await store.count()
        etcd_member.ctl("put", "--", f"{prefix}format", '{"version": 1, "offset": 0, "moved_to": "sqlite:"}')
        for _ in range(2):
            with pytest.raises(GpushareError, match="has moved to sqlite:"):
                await store.lead()
        assert await store.leader() == Leader("", 0)


async def test_a_record_whose_key_is_no_text_stops_nobody(etcd_member: EtcdCluster) -> None:
    async with opened(EtcdAccess(etcd_member.endpoints), "/odd/keys/") as store:
        request = put(b"/odd/keys/record/\xff", b"")
        async with grpc.aio.insecure_channel(etcd_member.endpoints[0]) as channel:
            await rpc_pb2_grpc.KVStub(channel).Txn(rpc_pb2.TxnRequest(success=[request]))
        assert len((await store.load()).records) == 1


# --- certificates and passwords ------------------------------------------------------------------------


async def test_a_token_that_has_expired_is_renewed_for_calls_the_lease_and_followers(
    etcd_cluster: Cluster, tmp_path: object
) -> None:
    cluster = etcd_cluster(1, flags=["--auth-token=simple", "--auth-token-ttl=1"])
    for words in (
        ["user", "add", "root:secret"],
        ["user", "grant-role", "root", "root"],
        ["user", "add", "gpushare:open sesame"],
        ["role", "add", "pool"],
        ["role", "grant-permission", "pool", "--prefix=true", "readwrite", PREFIX],
        ["user", "grant-role", "gpushare", "pool"],
        ["auth", "enable"],
    ):
        cluster.ctl(*words)
    file = cluster.folder / "password"
    file.write_text("open sesame\n")
    access = EtcdAccess(cluster.endpoints, user="gpushare", password_file=str(file))
    async with opened(access) as store:
        writer = Writer(store, await store.lead())
        for number in range(2):
            revision = await writer.put("a", str(number))
            changes = store.watch("", revision)
            await asyncio.sleep(1.5)  # longer than a token lives
            following = asyncio.create_task(take(changes, 1))
            newer = await writer.put("a", f"{number} again")
            assert [change.revision for change in await following] == [newer]
        assert await leads_still(store, writer.epoch)
    async with opened(access, "/another/prefix/") as store:
        with pytest.raises(StoreUnavailable, match="permission denied"):
            await store.lead()
    file.write_text("wrong")
    async with opened(access) as store:
        with pytest.raises(StoreUnavailable, match="authentication failed"):
            await store.lead()
    async with opened(EtcdAccess(cluster.endpoints)) as store:
        with pytest.raises(StoreUnavailable, match="user name is empty"):
            await store.lead()


async def fill(writer: Writer, written: dict[str, str]) -> None:
    """Writes until etcd refuses, and notes what was written."""
    for key in (f"k/{number}" for number in range(100)):
        await writer.put(key, "x" * 200_000)
        written[key] = "x" * 200_000


async def take(changes: AsyncIterator[StoreChange], count: int) -> list[StoreChange]:
    async with asyncio.timeout(SECONDS):
        return [await anext(changes) for _ in range(count)]
