"""What one user may have at once, and that his turns leave others theirs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from gpushared.domain.model.errors import LimitReached
from gpushared.net.http_server import Exchange, Routes
from gpushared.net.identity import ask_names
from gpushared.net.limits import Shares, UserLimits, UserShare
from tests.gate.serving import ALICE, answer_json, ask, raw_client, request, serving

FEW = UserLimits(connections=2, requests=2, creates=2, body_bytes=100, slots=1)


@pytest.mark.parametrize("part", [UserShare.connection, UserShare.create])
async def test_what_is_beyond_a_bound_is_refused_until_something_ends(
    part: Callable[[UserShare], AbstractContextManager[None]],
) -> None:
    share = UserShare(FEW)
    with part(share):
        with part(share), pytest.raises(LimitReached), part(share):
            pass
        with part(share):
            pass


async def test_requests_beyond_the_places_wait_and_those_beyond_the_bound_are_refused() -> None:
    share = UserShare(FEW)
    entered = asyncio.Event()

    async def second() -> None:
        async with share.request():
            entered.set()

    async with share.request():
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0)
        assert not entered.is_set()
        with pytest.raises(LimitReached, match="2 requests"):
            async with share.request():
                pass
    await waiting
    assert entered.is_set()


async def test_a_request_that_takes_long_leaves_its_place_to_the_next_and_no_place_is_won_by_that() -> None:
    share = UserShare(UserLimits(slots=1, slot_seconds=0.01))
    order: list[str] = []

    async def short(name: str) -> None:
        async with share.request():
            order.append(name)
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    async with share.request():
        async with asyncio.timeout(30):
            await short("while the first is under way")
    order.clear()
    await asyncio.gather(short("a"), short("b"))
    assert order == ["a", "a ends", "b", "b ends"]


async def test_of_two_users_each_has_one_turn_a_pass_however_many_of_ones_wait() -> None:
    shares = Shares()
    order: list[int] = []

    async def works(uid: int) -> None:
        await shares.of(uid).turn()
        order.append(uid)

    many = [asyncio.create_task(works(1)) for _ in range(100)]
    await asyncio.sleep(0)
    await works(2)
    assert order.count(1) <= 3
    await asyncio.gather(*many)
    assert len(order) == 101


async def test_a_turn_that_is_waited_for_no_longer_is_given_to_the_next() -> None:
    share = UserShare(UserLimits())
    turns = [asyncio.create_task(share.turn()) for _ in range(4)]
    await asyncio.sleep(0)
    turns[1].cancel()
    async with asyncio.timeout(30):
        await asyncio.gather(turns[0], turns[2], turns[3])


async def test_long_work_of_one_user_is_done_one_at_a_time_with_rests_in_which_others_work() -> None:
    share, order = UserShare(UserLimits()), list[str]()

    async def works(name: str) -> None:
        async with share.long_work():
            order.append(name)
            time.sleep(0.005)  # noqa: ASYNC251 - this is what holds up everybody
            order.append(f"{name} done")

    first, second = (asyncio.create_task(works(name)) for name in "ab")
    await asyncio.sleep(0)
    async with UserShare(UserLimits()).long_work():
        assert order == ["a", "a done"]
    await asyncio.gather(first, second)
    assert order == ["a", "a done", "b", "b done"]


async def test_users_who_have_nothing_are_forgotten_and_new_limits_hold_for_those_who_have() -> None:
    shares = Shares(FEW)
    gone, kept = shares.of(1), shares.of(2)
    with kept.connection():
        shares.limits = UserLimits(connections=1)
        shares.of(3)
        assert shares.of(2) is kept
        assert shares.of(1) is not gone
        with pytest.raises(LimitReached, match="1 connections"), kept.connection():
            pass


async def test_bodies_that_are_kept_count_until_their_requests_are_over() -> None:
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def keeps(exchange: Exchange) -> None:
        await exchange.read(1000)
        reading.set()
        await go_on.wait()
        await exchange.respond(200)

    routes = Routes(json=answer_json, docker=keeps, shares=Shares(UserLimits(body_bytes=100)))
    big = request("POST", "/x", b"x" * 80)
    async with serving(routes, ALICE) as served, raw_client(served) as client:
        await client.send(big)
        await reading.wait()
        refused = await ask(served, big)
        assert (refused.status, refused.message) == (
            429,
            "the bodies of your requests hold 80 bytes already (send fewer at once, or shorter ones)",
        )
        go_on.set()
        assert (await client.reply()).status == 200
        assert (await ask(served, big)).status == 200


async def test_who_asks_the_names_for_what_is_asked_already_takes_no_thread_more() -> None:
    asked, answer = threading.Semaphore(0), threading.Event()

    def hangs(uid: int) -> int:
        asked.release()
        answer.wait()
        return uid

    hanging = [asyncio.create_task(ask_names(hangs, 1)) for _ in range(100)]
    hanging[0].cancel()
    async with asyncio.timeout(30):
        assert await ask_names(abs, -2) == 2
    answer.set()
    assert await asyncio.gather(*hanging[1:]) == [1] * 99
    assert asked.acquire(blocking=False)
    assert not asked.acquire(blocking=False)
