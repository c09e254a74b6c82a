"""Tasks that run beside the code that started them."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gpushared.daemon.tasks import TaskSet


async def forever() -> None:
    await asyncio.Event().wait()


async def failing() -> None:
    raise ZeroDivisionError


async def test_a_task_that_is_cancelled_before_it_began_is_cleaned_up_after() -> None:
    tasks, over = TaskSet(), list[str]()
    tasks.start(forever(), over=lambda: over.append("x"))
    await tasks.cancel()
    assert (over, len(tasks)) == (["x"], 0)


async def test_an_error_that_nobody_awaits_is_logged_with_its_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = TaskSet("a connection failed")
    with caplog.at_level(logging.ERROR):
        tasks.start(failing())
        await tasks.wait()
    assert [record.message for record in caplog.records] == ["a connection failed"]


async def test_an_error_is_left_to_whoever_awaits_the_task() -> None:
    with pytest.raises(ZeroDivisionError):
        await TaskSet().start(failing())
