"""Accounts as callers, by name and by uid, with the rights that they have now."""

from __future__ import annotations

import os
import pwd

import pytest

from gpushared.domain.model.errors import PermissionRefused, TimedOut
from gpushared.domain.model.request import Caller
from gpushared.net import identity
from gpushared.net.identity import Identities, SubordinateIds

NOBODY = pwd.getpwnam("nobody")


def identities(*trusted: str) -> Identities:
    return Identities(trusted, SubordinateIds(None))


@pytest.mark.parametrize("key", ["nobody", NOBODY.pw_uid])
async def test_an_account_is_found_by_its_name_and_its_uid(key: int | str) -> None:
    expected = Caller(NOBODY.pw_uid, NOBODY.pw_gid, "nobody")
    assert await identities().account(key) == expected


@pytest.mark.parametrize("key", ["root", 0])
async def test_root_is_trusted(key: int | str) -> None:
    assert (await identities().account(key)).trusted


@pytest.mark.parametrize("key", ["no-such-account", "", "nobody\0", "65534", 61009])
async def test_what_is_no_account_is_refused(key: int | str) -> None:
    with pytest.raises(PermissionRefused, match="no account of this machine has"):
        await identities().account(key)


async def test_rights_are_looked_up_again_when_the_cache_is_cleared() -> None:
    found = identities()
    assert not (await found.account("nobody")).trusted
    found.trusted_groups = frozenset({identity._group_name(NOBODY.pw_gid)})
    found.forget()
    assert (await found.account("nobody")).trusted


async def test_name_services_that_hang_let_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(identity, "NAME_SERVICE_SECONDS", 0.1)
    monkeypatch.setattr(identity, "look_up_account", lambda *_: os.read(reading, 1) and None)
    try:
        with pytest.raises(TimedOut, match="does not answer for nobody"):
            await identities().account("nobody")
    finally:
        os.close(writing)
