from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from gpushared.domain.model.errors import GpusUnavailable, TimedOut
from gpushared.gpus.call_thread import CallThread


@pytest.fixture
async def calls() -> AsyncIterator[CallThread]:
    thread = CallThread("The part", timeout_seconds=30)
    yield thread
    await thread.close(lambda: None)


async def test_all_calls_are_made_on_one_thread_that_does_not_hold_up_the_exit(calls: CallThread):
    threads = {await calls.call(threading.current_thread) for _ in range(3)}
    assert [(thread.daemon, thread is threading.main_thread()) for thread in threads] == [(True, False)]


async def test_what_the_call_raises_reaches_its_caller_and_the_next_call_is_served(calls: CallThread):
    with pytest.raises(GpusUnavailable, match="broken"):
        await calls.call(lambda: _raise(GpusUnavailable("broken")))
    assert await calls.call(lambda: 7) == 7


async def test_a_call_whose_caller_gave_up_before_its_turn_is_not_made(calls: CallThread):
    release, made = threading.Event(), []
    first = asyncio.create_task(calls.call(release.wait))
    second = asyncio.create_task(calls.call(lambda: made.append("second")))
    await asyncio.sleep(0)
    second.cancel()
    release.set()
    assert await first
    await calls.call(lambda: made.append("third"))
    assert made == ["third"]


async def test_a_caller_that_is_cancelled_does_not_make_the_thread_count_as_hanging(calls: CallThread):
    started, release = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait()

    cancelled = asyncio.create_task(calls.call(work))
    await asyncio.to_thread(started.wait)
    cancelled.cancel()
    next_call = asyncio.create_task(calls.call(lambda: "served"))
    await asyncio.sleep(0)
    release.set()
    assert await next_call == "served"


async def test_the_last_work_of_a_thread_that_hangs_is_done_when_it_is_back():
    thread, release, done = CallThread("The part", timeout_seconds=0.05), threading.Event(), threading.Event()
    with pytest.raises(TimedOut):
        await thread.call(release.wait)
    await thread.close(done.set)
    assert not done.is_set()
    release.set()
    assert await asyncio.to_thread(done.wait, 30)


def test_a_call_that_outlives_its_event_loop_ends_quietly():
    thread, release, ended = (
        CallThread("The part", timeout_seconds=0.05),
        threading.Event(),
        threading.Event(),
    )

    async def time_out() -> None:
        with pytest.raises(TimedOut):
            await thread.call(release.wait)
        await thread.close(ended.set)

    asyncio.run(time_out())
    release.set()
    assert ended.wait(30)


def _raise(error: Exception) -> None:
    raise error
