"""Who is calling, also while the name services hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from gpushared.domain.model.errors import TimedOut
from gpushared.net import identity
from gpushared.net.identity import Identities, Peer, ask_names

NOBODYS_UID = 3_999_999_999
LOOKUPS = 8
"""More than there are threads for them."""


@pytest.fixture
def silent_name_services(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """They do not answer before the event is set, and nobody waits for them for long."""
    answer = threading.Event()
    monkeypatch.setattr(identity, "look_up", lambda *_: answer.wait())
    monkeypatch.setattr(identity, "NAME_SERVICE_SECONDS", 0.01)
    yield answer
    answer.set()


async def test_root_is_known_while_the_name_services_hang(silent_name_services: threading.Event) -> None:
    callers = [Identities(()).caller(Peer(1, uid, uid)) for uid in (*range(1, LOOKUPS), 0)]
    *users, root = await asyncio.gather(*callers)
    assert (root.name, root.trusted) == ("root", True)
    assert {(user.name == str(user.uid), user.trusted) for user in users} == {(True, False)}


async def test_lookups_that_hang_hold_up_no_other_work_of_the_daemon() -> None:
    answer = threading.Event()
    hanging = [asyncio.create_task(ask_names(answer.wait)) for _ in range(LOOKUPS)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(30):
            name = (await asyncio.to_thread(threading.current_thread)).name
    finally:
        answer.set()
    assert "names" not in name
    assert all(await asyncio.gather(*hanging))


async def test_a_user_without_a_name_goes_by_the_number_and_is_not_trusted() -> None:
    caller = await Identities({str(NOBODYS_UID)}).caller(Peer(1, NOBODYS_UID, NOBODYS_UID))
    assert (caller.name, caller.trusted) == (str(NOBODYS_UID), False)


async def test_who_belongs_to_a_trusted_group_by_the_process_is_trusted() -> None:
    """``newgrp`` and ``sg`` give a process a group; the kernel tells it."""
    trusted = Identities({"daemon"})
    assert (await trusted.caller(Peer(1, 2, 1))).trusted
    assert not (await trusted.caller(Peer(1, 2, 2))).trusted


async def test_a_lookup_that_took_too_long_is_refused_at_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(identity, "_account_of", lambda _: answer.wait())
    monkeypatch.setattr(identity, "LOOKUP_SECONDS", 0.01)
    try:
        with pytest.raises(TimedOut, match="user database does not answer for uid 2"):
            await identity.account_of(await Identities(()).caller(Peer(1, 2, 2)))
    finally:
        answer.set()
