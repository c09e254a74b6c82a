"""Machines become nodes by a token, once; everything else is refused with its cause and what helps."""

from __future__ import annotations

import asyncio
import re
import stat
import time
from pathlib import Path

import pytest
from cryptography import x509

from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import (
    ConfigError,
    LimitReached,
    PermissionRefused,
    RequestError,
    StateConflict,
    Unavailable,
)
from gpushared.net.limits import Rates
from gpushared.pool.member.enrolment import Enrolment
from tests.pool.trust.coordinator import POOL, Clock, Coordinator, coordinator, refusal


def node(tmp_path: Path, name: str, clock: Clock | None = None) -> Enrolment:
    return Enrolment(tmp_path / name / "pool", clock or Clock())


async def test_a_machine_with_a_token_becomes_a_node_and_stays_one_over_a_restart(
    pool: Coordinator, tmp_path: Path
) -> None:
    joining = node(tmp_path, "dgx")
    membership = await joining.join(pool.address, await pool.token(realms=["vision"]), "dgx")

    assert (membership.pool, membership.node) == (POOL, "dgx")
    assert membership.facts.realms == {"vision"}
    assert membership.node_address == f"127.0.0.1:{pool.nodes_port}"
    assert pool.enrolled == [("dgx", ("vision",))]
    assert set(pool.members()) == {"dgx"}
    again = node(tmp_path, "dgx")
    await again.load()
    assert again.membership == membership


async def test_what_a_node_keeps_is_for_its_owner_alone(pool: Coordinator, tmp_path: Path) -> None:
    await node(tmp_path, "dgx").join(pool.address, await pool.token(), "dgx")
    kept = tmp_path / "dgx" / "pool"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in kept.iterdir()] == [0o600]
    authority = tmp_path / "coordinator" / "ca"
    assert {stat.S_IMODE(file.stat().st_mode) for file in authority.iterdir()} == {0o600}


async def test_a_nodes_certificate_is_for_thirty_days_and_for_clients_only(
    pool: Coordinator, tmp_path: Path
) -> None:
    membership = await node(tmp_path, "dgx").join(pool.address, await pool.token(), "dgx")
    certificate = x509.load_pem_x509_certificate(membership.certificate.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["gpushare://lab/node/dgx"]
    assert names.get_values_for_type(x509.DNSName) == []
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    assert membership.facts.expires_at - membership.facts.issued_at == 30 * 24 * 3600


async def test_a_token_is_good_for_one_node(pool: Coordinator, tmp_path: Path) -> None:
    token = await pool.token()
    await node(tmp_path, "dgx").join(pool.address, token, "dgx")
    error = await refusal(node(tmp_path, "thief").join(pool.address, token, "thief"))
    assert isinstance(error, PermissionRefused)
    assert "was used already by the node dgx" in error.message
    assert "gpushare pool revoke --node dgx" in error.hint


async def test_a_stolen_token_gives_nobody_the_place_of_the_node_that_used_it(
    pool: Coordinator, tmp_path: Path
) -> None:
    token = await pool.token(node="dgx")
    await node(tmp_path, "dgx").join(pool.address, token, "dgx")
    before = pool.members()
    error = await refusal(node(tmp_path, "thief").join(pool.address, token, "dgx"))
    assert "was used already" in error.message
    assert pool.members() == before


async def test_of_two_who_use_a_token_at_the_same_time_one_gets_in(pool: Coordinator, tmp_path: Path) -> None:
    token = await pool.token()
    nodes = [node(tmp_path, f"dg{number}") for number in range(4)]
    joins = [one.join(pool.address, token, f"dg{number}") for number, one in enumerate(nodes)]
    results = await asyncio.gather(*joins, return_exceptions=True)
    refused = [result for result in results if isinstance(result, PermissionRefused)]
    assert len(refused) == 3
    assert all("was used already" in error.message for error in refused)
    assert len(pool.members()) == 1


async def test_two_uses_that_both_read_the_token_unused_are_settled_by_the_store(pool: Coordinator) -> None:
    words, record = await pool.trust.join_tokens.make("root", pool.clock())
    tokens, now = pool.trust.join_tokens, pool.clock()
    both = [await tokens.check(words, name, name, now) for name in map(NodeName, "ab")]
    await tokens.use(both[0], NodeName("a"), "a", now)
    error = await refusal(tokens.use(both[1], NodeName("b"), "b", now))
    assert f"{record.id} was used already by the node a" in error.message


async def test_asking_again_because_the_answer_was_lost_is_the_same_question(
    pool: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, joining = await pool.token(), node(tmp_path, "dgx")
    with monkeypatch.context() as patch:
        patch.setattr("gpushared.pool.member.membership_file.write_private", _disk_full)
        await refusal(joining.join(pool.address, token, "dgx"))
    membership = await joining.join(pool.address, token, "dgx")
    assert pool.members()["dgx"].serial == membership.facts.serial


def _disk_full(*_: object) -> None:
    raise Unavailable("the disk is full", hint="make room")


async def test_a_token_of_one_node_is_for_no_other(pool: Coordinator, tmp_path: Path) -> None:
    error = await refusal(node(tmp_path, "dgy").join(pool.address, await pool.token("dgx"), "dgy"))
    assert "is for a node named dgx, not 'dgy'" in error.message
    assert "--name dgx" in error.hint


async def test_an_expired_token_is_refused_with_how_long_ago(pool: Coordinator, tmp_path: Path) -> None:
    token, clock = await pool.token(), Clock(3700)
    pool.clock.offset = 3700
    error = await refusal(node(tmp_path, "dgx", clock).join(pool.address, token, "dgx"))
    assert re.search(r"expired 1\d\d s ago", error.message)  # 100 s, and as long as joining took


async def test_a_revoked_token_is_refused(pool: Coordinator, tmp_path: Path) -> None:
    token = await pool.token()
    token_id = token.split("-")[-2]
    await pool.trust.join_tokens.revoke(token_id, pool.clock())
    error = await refusal(node(tmp_path, "dgx").join(pool.address, token, "dgx"))
    assert f"the join token {token_id} was revoked" in error.message


async def test_a_token_with_another_secret_is_not_known(pool: Coordinator, tmp_path: Path) -> None:
    token = await pool.token()
    forged = token[:-52] + ("a" * 52)
    error = await refusal(node(tmp_path, "dgx").join(pool.address, forged, "dgx"))
    assert "knows no join token" in error.message


async def test_what_is_no_token_is_not_repeated(pool: Coordinator, tmp_path: Path) -> None:
    error = await refusal(node(tmp_path, "dgx").join(pool.address, "GSJ1-my-secret-password", "dgx"))
    assert "password" not in str(error)


async def test_another_pools_coordinator_is_not_believed(pool: Coordinator, tmp_path: Path) -> None:
    """Same name, same address, another authority: whoever took the place of the real one."""
    async with coordinator(tmp_path / "impostor") as impostor:
        error = await refusal(node(tmp_path, "dgx").join(impostor.address, await pool.token(), "dgx"))
        assert "is not the coordinator for which this token was made" in error.message
        assert impostor.enrolled == []


@pytest.mark.parametrize(("offset", "words"), [(3600, "ahead of"), (-3600, "behind")])
async def test_a_clock_that_is_an_hour_off_is_named_with_its_offset(
    pool: Coordinator, tmp_path: Path, offset: float, words: str
) -> None:
    clock = Clock(offset)
    error = await refusal(node(tmp_path, "dgx", clock).join(pool.address, await pool.token(), "dgx"))
    assert f"this machine's clock is 3600 s {words} the coordinator's" in error.message
    assert "timedatectl" in error.hint
    assert pool.members() == {}


@pytest.mark.parametrize("offset", [119, -119])
async def test_clocks_may_be_two_minutes_apart(pool: Coordinator, tmp_path: Path, offset: float) -> None:
    joining = node(tmp_path, "dgx", Clock(offset))
    membership = await joining.join(pool.address, await pool.token(), "dgx")
    assert membership.node == "dgx"


async def test_nobody_takes_the_name_of_a_member_without_a_token_for_it(
    pool: Coordinator, tmp_path: Path
) -> None:
    await node(tmp_path, "dgx").join(pool.address, await pool.token(), "dgx")
    error = await refusal(node(tmp_path, "new").join(pool.address, await pool.token(), "dgx"))
    assert isinstance(error, StateConflict)
    assert "there is a node dgx in the pool lab already" in error.message
    assert "gpushare pool token --node dgx" in error.hint


async def test_a_token_for_a_name_replaces_the_machine_that_had_it(pool: Coordinator, tmp_path: Path) -> None:
    old = await node(tmp_path, "old").join(pool.address, await pool.token(), "dgx")
    new = await node(tmp_path, "new").join(pool.address, await pool.token("dgx"), "dgx")
    assert pool.trust.ledger.is_revoked(old.facts)
    assert not pool.trust.ledger.is_revoked(new.facts)


async def test_a_name_that_is_a_realm_of_others_needs_a_token_for_it(
    pool: Coordinator, tmp_path: Path
) -> None:
    await node(tmp_path, "dgx").join(pool.address, await pool.token(realms=["vision"]), "dgx")
    error = await refusal(node(tmp_path, "x").join(pool.address, await pool.token(), "vision"))
    assert "could speak for its users" in error.message
    membership = await node(tmp_path, "y").join(pool.address, await pool.token("vision"), "vision")
    assert membership.node == "vision"


async def test_a_name_of_the_user_table_needs_a_token_for_it(pool: Coordinator, tmp_path: Path) -> None:
    """Else whoever has any token could pass for the admins among its users."""
    for name in ("ws3", "cluster"):
        error = await refusal(node(tmp_path, "x").join(pool.address, await pool.token(), name))
        assert f"names people of {name}" in error.message
        assert f"gpushare pool token --node {name}" in error.hint


async def test_no_node_is_named_as_the_pool_whose_name_its_own_users_have(
    pool: Coordinator, tmp_path: Path
) -> None:
    error = await refusal(node(tmp_path, "x").join(pool.address, await pool.token(POOL), POOL))
    assert "cannot be named as the pool" in error.message


@pytest.mark.parametrize("name", ["", "a/b", "../x", "-a", "a" * 65, "a b", "ä"])
async def test_a_name_that_could_mean_something_else_is_refused(
    pool: Coordinator, tmp_path: Path, name: str
) -> None:
    error = await refusal(node(tmp_path, "x").join(pool.address, await pool.token(), name))
    assert isinstance(error, RequestError)


async def test_nobody_answers(tmp_path: Path, pool: Coordinator) -> None:
    token = await pool.token()
    error = await refusal(node(tmp_path, "dgx").join("127.0.0.1:1", token, "dgx"))
    assert isinstance(error, Unavailable)
    assert "127.0.0.1:1" in error.message


async def test_who_tries_too_often_has_to_wait(tmp_path: Path) -> None:
    clock = Clock()
    async with coordinator(tmp_path / "c", rates=Rates(clock, burst=4, per_second=0.1)) as pool:
        for _ in range(2):  # each asks whom to trust, and then to be signed
            await refusal(node(tmp_path, "x").join(pool.address, await pool.token("other"), "x"))
        error = await refusal(node(tmp_path, "x").join(pool.address, await pool.token(), "x"))
        assert "tries too often" in error.message
        clock.offset += 20
        await node(tmp_path, "x").join(pool.address, await pool.token(), "x")


def test_peers_that_are_gone_do_not_stay_in_memory() -> None:
    rates = Rates(time.monotonic, burst=1)
    for number in range(10_000):
        rates.spend(f"ipv4:10.0.{number // 256}.{number % 256}")
    with pytest.raises(LimitReached):
        rates.spend("ipv4:10.0.39.15")
    assert len(rates._tries) <= 4097


async def test_a_node_that_is_in_a_pool_joins_no_other(pool: Coordinator, tmp_path: Path) -> None:
    joining = node(tmp_path, "dgx")
    await joining.join(pool.address, await pool.token(), "dgx")
    error = await refusal(joining.join(pool.address, await pool.token(), "dgy"))
    assert "is in the pool lab already, as dgx" in error.message


async def test_a_node_that_left_has_no_keys_any_more(pool: Coordinator, tmp_path: Path) -> None:
    joining = node(tmp_path, "dgx")
    await joining.join(pool.address, await pool.token(), "dgx")
    left = await joining.leave()
    assert left is not None
    assert left.node == "dgx"
    assert list((tmp_path / "dgx" / "pool").iterdir()) == []
    assert await joining.leave() is None
    with pytest.raises(StateConflict, match="this node is in no pool"):
        joining.credentials()


@pytest.mark.parametrize("text", ["{", "{}", '{"pool": 1}', '"lab"', '{"node_addresses": 1}'])
async def test_a_damaged_membership_is_told_as_such(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "pool"
    folder.mkdir()
    (folder / "membership.json").write_text(text)
    (folder / "membership.json").chmod(0o600)
    with pytest.raises(ConfigError, match="is damaged"):
        await Enrolment(folder, time.time).load()


async def test_keys_that_others_can_read_are_not_used(pool: Coordinator, tmp_path: Path) -> None:
    joining = node(tmp_path, "dgx")
    await joining.join(pool.address, await pool.token(), "dgx")
    (tmp_path / "dgx" / "pool" / "membership.json").chmod(0o644)
    with pytest.raises(ConfigError, match="may be read by others"):
        await joining.load()
