"""What a coordinator that stands by tells its callers, and how long it lets them wait."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from gpushared.client.http import from_answer
from gpushared.domain.model.errors import NotLeader
from gpushared.jobs import standby as module
from gpushared.jobs.standby import OLD_SECONDS, Standby
from gpushared.net.unary_json import failure
from tests.pool.pools import SECONDS


@pytest.fixture
def standby() -> Standby:
    return Standby("b", lambda: 1.25)


async def settled(waiting: asyncio.Task[None]) -> bool:
    """Let what can go on go on; True if it came to an end."""
    for _ in range(5):
        await asyncio.sleep(0)
    return waiting.done()


async def test_a_refusal_names_the_leader_or_says_that_there_is_none(standby: Standby) -> None:
    assert "no coordinator of the pool leads now" in standby.refusal().message
    standby.led_by("a", 1)
    refusal = standby.refusal()
    assert "b stands by, and a leads" in refusal.message
    assert "HOST:PORT,HOST:PORT" in refusal.hint
    assert refusal.leader == "a"


async def test_a_coordinator_that_etcd_does_not_answer_names_no_leader() -> None:
    standby = Standby("b", lambda: OLD_SECONDS + 1)
    standby.led_by("a", 1)
    refusal = standby.refusal()
    assert "does not know who leads: etcd has not answered it for 16 s" in refusal.message
    assert refusal.leader == ""
    assert "(it does not know who leads)" in standby.notice()


def test_a_client_of_the_unix_socket_learns_who_leads(standby: Standby) -> None:
    standby.led_by("a", 1)
    reply = failure(standby.refusal())
    error = from_answer(reply.status, reply.body, "/run/gpushared-pool/gpushared-pool.sock")
    assert isinstance(error, NotLeader)
    assert (error.leader, error.hint) == ("a", standby.refusal().hint)


async def test_a_reader_is_told_who_leads_and_how_old_the_answer_is(standby: Standby) -> None:
    assert "(no coordinator leads now); this is as it was 1.2 s ago" in standby.notice()
    standby.led_by("a", 1)
    assert "(a leads)" in standby.notice()


@pytest.mark.parametrize(
    "leaders",
    [
        pytest.param(["", "c"], id="another one after none"),
        pytest.param(["a", "c"], id="another one after one"),
        pytest.param(["a", "", "c"], id="another one after a gap"),
        pytest.param(["a", "", "a"], id="the same one again"),
        pytest.param(["a", "a"], id="the same one again, and nobody looked meanwhile"),
    ],
)
async def test_who_waits_is_refused_when_another_coordinator_leads(
    standby: Standby, leaders: list[str]
) -> None:
    epochs = itertools.accumulate(leader != "" for leader in leaders)
    (first, epoch), *between, last = zip(leaders, epochs, strict=True)
    standby.led_by(first, epoch)
    waiting = asyncio.create_task(standby.until_leading(SECONDS, epoch))
    for leader in between:
        assert not await settled(waiting)
        standby.led_by(*leader)
    assert not await settled(waiting)
    standby.led_by(*last)
    assert await settled(waiting)
    with pytest.raises(NotLeader, match=f"{leaders[-1]} leads"):
        await waiting


async def test_nobody_waits_while_a_coordinator_leads_that_was_not_asked(standby: Standby) -> None:
    standby.led_by("c", 2)
    for lost_epoch in (0, 1):
        waiting = asyncio.create_task(standby.until_leading(SECONDS, lost_epoch))
        assert await settled(waiting)
        with pytest.raises(NotLeader, match="c leads"):
            await waiting


async def test_nobody_waits_at_one_that_has_led() -> None:
    """It ends before it leads again."""
    deposed = Standby("b", lambda: 9.0, is_deposed=True)
    waiting = asyncio.create_task(deposed.until_leading(SECONDS, 0))
    assert await settled(waiting)
    with pytest.raises(NotLeader, match="does not know if it still leads: etcd has not answered it for 9 s"):
        await waiting
    assert "may not lead any more" in deposed.notice()


@pytest.mark.parametrize("leader", ["", "a"])
async def test_who_waits_goes_on_when_this_coordinator_leads(standby: Standby, leader: str) -> None:
    standby.led_by(leader, 1)
    waiting = [asyncio.create_task(standby.until_leading(SECONDS, 1)) for _ in range(3)]
    assert not await settled(waiting[0])
    standby.led_by("", 1)
    assert not await settled(waiting[0])
    standby.end()
    await asyncio.gather(*waiting)
    await standby.until_leading(SECONDS, 1)


async def test_nobody_waits_longer_than_asked_or_allowed(
    standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotLeader, match="no coordinator of the pool leads"):
        await standby.until_leading(0.0, 0)
    monkeypatch.setattr(module, "MAX_HOLD_SECONDS", 0.0)
    standby.led_by("a", 1)
    with pytest.raises(NotLeader, match="a leads"):
        await standby.until_leading(1e9, 1)
