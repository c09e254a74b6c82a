"""The authority is replaced, and certificates are renewed, while nodes stay connected."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gpushared.api.v1 import link_pb2
from gpushared.domain.model.errors import PermissionRefused, StateConflict, Unavailable
from gpushared.pool.member.enrolment import EARLIEST_RENEWAL, LATEST_RENEWAL, Enrolment
from gpushared.pool.trust.trust import REISSUE_SECONDS
from tests.pool.trust.coordinator import Coordinator, Stream, cancel, coordinator, member, refusal, within

DAY = 24 * 3600.0


@asynccontextmanager
async def renewing(node: Enrolment) -> AsyncIterator[None]:
    """As the node's daemon does it."""
    task = asyncio.create_task(node.keep_renewed())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def renewed(node: Enrolment, serial: int) -> None:
    """Wait until the node has another certificate."""
    while node.membership is not None and node.membership.facts.serial == serial:
        await within(node.changed(node.version))


def serial_of(node: Enrolment) -> int:
    assert node.membership is not None
    return node.membership.facts.serial


async def test_the_authority_is_replaced_while_streams_stay_open(pool: Coordinator, tmp_path: Path) -> None:
    trust = pool.trust
    nodes = [await member(pool, tmp_path, name) for name in ("ws3", "ws4")]
    streams = [Stream(pool, node.credentials()) for node in nodes]
    for stream in streams:
        await stream.open()
    old = trust.authority.signing

    await trust.begin_rotation()
    for node in nodes:
        news = trust.guard.newer_trust(node.membership.node, node.trust_generation())  # type: ignore[union-attr, arg-type]
        assert news is not None
        assert news.renew_now
        async with renewing(node):
            before = serial_of(node)
            assert await node.take_trust(news) == 2
            await renewed(node, before)
        assert node.membership.facts.authority == trust.authority.signing != old  # type: ignore[union-attr]
        assert trust.guard.newer_trust(node.membership.node, 2) is None  # type: ignore[union-attr, arg-type]

    await trust.finish_rotation()
    assert not trust.authority.trusts(old)
    for stream in streams:  # with certificates of the old authority, which count no more
        assert "an authority that this pool has replaced" in (await stream.ended()).message
        await stream.close()
    for node in nodes:
        news = trust.guard.newer_trust(node.membership.node, node.trust_generation())  # type: ignore[union-attr, arg-type]
        assert news is not None
        assert not news.renew_now
        assert await node.take_trust(news) == 3
        assert (await cancel(pool, node, f"eve@{node.membership.node}")).startswith("eve")  # type: ignore[union-attr]


async def test_streams_stay_open_between_the_two_steps(pool: Coordinator, tmp_path: Path) -> None:
    node = await member(pool, tmp_path, "ws3")
    stream = Stream(pool, node.credentials())
    await stream.open()
    await pool.trust.begin_rotation()
    await node.renew()
    pool.trust.certificate_status.look_again(pool.clock())
    assert stream.is_open
    newer = Stream(pool, node.credentials())
    assert await newer.open() == "ws3"
    await stream.close()
    await newer.close()


async def test_a_node_that_was_away_during_the_first_step_still_finds_its_coordinator(
    pool: Coordinator, tmp_path: Path
) -> None:
    node = await member(pool, tmp_path, "ws3")
    await pool.trust.begin_rotation()
    assert node.trust_generation() == 1
    stream = Stream(pool, node.credentials())
    assert await stream.open() == "ws3"
    await stream.close()
    await node.renew()
    assert node.trust_generation() == 2


async def test_the_old_authority_is_not_dropped_before_all_have_certificates_of_the_new_one(
    pool: Coordinator, tmp_path: Path
) -> None:
    for name in ("ws3", "ws4"):
        await member(pool, tmp_path, name)
    await pool.trust.begin_rotation()
    error = await refusal(pool.trust.finish_rotation())
    assert isinstance(error, StateConflict)
    assert "nodes without a certificate of the new authority: ws3, ws4" in error.message
    assert "gpushare node forget ws3" in error.hint
    assert pool.trust.authority.rotating


async def test_a_node_that_missed_both_steps_is_refused(pool: Coordinator, tmp_path: Path) -> None:
    """It was shut out to finish; what it shows is signed by nobody who is known any more."""
    node = await member(pool, tmp_path, "ws3")
    await pool.trust.begin_rotation()
    await pool.expel("ws3")
    await pool.trust.finish_rotation()
    stream = Stream(pool, node.credentials())
    await stream.ended()
    await stream.close()
    with pytest.raises(PermissionRefused):
        pool.trust.certificate_status.check(node.membership.facts, pool.clock())  # type: ignore[union-attr]


async def test_the_two_steps_come_one_after_the_other(pool: Coordinator) -> None:
    assert "rotate-ca begins it" in (await refusal(pool.trust.finish_rotation())).hint
    await pool.trust.begin_rotation()
    assert "--finish ends it" in (await refusal(pool.trust.begin_rotation())).hint


async def test_a_step_that_cannot_be_written_has_not_been_made(
    pool: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, before = pool.trust.authority, pool.trust.authority.anchors_pem

    def disk_full(path: Path, _: bytes) -> None:
        if path.name == "trust.json":
            raise Unavailable("the disk is full", hint="make room")

    with monkeypatch.context() as patch:
        patch.setattr("gpushared.pool.trust.authority.write_private", disk_full)
        await refusal(pool.trust.begin_rotation())
    assert (authority.anchors_pem, authority.generation, authority.rotating) == (before, 1, False)
    await pool.trust.begin_rotation()
    assert authority.rotating


async def test_a_rotation_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with coordinator(tmp_path / "c") as pool:
        node = await member(pool, tmp_path, "ws3")
        await pool.trust.begin_rotation()
        ports = (pool.users_port, pool.nodes_port)
    async with coordinator(tmp_path / "c", ports=ports) as pool:
        assert pool.trust.authority.rotating
        assert pool.trust.nodes_behind() == ["ws3"]
        await node.renew()
        await pool.trust.finish_rotation()
    assert len(list((tmp_path / "c" / "ca").glob("*.key"))) == 1
    async with coordinator(tmp_path / "c", ports=ports) as pool:
        assert not pool.trust.authority.rotating
        stream = Stream(pool, node.credentials())
        assert await stream.open() == "ws3"
        await stream.close()


async def test_a_token_made_before_the_first_step_is_good_until_the_second(
    pool: Coordinator, tmp_path: Path
) -> None:
    tokens = [await pool.token() for _ in range(2)]
    await pool.trust.begin_rotation()
    joined = Enrolment(tmp_path / "a", pool.clock)
    await joined.join(pool.address, tokens[0], "a")
    assert joined.membership is not None
    assert joined.membership.facts.authority == pool.trust.authority.signing
    await pool.trust.finish_rotation()
    error = await refusal(Enrolment(tmp_path / "b", pool.clock).join(pool.address, tokens[1], "b"))
    assert "If the pool's authority was replaced since, make a new token" in error.hint


async def test_what_a_node_is_told_of_trust_must_be_anchors(pool: Coordinator, tmp_path: Path) -> None:
    node = await member(pool, tmp_path, "ws3")
    before = node.membership
    await refusal(node.take_trust(link_pb2.NewTrust(anchors=b"x", generation=9)))
    assert node.membership == before


# --- renewal ---------------------------------------------------------------------------------------------


async def test_a_certificate_is_renewed_in_time_and_nothing_is_cut_off(
    pool: Coordinator, tmp_path: Path
) -> None:
    node = await member(pool, tmp_path, "ws3", realms=["cluster"])
    stream, before = Stream(pool, node.credentials()), serial_of(node)
    await stream.open()
    pool.clock.offset = LATEST_RENEWAL * 30 * DAY
    async with renewing(node):
        await renewed(node, before)
    assert stream.is_open
    assert node.membership is not None
    assert node.membership.facts.realms == {"cluster"}
    again = Enrolment(tmp_path / "ws3" / "pool", pool.clock)
    await again.load()
    assert again.membership == node.membership
    assert pool.members()["ws3"].serial == serial_of(node)
    await stream.close()


async def test_the_key_is_new_with_each_certificate(pool: Coordinator, tmp_path: Path) -> None:
    node = await member(pool, tmp_path, "ws3")
    keys = set()
    for _ in range(3):
        await node.renew()
        assert node.membership is not None
        keys.add(node.membership.key)
    assert len(keys) == 3


async def test_a_word_given_before_a_renewal_counts_after_it(pool: Coordinator, tmp_path: Path) -> None:
    node = await member(pool, tmp_path, "ws3")
    asserter = node.asserter()
    await node.renew()
    from gpushared.api.v1 import jobs_pb2
    from gpushared.pool.trust.assertions import request_digest

    digest = request_digest(jobs_pb2.CancelJobRequest(job_id="j"))
    word = asserter.sign("bob@ws3", (), digest, pool.clock())
    assert await cancel(pool, node, "", signed=word) == "bob as bob@ws3"


async def test_nodes_do_not_renew_all_at_the_same_time(pool: Coordinator, tmp_path: Path) -> None:
    node = await member(pool, tmp_path, "ws3")
    assert node.membership is not None
    facts, times = node.membership.facts, []
    for seed in range(20):
        node._chance = random.Random(seed)
        times.append((node._renewal() - facts.issued_at) / (facts.expires_at - facts.issued_at))
    assert all(EARLIEST_RENEWAL <= time <= LATEST_RENEWAL for time in times)
    assert max(times) - min(times) > 0.2


async def test_a_renewal_that_fails_is_told_and_tried_again(pool: Coordinator, tmp_path: Path) -> None:
    told: asyncio.Queue[str | None] = asyncio.Queue()
    node = Enrolment(tmp_path / "n", pool.clock, told.put_nowait, random.Random(1), spread_seconds=0)
    membership = await node.join(pool.address, await pool.token("ws3"), "ws3")
    before = serial_of(node)
    await pool.expel("ws3")
    pool.clock.offset = LATEST_RENEWAL * 30 * DAY
    async with renewing(node):
        said = await within(told.get())
        assert said is not None
        assert "is not renewed: the certificate of node ws3 was revoked" in said
        pool.trust.ledger.issued(membership.facts, pool.clock())
        pool.trust.ledger._revoked.clear()
        await node.take_trust(link_pb2.NewTrust(generation=0, renew_now=True))
        assert await within(told.get()) is None
        await renewed(node, before)


async def test_a_revoked_node_gets_no_new_certificate(pool: Coordinator, tmp_path: Path) -> None:
    node = await member(pool, tmp_path, "ws3")
    await pool.expel("ws3")
    assert "was revoked" in (await refusal(node.renew())).message


async def test_a_clock_that_jumped_is_named_at_the_renewal(pool: Coordinator, tmp_path: Path) -> None:
    node = await member(pool, tmp_path, "ws3")
    node._now = lambda: pool.clock() - 3600
    error = await refusal(node.renew())
    assert "the clock of node ws3 is 3600 s behind the coordinator's" in error.message


async def test_the_coordinators_own_certificate_is_made_anew_while_it_serves(
    pool: Coordinator, tmp_path: Path
) -> None:
    node = await member(pool, tmp_path, "ws3")
    made = pool.trust.identity._version
    pool.trust.identity.refresh(pool.clock())
    assert pool.trust.identity._version == made
    pool.trust.identity._made_at -= REISSUE_SECONDS
    pool.trust.identity.refresh(pool.clock())
    assert pool.trust.identity._version == made + 1
    assert (await cancel(pool, node, "bob@ws3")) == "bob as bob@ws3"
