"""Reading for a limited time: what hangs holds up neither others nor itself twice."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gpushared.doctor.machine_facts import Unread
from gpushared.doctor.readers import Readers
from gpushared.domain.model.errors import EngineUnavailable


async def test_what_is_read_comes_back_as_it_is() -> None:
    assert await Readers().read("part", lambda: 3) == 3


async def test_a_reading_that_hangs_is_given_up_and_not_begun_again_until_it_is_back() -> None:
    readers, back = Readers(timeout_seconds=0.05), threading.Event()
    begun: list[int] = []

    def hang() -> bool:
        begun.append(1)
        return back.wait(30)

    first, second = await readers.read("disk", hang), await readers.read("disk", hang)
    assert isinstance(first, Unread)
    assert "no answer within 0.05 s" in first.why
    assert isinstance(second, Unread)
    assert "has not come back" in second.why
    assert len(begun) == 1
    assert await readers.read("other", lambda: "well") == "well"
    back.set()
    readers._threads["disk"].join(30)
    assert await Readers().read("disk", hang) is True


def missing() -> None:
    raise FileNotFoundError(2, "No such file or directory", "/nowhere")


def refused() -> None:
    raise EngineUnavailable("no engine", hint="start it")


def strange() -> None:
    int("many")


@pytest.mark.parametrize(
    ("work", "why", "hint"),
    [
        (missing, "/nowhere: No such file or directory", ""),
        (refused, "no engine", "start it"),
        (strange, "unknown way", ""),
    ],
)
async def test_what_goes_wrong_outside_is_told_and_not_raised(
    work: Callable[[], None], why: str, hint: str
) -> None:
    found = await Readers().read("part", work)
    assert isinstance(found, Unread)
    assert why in found.why
    assert found.hint == hint


async def test_a_bug_of_ours_is_raised() -> None:
    def bug() -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        await Readers().read("part", bug)
