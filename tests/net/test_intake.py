"""What a call passes before it is served: so many of a caller are under way, and no more."""

from __future__ import annotations

import pytest

from gpushared.domain.model.errors import LimitReached
from gpushared.net.intake import CallsUnderWay


def test_a_caller_has_so_many_calls_under_way_and_others_theirs() -> None:
    calls = CallsUnderWay(2)
    with calls.of("ada"), calls.of("ada"):
        with (
            pytest.raises(LimitReached, match="ada has 2 calls under way already") as refused,
            calls.of("ada"),
        ):
            raise AssertionError("a third one is served")
        assert refused.value.hint
        with calls.of("bob"):
            pass
    with calls.of("ada"), calls.of("ada"):
        pass


def test_a_share_is_so_many_times_as_many() -> None:
    calls = CallsUnderWay(1)
    with (
        calls.of("node ws1", 2),
        calls.of("node ws1", 2),
        pytest.raises(LimitReached),
        calls.of("node ws1", 2),
    ):
        raise AssertionError("a third one is served")


def test_a_call_that_failed_does_not_count_any_more() -> None:
    calls = CallsUnderWay(1)
    with pytest.raises(ZeroDivisionError), calls.of("ada"):
        _ = 1 / 0
    with calls.of("ada"):
        pass
