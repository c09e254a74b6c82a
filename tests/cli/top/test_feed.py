"""The thread that asks: what it keeps of a daemon that is away, and how often it asks for what."""

from __future__ import annotations

import threading

import pytest

from gpushared.cli.top.answers import Scope
from gpushared.cli.top.feed import LONGEST_PAUSE_SECONDS, POOL_HAS_NO_HOUR, Feed
from gpushared.client import Client
from gpushared.domain.model.errors import DaemonUnavailable
from tests.cli.standin import HANG_UP, StandIn, ok, refusal
from tests.cli.top import machines

WAIT_SECONDS = 30


@pytest.fixture
def served(standin: StandIn) -> StandIn:
    standin.answers |= {
        "Gpus/List": ok({"gpus": [machines.gpu(0)], "node": "gpu-a"}),
        "Leases/List": ok({"leases": [machines.lease(1)]}),
        "History/Recent": ok(machines.recent()),
        "Jobs/Nodes": ok({"nodes": [{"name": "a", "presence": "ready"}], "pool": "lab"}),
    }
    return standin


def feed(standin: StandIn, scope: Scope | None = None, seconds: float = 2.0) -> Feed:
    return Feed(Client(standin.host), scope or Scope(), seconds, lambda: None)


def test_it_asks_for_the_lists_each_time_and_for_the_hour_once(served: StandIn) -> None:
    one = feed(served)
    for _ in range(3):
        one._ask()
    assert [len(served.asked(call)) for call in ("Gpus/List", "Leases/List", "History/Recent")] == [3, 3, 1]
    assert one.news.answers is not None
    assert one.news.answers.recent is not None


def test_the_lists_are_there_before_the_hour_is(served: StandIn) -> None:
    """The history may be slow; the first picture does not wait for it."""
    told: list[bool] = []

    def tell() -> None:
        assert one.news.answers is not None
        told.append(one.news.answers.recent is not None)

    one = Feed(Client(served.host), Scope(), 2.0, tell)
    one._ask()
    assert told == [False, True]


def test_the_hour_is_asked_for_again_while_it_is_on_the_screen(
    served: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushared.cli.top.feed.RECENT_SECONDS", 0.0)
    one = feed(served)
    one._ask()
    one.wants_hour = True
    one._ask()
    one.wants_hour = False
    one._ask()
    assert len(served.asked("History/Recent")) == 2


def test_what_was_known_stays_while_the_daemon_is_away(served: StandIn) -> None:
    one = feed(served)
    one._ask()
    known = one.news.answers
    served.answers["Leases/List"] = HANG_UP
    one._ask()
    assert one.news.answers is known
    assert "was lost" in one.news.trouble
    served.answers["Leases/List"] = ok({})
    one._ask()
    assert one.news.trouble == ""


def test_a_daemon_that_is_away_is_asked_less_and_less_often(standin: StandIn) -> None:
    standin.go_away()
    one, pauses = feed(standin), []
    for _ in range(8):
        one._ask()
        pauses.append(one._pause_seconds())
    assert pauses == [2, 4, 8, LONGEST_PAUSE_SECONDS, *[LONGEST_PAUSE_SECONDS] * 4]
    slow = feed(standin, seconds=60)
    slow._ask()
    assert slow._pause_seconds() == 60, "never more often than asked for"


def test_an_older_daemon_has_no_hour_and_all_else(served: StandIn) -> None:
    served.answers["History/Recent"] = refusal(501, "unimplemented", "there is no call History/Recent")
    one = feed(served)
    one._ask()
    assert one.news.answers is not None
    assert one.news.answers.recent_trouble == "there is no call History/Recent"
    assert one.news.trouble == ""


def test_a_pool_has_its_nodes_and_no_hour(served: StandIn) -> None:
    one = feed(served, Scope(pool=True))
    one._ask()
    answers = one.news.answers
    assert answers is not None
    assert answers.nodes is not None
    assert answers.recent_trouble == POOL_HAS_NO_HOUR
    assert served.asked("Leases/List")[0]["pool"] is True
    assert served.asked("History/Recent") == []


def test_one_picture_needs_a_daemon(standin: StandIn) -> None:
    standin.go_away()
    with pytest.raises(DaemonUnavailable):
        feed(standin).once()


def test_a_refresh_is_asked_for_at_once(served: StandIn) -> None:
    told = threading.Semaphore(0)
    one = Feed(Client(served.host), Scope(), 3600.0, told.release)
    one.start()
    served.wait_for("Leases/List", 1)
    one.refresh()
    served.wait_for("Leases/List", 2)
    assert told.acquire(timeout=WAIT_SECONDS)
