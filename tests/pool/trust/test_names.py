"""Names, addresses and tokens as people write them."""

from __future__ import annotations

import pytest

from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.pool.trust.certificates import check_clock, read_address
from gpushared.pool.trust.people import coordinator_host, pool_name, split_principal
from gpushared.pool.trust.token_records import (
    ApiToken,
    JoinToken,
    hash_of,
    matches,
    new_id,
    new_secret,
    read_api_token,
    read_join_token,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("dgx", "dgx:7440"),
        ("dgx:7000", "dgx:7000"),
        ("dgx.lab.example:1", "dgx.lab.example:1"),
        ("10.0.0.7", "10.0.0.7:7440"),
        ("10.0.0.7:65535", "10.0.0.7:65535"),
        ("::1", "[::1]:7440"),
        ("fe80::1:2", "[fe80::1:2]:7440"),
        ("[::1]", "[::1]:7440"),
        ("[::1]:7000", "[::1]:7000"),
        ("[fe80::1%eth0]:7000", "[fe80::1%eth0]:7000"),
    ],
)
def test_an_address_has_a_port_of_its_own_or_the_usual_one(text: str, address: str) -> None:
    assert str(read_address(text)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        ":7440",
        "dgx:",
        "dgx:0",
        "dgx:65536",
        "dgx:x",
        "a b",
        "dgx/x",
        "[::1",
        "::1]:7",
        "u@dgx",
        "dgx:-1",
    ],
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_address(text)
    assert "HOST:PORT" in caught.value.hint


def test_a_join_token_is_read_as_it_was_written_whatever_dashes_its_pool_has() -> None:
    words = JoinToken("lab-of-a-b", "d" * 52, new_id(), new_secret())
    assert read_join_token(f"  {words}\n") == words
    assert words.secret not in repr(words)


def test_an_api_token_is_read_as_it_was_written() -> None:
    words = ApiToken(new_id(), new_secret())
    assert read_api_token(str(words)) == words
    assert words.secret not in repr(words)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GSJ1",
        "GSJ2-lab-" + "a" * 52 + "-abcdefgh-" + "a" * 52,
        "GSJ1-lab-abc-def-ghi",
        "gsp_x_y",
        "x" * 10_000,
    ],
)
def test_half_a_token_is_none(text: str) -> None:
    with pytest.raises(PermissionRefused):
        read_join_token(text)
    with pytest.raises(PermissionRefused):
        read_api_token(text)


def test_secrets_are_long_differ_and_match_only_themselves() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    one, other = list(secrets)[:2]
    assert matches(one, hash_of(one))
    assert not matches(other, hash_of(one))
    assert one not in hash_of(one)


@pytest.mark.parametrize("name", ["", "Lab", "a.b", "-a", "a-", "a_b", "a" * 33, "lab/x"])
def test_a_pool_is_called_as_a_part_of_a_host_name(name: str) -> None:
    with pytest.raises(RequestError, match="cannot be a pool's name"):
        pool_name(name)
    assert coordinator_host(pool_name("lab-2")) == "coordinator.lab-2.gpushare.internal"


def test_a_principal_is_a_user_and_a_realm() -> None:
    assert split_principal("ada@Lab_2.x") == ("ada", "Lab_2.x")


@pytest.mark.parametrize("theirs", [1120.5, 879.0, float("nan"), float("inf"), 0.0])
def test_clocks_that_are_too_far_apart_are_told_apart(theirs: float) -> None:
    with pytest.raises(PermissionRefused, match="the clock of node a is"):
        check_clock("node a", theirs, 1000.0)


@pytest.mark.parametrize("theirs", [880.0, 1000.0, 1120.0])
def test_clocks_that_are_close_enough_do_not_matter(theirs: float) -> None:
    check_clock("node a", theirs, 1000.0)
