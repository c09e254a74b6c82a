"""What those who wait are told: codes for programs, sentences for people, times only where limits tell."""

from __future__ import annotations

from collections.abc import Sequence

from gpushared.domain.leases import events as m
from gpushared.domain.leases import forecast
from gpushared.domain.leases.explain import Waiting, waiting
from gpushared.domain.leases.granting import decisions
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.request import Caller
from gpushared.domain.model.request_spec import RequestSpec, read_request
from gpushared.domain.scheduling.outcome import Decision
from gpushared.domain.scheduling.placement.free_capacity import Reason

ALICE = Caller(1000, 1000, "alice")
SIZE = 81920 * MIB
NOW = 1000.0


def node(*gpus: str) -> NodeState:
    """GPUs by name: ``ok``, or the trouble they are in."""
    listed = (
        Gpu(GpuId(f"GPU-{at}"), at, "H100", SIZE, SIZE, None if trouble == "ok" else trouble)
        for at, trouble in enumerate(gpus)
    )
    return handle(NodeState(), m.GpusSurveyed(tuple(listed)), NOW).state


def ask(state: NodeState, *asks: str) -> NodeState:
    """Each as ``SHARE`` or ``SHARE for TIME``."""
    for text in asks:
        share, _, time = text.partition(" for ")
        request = read_request(RequestSpec(gpu=share, time=time), {})
        state = handle(state, m.RequestSubmitted(request, ALICE), NOW).state
    return state


def told(state: NodeState, *, foretold: bool = True, now: float = NOW) -> list[Waiting]:
    decided: Sequence[Decision] = decisions(state, now)
    starts = forecast.starts(state, now, decided) if foretold else None
    decided = forecast.in_order_of_start(decided, starts) if starts is not None else decided
    return [waiting(one, state, len(decided), now, starts) for one in decided]


def test_everyone_is_told_the_position_and_the_length_of_the_queue() -> None:
    """From one on."""
    state = ask(node("ok"), "1", "1", "0.5", "0.5")
    assert [(one.position, one.queue_length) for one in told(state)] == [(1, 3), (2, 3), (3, 3)]


def test_positions_are_in_the_order_in_which_requests_are_expected_to_start() -> None:
    """A small request that passes the first of the queue stands before it."""
    state = ask(node("ok", "ok"), "1 for 2h", "0.75 for 10m", "2 for 1h", "0.5 for 30m", "0.5")
    assert [(one.position, one.start_to) for one in told(state)] == [
        *((1, NOW + 600), (2, NOW + 7200), (3, NOW + 10800))
    ]
    asked = {lease.id: lease.request.time_limit_seconds for lease in state.waiting()}
    known = forecast.starts(state, NOW, decisions(state, NOW))
    ordered = forecast.in_order_of_start(decisions(state, NOW), known)
    assert [asked[one.lease] for one in ordered] == [1800, 3600, None]


def test_starts_are_told_for_every_position_from_time_limits() -> None:
    """The queue is played forward as if every lease used its whole time."""
    state = ask(node("ok"), "1 for 10m", "1 for 20m", "0.5 for 1h", "0.5 for 2h", "1 for 1m")
    assert [one.start_to for one in told(state)] == [NOW + 600, NOW + 1800, NOW + 1800, NOW + 9000]
    assert all("start unknown" not in one.text for one in told(state))


def test_without_a_forecast_only_the_head_is_told_a_start() -> None:
    """Playing the queue forward is for those who ask for it."""
    state = ask(node("ok"), "1 for 10m", "1 for 20m", "1")
    assert [one.start_to for one in told(state, foretold=False)] == [NOW + 600, None]


def test_an_unknown_start_names_how_many_leases_have_no_time_limit() -> None:
    """Those that hold something, and those that wait further ahead."""
    state = ask(node("ok"), "1", "1", "1 for 10m", "1")
    texts = [one.text.rpartition("; ")[2] for one in told(state)]
    assert texts == [
        "start unknown: 1 lease has no time limit",
        "start unknown: 2 leases have no time limit",
        "start unknown: 2 leases have no time limit",
    ]
    assert [one.start_to for one in told(state)] == [None, None, None]


def test_a_start_that_is_due_is_no_longer_told() -> None:
    """The lease that should have ended is still draining."""
    state = ask(node("ok"), "1 for 10m", "1")
    assert [one.start_to for one in told(state, now=NOW + 601)] == [None]


def test_a_sentence_stays_the_same_within_a_minute() -> None:
    """Whoever waits is told changes, and the passing of a second is none."""
    state = ask(node("ok"), "0.5 for 10m", "1 for 1m", "0.75")
    first, second = told(state, now=NOW + 1)[1], told(state, now=NOW + 50)[1]
    assert first.text == second.text
    assert first.text.endswith("(alice holds 40 GiB for at most 10m more)")


def test_refusals_are_counted_by_reason() -> None:
    """The most frequent first, each with what was found."""
    state = ask(node("ok", "ok", "is lost"), "1", "1", "0.5")
    assert told(state)[0].refusals == (
        (Reason.SHARING_MODE, 2, "is leased as a whole"),
        (Reason.GPU_UNHEALTHY, 1, "is lost"),
    )


def test_a_node_that_lost_sight_of_its_gpus_says_so() -> None:
    """And nobody is told to wait for themselves."""
    state = ask(node("ok"), "1", "1")
    state = handle(state, m.GpusSurveyed(()), NOW).state
    (one,) = told(state)
    assert one.reason is Reason.RESOURCES
    assert one.text.startswith("this node does not see any GPU at the moment")
