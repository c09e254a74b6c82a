"""Who calls, and for what: by a node's word or by a token. What is neither is refused, and told why."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path

import grpc
import pytest

from gpushared.api.v1 import jobs_pb2, jobs_pb2_grpc
from gpushared.config.queue_rules import UserConfig
from gpushared.domain.jobs.job import NodeName, Owner
from gpushared.domain.model.errors import (
    ConfigError,
    GpushareError,
    LimitReached,
    NotLeader,
    PermissionRefused,
    RequestError,
    Unavailable,
)
from gpushared.domain.model.request import Caller
from gpushared.jobs.standby import Standby
from gpushared.pool.trust.api_tokens import ApiTokens
from gpushared.pool.trust.assertions import _CONTEXT, Asserter, Nonces, request_digest
from gpushared.pool.trust.callers import PoolCaller, unless
from gpushared.pool.trust.people import people_of
from gpushared.pool.trust.token_records import Scope
from gpushared.ports.job_store import Transaction
from gpushared.testing import MemoryStore
from tests.pool.trust.coordinator import (
    POOL,
    Coordinator,
    cancel,
    cancel_with,
    coordinator,
    member,
    refusal,
    within,
)

ASKED = jobs_pb2.CancelJobRequest(job_id="j")
DAY = 24 * 3600

# --- a node's word ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "principal", "who"),
    [
        ("ws3", "ada@ws3", "ada as ada@ws3 (admin)"),
        ("ws4", "adal@ws4", "ada as adal@ws4 (admin)"),
        ("ws3", "bob@ws3", "bob as bob@ws3"),
        ("ws4", "bob@ws4", "bob@ws4 as bob@ws4"),
        ("ws4", "ada@ws4", "ada@ws4 as ada@ws4"),
        ("ws3", "root@ws3", "root@ws3 as root@ws3"),
    ],
)
async def test_a_nodes_user_is_the_person_that_the_user_table_says(
    pool: Coordinator, tmp_path: Path, node: str, principal: str, who: str
) -> None:
    assert await cancel(pool, await member(pool, tmp_path, node), principal) == who


async def test_a_node_speaks_for_the_users_of_a_realm_that_its_token_gave_it(
    pool: Coordinator, tmp_path: Path
) -> None:
    node = await member(pool, tmp_path, "ws3", realms=["cluster"])
    assert await cancel(pool, node, "carl@cluster") == "carl as carl@cluster"


@pytest.mark.parametrize("principal", ["ada@ws4", "carl@cluster", f"root@{POOL}"])
async def test_a_node_does_not_speak_for_another_realms_users(
    pool: Coordinator, tmp_path: Path, principal: str
) -> None:
    error = await refusal(cancel(pool, await member(pool, tmp_path, "ws3"), principal))
    assert isinstance(error, PermissionRefused)
    assert f"node ws3 may not speak for '{principal}': its realms are ws3" in error.message
    assert "--realm" in error.hint


@pytest.mark.parametrize("principal", ["ada", "@ws3", "ada@", "*@ws3", "ada@ws3@ws3", "a b@ws3"])
async def test_what_is_no_principal_is_nobody(pool: Coordinator, tmp_path: Path, principal: str) -> None:
    error = await refusal(cancel(pool, await member(pool, tmp_path, "ws3"), principal))
    assert "is not a principal" in error.message


async def test_a_word_is_good_for_one_call(pool: Coordinator, tmp_path: Path) -> None:
    node = await member(pool, tmp_path, "ws3")
    word = node.asserter().sign("bob@ws3", (), request_digest(ASKED), pool.clock())
    assert await cancel(pool, node, "", signed=word) == "bob as bob@ws3"
    error = await refusal(cancel(pool, node, "", signed=word))
    assert "was used before" in error.message


async def test_a_word_is_good_for_its_own_request(pool: Coordinator, tmp_path: Path) -> None:
    node = await member(pool, tmp_path, "ws3")
    word = node.asserter().sign("bob@ws3", (), request_digest(ASKED), pool.clock())
    error = await refusal(cancel(pool, node, "", signed=word, job="another"))
    assert "it is for another request" in error.message


async def test_one_nodes_word_is_worth_nothing_from_another(pool: Coordinator, tmp_path: Path) -> None:
    ws3, ws4 = [await member(pool, tmp_path, name) for name in ("ws3", "ws4")]
    word = ws3.asserter().sign("bob@ws3", (), request_digest(ASKED), pool.clock())
    error = await refusal(cancel(pool, ws4, "", signed=word))
    assert "its signature is not that of the node's key" in error.message


async def test_a_word_for_another_pool_is_refused(pool: Coordinator, tmp_path: Path) -> None:
    node = await member(pool, tmp_path, "ws3")
    assert node.membership is not None
    word = Asserter(node.membership.speaks, "other").sign("bob@ws3", (), request_digest(ASKED), pool.clock())
    error = await refusal(cancel(pool, node, "", signed=word))
    assert "it is for the pool 'other', and this is lab" in error.message


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (-181, "181 s behind the coordinator's"),
        (-3600, "3600 s behind"),
        (125, "125 s ahead of"),
        (3600, "ahead"),
    ],
)
async def test_a_word_of_another_time_is_refused_with_the_measured_offset(
    pool: Coordinator, tmp_path: Path, offset: float, words: str
) -> None:
    node = await member(pool, tmp_path, "ws3")
    word = node.asserter().sign("bob@ws3", (), request_digest(ASKED), pool.clock() + offset)
    error = await refusal(cancel(pool, node, "", signed=word))
    assert words in error.message
    assert "timedatectl" in error.hint


@pytest.mark.parametrize("offset", [-110, 110])
async def test_clocks_two_minutes_apart_do_not_matter(
    pool: Coordinator, tmp_path: Path, offset: float
) -> None:
    node = await member(pool, tmp_path, "ws3")
    word = node.asserter().sign("bob@ws3", (), request_digest(ASKED), pool.clock() + offset)
    assert await cancel(pool, node, "", signed=word) == "bob as bob@ws3"


@pytest.mark.parametrize(
    "change",
    [
        {"expires_at": 9e9},
        {"expires_at": float("nan")},
        {"issued_at": float("nan")},
        {"issued_at": float("inf"), "expires_at": float("inf")},
        {"issued_at": 10**400},
        {"nonce": ""},
        {"nonce": "x" * 5000},
        {"groups": 7},
        {"digest": None},
    ],
)
async def test_a_word_that_makes_no_sense_is_refused_though_it_is_signed(
    pool: Coordinator, tmp_path: Path, change: dict[str, object]
) -> None:
    node = await member(pool, tmp_path, "ws3")
    assert node.membership is not None
    key, now = node.membership.speaks, pool.clock()
    honest = json.loads(node.asserter().sign("bob@ws3", (), request_digest(ASKED), now)[64:])
    text = json.dumps({**honest, **change}).encode()
    error = await refusal(cancel(pool, node, "", signed=key.sign(_CONTEXT + text) + text))
    assert isinstance(error, PermissionRefused)


@pytest.mark.parametrize("signed", [b"x", b"x" * 64, b"x" * 5000])
async def test_what_is_no_word_is_refused(pool: Coordinator, tmp_path: Path, signed: bytes) -> None:
    error = await refusal(cancel(pool, await member(pool, tmp_path, "ws3"), "", signed=signed))
    assert "the word of node ws3 for its user is refused" in error.message


async def test_a_node_by_itself_is_no_user(pool: Coordinator, tmp_path: Path) -> None:
    node = await member(pool, tmp_path, "ws3")
    pool.users_port = pool.nodes_port
    async with pool.channel(pool.nodes_port, node.credentials()) as channel:
        error = await refusal(jobs_pb2_grpc.JobsStub(channel).Cancel(ASKED))
    assert "asks without saying for which of its users" in error.message


def test_fields_that_only_the_other_side_knows_are_signed_too() -> None:
    """A newer client's request read by an older coordinator, and written again, is the same."""
    newer = jobs_pb2.CancelJobRequest(job_id="j").SerializeToString() + b"\xa0\x06\x01"
    read = jobs_pb2.CancelJobRequest.FromString(newer)
    assert request_digest(read) != request_digest(ASKED)
    assert read.SerializeToString(deterministic=True) == newer


def test_requests_of_different_calls_differ_though_their_fields_are_the_same() -> None:
    assert request_digest(jobs_pb2.JobRef(job_id="j")) != request_digest(ASKED)


def test_nonces_are_remembered_as_long_as_they_count_and_not_without_end() -> None:
    nonces, now = Nonces(per_node=3, in_all=5), 1000.0
    words = [f"{number:032x}" for number in range(9)]
    for word in words[:3]:
        nonces.use(NodeName("ws3"), word, now + 60, now)
    with pytest.raises(PermissionRefused, match="used before"):
        nonces.use(NodeName("ws3"), words[0], now + 60, now)
    with pytest.raises(LimitReached):
        nonces.use(NodeName("ws3"), words[3], now + 60, now)
    for word in words[3:5]:
        nonces.use(NodeName("ws4"), word, now + 60, now)
    with pytest.raises(LimitReached):
        nonces.use(NodeName("ws5"), words[5], now + 60, now)
    nonces.use(NodeName("ws5"), words[5], now + 120, now + 61)
    nonces.use(NodeName("ws3"), words[0], now + 120, now + 61)
    with pytest.raises(PermissionRefused, match="used before"):
        nonces.use(NodeName("ws5"), words[5], now + 120, now + 61)


async def test_the_links_guard_gives_the_owner_of_what_an_outbox_holds(
    pool: Coordinator, tmp_path: Path
) -> None:
    node = await member(pool, tmp_path, "ws4")
    assert node.membership is not None
    digest, pem = b"d" * 32, node.membership.certificate.encode()
    guard = pool.trust.guard
    word = node.asserter().sign("adal@ws4", (), digest, pool.clock())
    with pytest.raises(PermissionRefused, match="has shown no certificate"):
        guard.owner_of(NodeName("ws4"), word, digest)
    assert guard.node_of({"x509_pem_cert": [pem]}) == "ws4"
    assert guard.owner_of(NodeName("ws4"), word, digest) == Owner("adal@ws4", "ada", admin=True)


# --- API tokens ------------------------------------------------------------------------------------------


def bearer(token: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {token}")


@pytest.mark.parametrize(
    ("person", "who"),
    [
        ("bob", "bob as bob@lab"),
        ("carl", "carl as carl@lab"),
        ("ada", "ada as ada@lab"),
        ("bob@ws3", "bob as bob@ws3"),
        ("dora@ws9", "dora@ws9 as dora@ws9"),
    ],
)
async def test_a_token_speaks_for_its_person(pool: Coordinator, person: str, who: str) -> None:
    """An admin's token is an ordinary user's without the scope admin."""
    assert await cancel_with(pool, bearer(await pool.api_token(person))) == who


async def test_a_token_of_an_admin_with_the_scope_is_an_admins(pool: Coordinator) -> None:
    token = await pool.api_token("ada", "admin")
    assert await cancel_with(pool, bearer(token)) == "ada as ada@lab (admin)"
    pool.users["ada"] = UserConfig(("ada@ws3",))
    error = await refusal(cancel_with(pool, bearer(token)))
    assert "lacks the scope cancel" in error.message


async def test_a_token_is_for_its_scopes(pool: Coordinator) -> None:
    error = await refusal(cancel_with(pool, bearer(await pool.api_token("bob", "read", "submit"))))
    assert isinstance(error, PermissionRefused)
    assert error.message == "this token of bob is not for that: it lacks the scope cancel"
    assert error.hint.endswith("--scope submit,read,cancel"), "the new token also does what this one does"


async def test_a_revoked_token_is_refused_from_then_on(pool: Coordinator) -> None:
    token = await pool.api_token("bob")
    await cancel_with(pool, bearer(token))
    token_id = token.split("_")[1]
    assert "is revoked" in await pool.trust.api_tokens.revoke(token_id, pool.clock())
    error = await refusal(cancel_with(pool, bearer(token)))
    assert error.message == f"the API token {token_id} was revoked"


async def test_a_token_expires_after_twelve_hours_unless_said_otherwise(pool: Coordinator) -> None:
    token = await pool.api_token("bob")
    pool.clock.offset = 12 * 3600 - 60
    await cancel_with(pool, bearer(token))
    pool.clock.offset = 12 * 3600 + 60
    error = await refusal(cancel_with(pool, bearer(token)))
    assert "expired 60 s ago" in error.message or "expired 61 s ago" in error.message
    assert "gpushare pool api-token" in error.hint


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ((), "this call has no API token"),
        ((("authorization", "Basic YTpi"),), "this call has no API token"),
        ((("authorization", "Bearer x"),), "this is no API token"),
        ((("authorization", "Bearer gsp_aaaaaaaa_" + "b" * 52),), "this API token is not known here"),
    ],
)
async def test_without_a_token_of_the_pool_nobody_is_anybody(
    pool: Coordinator, metadata: tuple[tuple[str, str], ...], words: str
) -> None:
    error = await refusal(cancel_with(pool, *metadata))
    assert isinstance(error, PermissionRefused)
    assert error.message == words


async def test_two_tokens_at_once_are_none(pool: Coordinator) -> None:
    both = [bearer(await pool.api_token(person)) for person in ("bob", "carl")]
    error = await refusal(cancel_with(pool, *both))
    assert "this call has no API token" in error.message


async def test_another_secret_is_no_secret(pool: Coordinator) -> None:
    token = await pool.api_token("bob")
    error = await refusal(cancel_with(pool, bearer(token[:-52] + "a" * 52)))
    assert "not known here" in error.message


async def test_tokens_and_their_revocation_outlive_the_coordinator(tmp_path: Path) -> None:
    async with coordinator(tmp_path / "c") as pool:
        kept, revoked = await pool.api_token("bob"), await pool.api_token("carl")
        await pool.trust.api_tokens.revoke(revoked.split("_")[1], pool.clock())
    async with coordinator(tmp_path / "c") as pool:
        assert await cancel_with(pool, bearer(kept)) == "bob as bob@lab"
        assert "was revoked" in (await refusal(cancel_with(pool, bearer(revoked)))).message


async def test_no_secret_is_in_the_store(pool: Coordinator, tmp_path: Path) -> None:
    secrets = [(await pool.api_token("bob")).encode()[-52:], (await pool.token()).encode()[-52:]]
    kept = b"".join(file.read_bytes() for file in (tmp_path / "coordinator").glob("pool.db*"))
    assert b"token/api/" in kept
    assert not any(secret in kept for secret in secrets)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"person": "bob", "valid_seconds": 367 * DAY}, "cannot be valid for"),
        ({"person": "bob", "valid_seconds": 59}, "cannot be valid for"),
        ({"person": "bob", "valid_seconds": -5}, "cannot be valid for"),
        ({"person": "bob", "scopes": ["sudo"]}, "there is no such scope"),
        ({"person": "bob", "scopes": ["admin"]}, "bob is no admin of the pool"),
        ({"person": ""}, "cannot be a person"),
        ({"person": "*"}, "cannot be a person"),
        ({"person": "a@b@c"}, "cannot be a person"),
        ({"person": "bob", "description": "x" * 201}, "description"),
        ({"person": "bob", "description": "a\nb"}, "description"),
    ],
)
async def test_a_token_that_nobody_should_have_is_not_made(asked: dict[str, object], words: str) -> None:
    tokens = ApiTokens(MemoryStore(), lambda: 1)
    with pytest.raises(RequestError, match=words) as caught:
        await tokens.make("root", 1e9, **asked)  # type: ignore[arg-type]
    assert caught.value.hint


async def test_the_last_use_of_a_token_is_told_at_once_and_written_down_now_and_then() -> None:
    store = MemoryStore()
    epoch = await store.lead()
    tokens = ApiTokens(store, lambda: epoch)
    words, _ = await tokens.make("root", 1000.0, person="bob")
    revisions = []
    for at in (1100.0, 1101.0, 1800.0):
        tokens.recognise(words, at)
        await tokens.note_use()
        revisions.append((await store.load()).revision)
        assert [one.used_at for one in await tokens.all(at)] == [at]
    assert revisions[0] == revisions[1] < revisions[2]
    again = ApiTokens(store, lambda: epoch)
    await again.load()
    assert [one.used_at for one in await again.all(1900.0)] == [1800.0]


async def test_tokens_that_ended_long_ago_are_forgotten() -> None:
    store = MemoryStore()
    epoch = await store.lead()
    tokens = ApiTokens(store, lambda: epoch)
    await tokens.make("root", 0.0, person="bob", valid_seconds=60)
    assert len(await tokens.all(7 * DAY)) == 1
    assert await tokens.all(8 * DAY) == []
    assert (await store.load("token/")).records == {}


async def test_a_record_that_somebody_else_changed_meanwhile_is_changed_as_it_is_now() -> None:
    store = MemoryStore()
    epoch = await store.lead()
    tokens = ApiTokens(store, lambda: epoch)
    words, record = await tokens.make("root", 0.0, person="bob")
    key = f"token/api/{record.id}"
    value = (await store.load(key)).records[key].value
    await store.commit(Transaction(epoch, {key: value.replace(b'"description": ""', b'"description": "ci"')}))
    await tokens.revoke(record.id, 5.0)
    (newer,) = await tokens.all(6.0)
    assert (newer.description, newer.revoked_at) == ("ci", 5.0)
    with pytest.raises(PermissionRefused, match="revoked"):
        tokens.recognise(words, 6.0)


# --- streams ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_an_open_stream_ends_when_its_token_counts_no_more(pool: Coordinator, how: str) -> None:
    token = await pool.api_token("bob")
    async with pool.channel(pool.users_port, grpc.ssl_channel_credentials(pool.anchors)) as channel:
        watch = jobs_pb2_grpc.JobsStub(channel).Watch
        stream = watch(jobs_pb2.JobRef(job_id="j"), metadata=(bearer(token),))
        assert (await within(stream.read())).owner == "bob"
        if how == "revoked":
            await pool.trust.api_tokens.revoke(token.split("_")[1], pool.clock())
        pool.trust.certificate_status.look_again(pool.clock() + (0 if how == "revoked" else DAY))
        error = await refusal(stream.read())
        assert isinstance(error, PermissionRefused)
        assert how in error.message


@pytest.mark.parametrize("how", ["revoked", "expired", "answered"])
async def test_a_call_that_waits_ends_when_its_token_counts_no_more(pool: Coordinator, how: str) -> None:
    """Whoever held the token when they asked is told nothing that happened after its end."""
    token = await pool.api_token("bob")
    async with pool.channel(pool.users_port, grpc.ssl_channel_credentials(pool.anchors)) as channel:
        wait = jobs_pb2_grpc.JobsStub(channel).Wait
        call = wait(jobs_pb2.WaitJobRequest(job_id="j"), metadata=(bearer(token),))
        await within(pool.jobs.waits.wait())
        if how == "revoked":
            await pool.trust.api_tokens.revoke(token.split("_")[1], pool.clock())
        pool.trust.certificate_status.look_again(pool.clock() + (DAY if how == "expired" else 0))
        pool.jobs.may_answer.set()
        if how == "answered":
            assert (await within(call)).owner == "bob"
        else:
            error = await refusal(call)
            assert isinstance(error, PermissionRefused)
            assert how in error.message
    assert pool.trust.certificate_status._open == {}


async def test_a_stream_of_a_token_that_counts_ends_by_itself(pool: Coordinator) -> None:
    token = await pool.api_token("bob")
    async with pool.channel(pool.users_port, grpc.ssl_channel_credentials(pool.anchors)) as channel:
        watch = jobs_pb2_grpc.JobsStub(channel).Watch
        stream = watch(jobs_pb2.JobRef(job_id="over"), metadata=(bearer(token),))
        assert [job.owner async for job in stream] == ["bob"]
    assert pool.trust.certificate_status._open == {}


async def test_a_stream_is_refused_as_a_call_is(pool: Coordinator) -> None:
    token = await pool.api_token("bob", "submit")
    async with pool.channel(pool.users_port, grpc.ssl_channel_credentials(pool.anchors)) as channel:
        watch = jobs_pb2_grpc.JobsStub(channel).Watch
        stream = watch(jobs_pb2.JobRef(job_id="j"), metadata=(bearer(token),))
        assert "lacks the scope read" in (await refusal(stream.read())).message


# --- the unix socket, and people -------------------------------------------------------------------------


async def test_on_the_coordinators_socket_the_trusted_are_admins_and_others_nobody(pool: Coordinator) -> None:
    callers = pool.trust.callers
    assert callers.local(Caller(0, 0, "root", trusted=True)) == PoolCaller(
        Owner("root@lab", "root", admin=True), None, frozenset(Scope), is_admin=True
    )
    with pytest.raises(PermissionRefused, match="eve may not administer the pool"):
        callers.local(Caller(1000, 1000, "eve"))


def test_who_is_no_admin_is_told_how_one_becomes_one() -> None:
    with pytest.raises(PermissionRefused) as caught:
        PoolCaller(Owner("bob@ws3", "bob"), None, frozenset(Scope), is_admin=False).require_admin()
    assert "admin = true" in caught.value.hint


@pytest.mark.parametrize(
    ("users", "words"),
    [
        ({"ada": UserConfig(("a@ws3",)), "bob": UserConfig(("a@ws3",))}, "both ada and bob"),
        ({"ada": UserConfig(("*@ws3",))}, "stands in the wrong place"),
        ({"*": UserConfig(("ada@ws3",))}, "stands in the wrong place"),
        ({"*": UserConfig(("*@ws3",), admin=True)}, "cannot be admin"),
        ({"ada@ws3": UserConfig()}, "cannot be a person's name"),
    ],
)
def test_a_user_table_that_contradicts_itself_is_refused(users: dict[str, UserConfig], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        people_of(users)
    assert caught.value.hint


def test_a_person_who_is_not_configured_is_never_taken_for_one_who_is() -> None:
    people = people_of({"ada": UserConfig(("ada@ws3",), admin=True)})
    assert people.owner("ada@ws4") == Owner("ada@ws4", "ada@ws4")
    assert people.owner("ada@ws3") == Owner("ada@ws3", "ada", admin=True)


async def test_a_user_in_too_many_groups_is_still_a_user(pool: Coordinator, tmp_path: Path) -> None:
    node = await member(pool, tmp_path, "ws3")
    groups = [f"group-{number}-{'x' * 100}" for number in range(500)]
    word = node.asserter().sign("bob@ws3", groups, request_digest(ASKED), pool.clock())
    assert len(word) < 4096
    assert await cancel(pool, node, "", signed=word) == "bob as bob@ws3"


# --- a caller that goes away -----------------------------------------------------------------------------


async def test_work_that_fails_while_its_caller_goes_away_leaves_no_error_unread() -> None:
    unread: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unread.append(context["message"]))

    async def ends_badly() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise Unavailable("the tunnel's node went away") from None

    gone: asyncio.Future[GpushareError] = loop.create_future()
    call = asyncio.create_task(unless(gone, ends_badly()))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    del call
    gc.collect()
    await asyncio.sleep(0.01)
    assert unread == []


# --- a coordinator that stands by ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age_seconds", "is_remote", "answers"), [(299, True, True), (301, True, False), (301, False, True)]
)
async def test_one_that_has_long_not_heard_of_revocations_answers_its_own_machine_only(
    pool: Coordinator, age_seconds: float, is_remote: bool, answers: bool
) -> None:
    callers = pool.trust.callers
    callers.standby = lambda: Standby("b", lambda: float(age_seconds))
    if answers:
        callers.check_answers("Jobs/List", is_remote=is_remote)
    else:
        with pytest.raises(NotLeader):
            callers.check_answers("Jobs/List", is_remote=is_remote)
