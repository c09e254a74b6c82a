"""The bounds that the queue promises: how long a request waits, and that the books make shares equal."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.request import LeaseClass
from gpushared.domain.scheduling.holder_index import HolderIndex
from gpushared.domain.scheduling.pass_records import PreemptionMode
from gpushared.domain.scheduling.plan import DRAIN_REST
from gpushared.domain.scheduling.preemption import PATIENCE_PART
from gpushared.domain.scheduling.projects import (
    DEFAULT_CLASSES,
    Policy,
    Project,
    Quota,
)
from gpushared.domain.scheduling.quota_usage import QuotaUsage
from gpushared.domain.scheduling.use_over_time import Interval, Usage
from tests.property.queue_world import START, QueueWorld, request_of

EXAMPLES = settings().max_examples
"""Of the profile; each example of most of these tests is days of a queue."""
HALF_LIFE = 86_400.0
STEP_SECONDS = 120
"""Decisions come that far apart at most; a queue decides whenever something ends."""
INTERVALS = st.lists(
    st.builds(
        lambda start, length, permille: Interval("p", permille, START + start, START + start + length),
        st.floats(0, 200_000),
        st.floats(0, 200_000),
        st.integers(1, 8000),
    ),
    max_size=8,
)


def _flood(world: QueueWorld, names: list[str], chance: random.Random, longest: int) -> None:
    """Every project always has something small waiting, in all classes."""
    for name in names:
        waiting = sum(one.project == name for one in world.waiting.values())
        for _ in range(waiting, 4):
            size, lease_class = chance.choice((250, 500, 1000)), chance.choice(list(LeaseClass))
            world.submit(name, request_of(size, 1, lease_class, chance.randint(60, longest)))


def _excess(world: QueueWorld, names: list[str]) -> float:
    """How much more than each other project the first one used, in GPU-seconds that count."""
    holder_index = HolderIndex(world.policy, world.places(()), world.holders.values())
    quota_usage = QuotaUsage(holder_index, world.usage, world.now)
    return sum(max(0.0, quota_usage.fair(names[0]) - quota_usage.fair(name)) for name in names)


def _given(world: QueueWorld, name: str, began: float) -> float:
    """The GPU-seconds of a project's leases that have started since."""
    ended = (
        one.permille * (one.end - one.start)
        for one in world.ended
        if one.project == name and one.start > began
    )
    held = (
        grant.compute_permille * (world.now - one.started_at)
        for one in world.holders.values()
        if one.project == name and one.started_at > began
        for grant in one.lease.grants
    )
    return (sum(ended) + sum(held)) / 1000


@example(seed=24457, projects=3, gpus=4, longest=3600, patience=1800.0)
@example(seed=2, projects=2, gpus=4, longest=3600, patience=1800.0)
@settings(max_examples=EXAMPLES // 5)
@given(
    seed=st.integers(0, 1_000_000),
    projects=st.integers(2, 5),
    gpus=st.integers(1, 4),
    longest=st.sampled_from((600, 3600, 7200)),
    patience=st.sampled_from((1800.0, 7200.0)),
)
def test_no_request_starves(seed: int, projects: int, gpus: int, longest: int, patience: float) -> None:
    """A request for the whole machine starts within the bound, however many small ones come."""
    chance = random.Random(seed)
    world = QueueWorld(Policy(patience_seconds=patience), (gpus,))
    names = [f"p{number}" for number in range(projects)]
    world.usage = world.usage.record(
        Interval(name, chance.randint(0, 4000), START - 3600, START) for name in names
    )
    for _ in range(12):
        _flood(world, names, chance, longest)
        world.decide()
        world.advance(chance.randint(1, longest))
    older = sum(one.project == names[0] for one in world.waiting.values())
    turns = (older + 1) * (patience + projects * longest)
    ahead, began = _excess(world, names), world.now
    large = world.submit(names[0], request_of(1000, gpus, LeaseClass.TRAIN, longest))
    while large in world.waiting:
        ahead_since = ahead + (projects - 1) * _given(world, names[0], began)
        assert world.now < began + turns + 2 * ahead_since / gpus + STEP_SECONDS
        _flood(world, names, chance, longest)
        world.decide()
        world.advance(chance.randint(1, STEP_SECONDS))


DRAIN_SECONDS = 14_400.0
CROWD_STEP_SECONDS = 600
LATE_SECONDS = 3 * CROWD_STEP_SECONDS + 40.0
"""A drain begins and ends with a decision, and what was lent leaves with notice and grace."""


def _busy_world(seed: int, hosts: tuple[int, ...], longest: int) -> QueueWorld:
    """Hosts full of leases whose ends nobody can foresee, though each ends within ``longest`` seconds."""
    world = QueueWorld(Policy(drain_seconds=DRAIN_SECONDS), hosts)
    chance = random.Random(seed)
    for _ in range(12):
        _crowd(world, chance, longest)
    return world


def _crowd(world: QueueWorld, chance: random.Random, longest: int) -> None:
    """Small requests without time limits always wait; what started ends after at most ``longest`` seconds."""
    while len(world.waiting) < 2 * sum(world.hosts) + 1:
        world.submit(
            f"p{chance.randrange(3)}", request_of(chance.choice((250, 500, 1000)), 1, LeaseClass.TRAIN)
        )
    world.decide()
    world.advance(chance.randint(1, CROWD_STEP_SECONDS))
    for lease, holder in list(world.holders.items()):
        ran = world.now - holder.started_at
        if ran > longest - CROWD_STEP_SECONDS or chance.random() < CROWD_STEP_SECONDS / longest:
            world.end(lease)


def _starts_within_the_bound(
    larges: Sequence[LeaseId], world: QueueWorld, chance: random.Random, longest: int
) -> None:
    """Let small requests come until the large ones have started, each within its bound."""
    began, older = world.now, len(larges) - 1
    first = (1 + DRAIN_REST) * DRAIN_SECONDS + longest + LATE_SECONDS
    each = DRAIN_REST * DRAIN_SECONDS + longest + LATE_SECONDS
    while any(large in world.waiting for large in larges):
        if world.now < began + DRAIN_SECONDS:
            waited_longer = sum(one.since < began for one in world.waiting.values())
            older = len(larges) - 1 + waited_longer
        assert world.now < began + first + older * each
        _crowd(world, chance, longest)


@settings(max_examples=EXAMPLES // 8)
@given(
    seed=st.integers(0, 1_000_000),
    hosts=st.sampled_from(((1,), (2,), (4,), (2, 2), (3, 2, 1))),
    longest=st.sampled_from((1800, 3600, 7200)),
)
def test_a_large_request_starts_though_nobody_can_foresee_an_end(
    seed: int, hosts: tuple[int, ...], longest: int
) -> None:
    """It waits for the drain, and for the longest run that began before that; whatever small ones come."""
    world = _busy_world(seed, hosts, longest)
    large = world.submit("large", request_of(1000, hosts[0], LeaseClass.TRAIN))
    _starts_within_the_bound([large], world, random.Random(seed), longest)


@settings(max_examples=EXAMPLES // 12)
@given(seed=st.integers(0, 1_000_000), longest=st.sampled_from((1800, 3600)), before=st.integers(1, 2))
def test_large_requests_are_drained_for_one_after_the_other(seed: int, longest: int, before: int) -> None:
    """Each that waits longer adds a drain and the rest after it."""
    world = _busy_world(seed, (2, 2), longest)
    larges = [world.submit(f"large{n}", request_of(1000, 2, LeaseClass.TRAIN)) for n in range(before + 1)]
    _starts_within_the_bound(larges, world, random.Random(seed), longest)


@settings(max_examples=EXAMPLES // 2)
@given(
    seed=st.integers(0, 1_000_000),
    gpus=st.integers(1, 4),
    guaranteed=st.sampled_from((500, 1000, 2000)),
    step=st.sampled_from((PreemptionMode.PAUSE, PreemptionMode.REQUEUE)),
)
def test_a_guarantee_is_kept_within_the_notice(
    seed: int, gpus: int, guaranteed: int, step: PreemptionMode
) -> None:
    """A project below its guarantee waits no longer than notice and grace while preemptible work runs.

    Where that work would be lost, the project waits for a quarter of the patience before.
    """
    chance = random.Random(seed)
    guaranteed = min(guaranteed, gpus * 1000)
    paid = Project("paid", quota=Quota(guaranteed=guaranteed))
    world = QueueWorld(Policy(projects={"paid": paid}), (gpus,), step=step)
    for number in range(gpus * 6):
        size = chance.choice((250, 500, 1000))
        world.submit(f"user{number % 3}", request_of(size, 1, LeaseClass.TRAIN))
    world.decide()
    world.advance(chance.randint(600, 90_000))
    size = min(guaranteed, 1000)
    for _ in range(guaranteed // size):
        world.submit("paid", request_of(size, 1, LeaseClass.BUILD))
    began = world.now
    world.decide()
    wait_seconds = 0.0 if step.loses_nothing else PATIENCE_PART * world.policy.patience_seconds
    world.advance(wait_seconds)
    world.decide()
    world.advance(world.policy.notice_seconds + world.policy.grace_seconds)
    held = [one for one in world.holders.values() if one.project == "paid"]
    assert len(held) == guaranteed // size
    assert all(one.started_at - began <= wait_seconds + 40.0 for one in held)


@given(intervals=INTERVALS, cuts=st.lists(st.floats(0, 1), max_size=4), order=st.randoms())
def test_books_do_not_depend_on_how_intervals_are_cut(
    intervals: list[Interval], cuts: list[float], order: random.Random
) -> None:
    """In one piece or in many, in any order, the numbers are the same."""
    pieces = []
    for one in intervals:
        at = one.start
        for cut in sorted(cuts):
            until = one.start + (one.end - one.start) * cut
            pieces.append(one._replace(start=at, end=until))
            at = until
        pieces.append(one._replace(start=at))
    order.shuffle(pieces)
    whole = Usage(HALF_LIFE).record(intervals)
    in_pieces = Usage(HALF_LIFE)
    for piece in pieces:
        in_pieces = in_pieces.record((piece,))
    assert whole.books == in_pieces.books or not intervals


@given(intervals=INTERVALS)
def test_what_still_runs_counts_as_if_it_ended_now(intervals: list[Interval]) -> None:
    """Open intervals give what they would give in the books, so a crash changes nothing."""
    now = START + 400_000.25
    running = [one._replace(end=now) for one in intervals]
    assert Usage(HALF_LIFE).decayed(now, running) == Usage(HALF_LIFE).record(running).decayed(now)


@settings(max_examples=EXAMPLES // 2)
@given(seed=st.integers(0, 1_000_000), before=st.sampled_from((300, 4000, 60_000)))
def test_a_turn_lasts_though_its_project_s_higher_priorities_need_not_wait(seed: int, before: int) -> None:
    """Also where no class runs for a least time, and whenever its GPU comes free."""
    chance = random.Random(seed)
    classes = {name: replace(rules, min_run_seconds=0.0) for name, rules in DEFAULT_CLASSES.items()}
    policy = Policy(classes=classes)
    world = QueueWorld(policy, (1,))
    world.usage = world.usage.record([Interval("bob", 90_000, START - 3600, START)])
    world.submit("ann", request_of(1000, 1, LeaseClass.BUILD, before))
    world.decide()
    low = world.submit("ann", request_of(1000, 1, LeaseClass.TRAIN))
    while low not in world.holders:
        assert world.now < START + 2 * policy.patience_seconds + before + policy.turn_seconds
        _ask_and_wait(world, chance)
    until = world.holders[low].started_at + policy.turn_seconds
    while world.now < until:
        assert not world.holders[low].leaving
        _ask_and_wait(world, chance)


def _ask_and_wait(world: QueueWorld, chance: random.Random) -> None:
    """The project's interactive work comes again and again, and some of it always waits."""
    while len(world.waiting) < 4:
        world.submit("ann", request_of(1000, 1, LeaseClass.BUILD, chance.randint(600, 1200)))
    world.decide()
    world.advance(chance.randint(1, 600))


def test_nobody_waits_for_a_victim_that_left_and_holds_gpus_elsewhere() -> None:
    """It may have found other room before the last victim has left."""
    paid = Project("paid", quota=Quota(guaranteed=2000))
    world = QueueWorld(Policy(projects={"paid": paid}), (2, 1), step=PreemptionMode.PAUSE)
    world.submit("short", request_of(1000, 1, LeaseClass.TRAIN, 620))
    world.decide()
    for _ in range(2):
        world.submit("other", request_of(1000, 1, LeaseClass.TRAIN))
    world.decide()
    world.advance(600)
    winner = world.submit("paid", request_of(1000, 2, LeaseClass.BUILD))
    world.decide()
    world.advance(world.policy.notice_seconds + world.policy.grace_seconds)
    assert sorted(one.project for one in world.holders.values()) == ["other", "paid"]
    assert winner in world.holders
