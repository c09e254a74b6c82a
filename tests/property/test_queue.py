"""The queue under a stream of small requests: the head is passed, but never held up by those who pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.leases import events as m
from gpushared.domain.leases import forecast
from gpushared.domain.leases.granting import decisions
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.gpu import Gpu
from gpushared.domain.model.lease import LeaseId, Queued
from gpushared.domain.model.request import Isolation, Request
from tests.property.worlds import CALLERS, LIMITS, REQUESTS, gpu

ROOT = CALLERS[0]
RULES = Rules(claim_seconds=10**9, max_queued_per_user=1000)


@dataclass
class Node:
    state: NodeState
    now: float = 1000.0

    def ask(self, request: Request) -> LeaseId:
        step = handle(self.state, m.RequestSubmitted(request, ROOT), self.now)
        self.state = step.state
        assert step.lease is not None
        return step.lease.id

    def end(self, lease: LeaseId) -> None:
        self.state = handle(self.state, m.ReleaseAsked(lease, ROOT), self.now).state

    def expire(self, now: float) -> None:
        self.now = now
        self.state = handle(self.state, m.Tick(), now).state

    def waits(self, lease: LeaseId) -> bool:
        return isinstance(self.state.find(lease).state, Queued)


def node(count: int) -> Node:
    gpus: tuple[Gpu, ...] = tuple(gpu(index, 81920) for index in range(count))
    return Node(handle(NodeState(rules=RULES), m.GpusSurveyed(gpus), 1000.0).state)


def small(permille: int, limit: int | None) -> Request:
    return Request(1, permille, None, permille, time_limit_seconds=limit)


SMALL = st.builds(small, st.sampled_from((50, 100, 250)), LIMITS)


def limited(request: Request) -> Request:
    """Return the request with a time limit, so that the start of those behind it can be foreseen."""
    return replace(request, time_limit_seconds=request.time_limit_seconds or 3600)


BIG = st.builds(
    lambda count: Request(count, 1000, None, 1000, isolation=Isolation.EXCLUSIVE), st.integers(1, 3)
)


@given(
    st.integers(1, 3),
    st.lists(SMALL, min_size=1, max_size=20),
    BIG,
    st.lists(SMALL, min_size=60, max_size=60),
)
def test_the_head_starts_once_the_leases_on_its_gpus_have_ended(
    gpus: int, before: list[Request], big: Request, stream: list[Request]
) -> None:
    """However many small requests keep coming, one with each lease that ends; if all have time limits."""
    world = node(gpus)
    for request in before:
        world.ask(limited(request))
    big = Request(min(gpus, big.gpu_count), 1000, None, 1000, isolation=Isolation.EXCLUSIVE)
    head = world.ask(big)
    queued_before = [lease.id for lease in world.state.waiting() if lease.id != head]
    for request in stream:
        if not world.waits(head):
            break
        world.ask(replace(request, time_limit_seconds=36_000))  # too long to end before the head starts
        first = decisions(world.state, world.now)[0]
        assert first.reservation is not None
        on_kept = [
            lease.id
            for lease in world.state.holders()
            if any(grant.gpu in first.reservation.gpus for grant in lease.grants)
        ]
        world.end(on_kept[0])
    assert not world.waits(head) or any(world.waits(one) for one in queued_before)


@given(st.lists(SMALL, min_size=1, max_size=12), st.lists(SMALL, min_size=30, max_size=30))
def test_whoever_passes_the_head_does_not_make_it_start_later(
    before: list[Request], stream: list[Request]
) -> None:
    """Its start, where time limits tell one, never moves back."""
    world = node(2)
    for request in before:
        world.ask(request)
    head = world.ask(Request(1, 1000, None, 1000, isolation=Isolation.EXCLUSIVE))
    known = float("inf")
    for request in stream:
        world.now += 1.0
        world.ask(request)
        decision = next((one for one in decisions(world.state, world.now) if one.lease == head), None)
        if decision is None or decision.reservation is None or decision.reservation.head != head:
            break
        assert decision.reservation.start_at <= known
        known = decision.reservation.start_at


@given(st.integers(1, 3), st.lists(REQUESTS, min_size=1, max_size=14))
def test_a_forecast_comes_true_when_every_lease_uses_its_whole_time(gpus: int, asked: list[Request]) -> None:
    """For all positions, as long as nobody new comes."""
    world = node(gpus)
    for request in asked:
        of_mig = request.isolation is Isolation.MIG
        if not of_mig and request.gpu_count <= gpus and all(one in world.state.gpus for one in request.gpus):
            world.ask(request)
    foretold = {lease: start.at for lease, start in forecast.starts(world.state, world.now).items()}
    assert foretold.keys() <= {lease.id for lease in world.state.waiting()}
    for at in sorted({lease.expires_at or 0.0 for lease in world.state.holders()} | set(foretold.values())):
        world.expire(max(at, world.now))
        for lease, start in foretold.items():
            assert world.waits(lease) == (start > world.now)


def test_a_forecast_of_a_long_queue_is_bounded() -> None:
    """Nobody is told a time from far behind, and nobody pays for working it out."""
    world = node(1)
    world.ask(small(1000, 60))
    for _ in range(200):
        world.ask(small(1000, 60))
    foretold = forecast.starts(world.state, world.now)
    assert len(foretold) == forecast.POSITIONS
    assert max(start.at for start in foretold.values()) == world.now + 60 * forecast.POSITIONS
