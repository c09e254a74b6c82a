"""Who goes next under random events: whatever happens, the promises hold after each step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.request import LeaseClass, Request
from gpushared.domain.scheduling.pass_records import Plan, Preemption, RunningLease
from gpushared.domain.scheduling.placement.free_capacity import free_capacities
from gpushared.domain.scheduling.projects import (
    DEFAULT_CLASSES,
    GivesWay,
    Policy,
    Project,
    Quota,
)
from gpushared.domain.scheduling.use_over_time import Interval, Usage
from tests.property.queue_world import QueueWorld, request_of

PICK = st.integers(0, 40)
PROJECTS = ("paid", "lab", "free", "new")
SIZES = st.sampled_from(((250, 1), (330, 1), (500, 1), (1000, 1), (1000, 2), (500, 2)))
QUOTAS = st.builds(
    Quota,
    st.sampled_from((0, 500, 1000, 2000)),
    st.sampled_from((None, None, 4000)),
    st.sampled_from((0, 0, 500, 1000, 1500, 2000)),
)
GIVES_WAY = st.sampled_from((GivesWay.OVER_QUOTA, GivesWay.OVER_QUOTA, GivesWay.ALWAYS, GivesWay.NEVER))


class QueueMachine(RuleBasedStateMachine):
    """Requests come, leases end, time passes, and the daemon is killed; a pass follows each of it."""

    @initialize(
        hosts=st.sampled_from(((1,), (2,), (2, 2), (1, 3))),
        quotas=st.tuples(QUOTAS, QUOTAS),
        gives_way=st.tuples(GIVES_WAY, GIVES_WAY, GIVES_WAY),
    )
    def begin(
        self,
        hosts: tuple[int, ...],
        quotas: tuple[Quota, Quota],
        gives_way: tuple[GivesWay, GivesWay, GivesWay],
    ) -> None:
        classes = {
            name: replace(DEFAULT_CLASSES[name], gives_way=way)
            for name, way in zip(LeaseClass, gives_way, strict=True)
        }
        projects = {
            name: Project(name, weight=1.0 + at, quota=quota)
            for at, (name, quota) in enumerate(zip(PROJECTS, quotas, strict=False))
        }
        self.world = QueueWorld(Policy(projects=projects, classes=classes), hosts)
        shapes = {name: list(_shapes(project.quota.fixed)) for name, project in projects.items()}
        empty = self.world.copy()
        asked = {empty.submit(name, one) for name, some in shapes.items() for one in some}
        # Where more is fixed than there is, nothing is promised.
        there = asked <= empty.pass_().grants.keys()
        self.shapes = {name: some for name, some in shapes.items() if some and there}

    # --- what happens --------------------------------------------------------------------------------------

    @rule(
        project=st.sampled_from(PROJECTS),
        size=SIZES,
        lease_class=st.sampled_from(LeaseClass),
        limit=st.sampled_from((None, 60, 3600, 20_000)),
    )
    def submit(self, project: str, size: tuple[int, int], lease_class: LeaseClass, limit: int | None) -> None:
        self.world.submit(project, request_of(*size, lease_class, limit))
        self.decide()

    @precondition(lambda self: self.world.holders)
    @rule(pick=PICK)
    def end(self, pick: int) -> None:
        names = list(self.world.holders)
        self.world.end(names[pick % len(names)])
        self.decide()

    @precondition(lambda self: self.world.waiting)
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        names = list(self.world.waiting)
        self.world.cancel(names[pick % len(names)])
        self.decide()

    @rule(seconds=st.sampled_from((1, 39, 40, 600, 3600, 7200, 90_000)))
    def wait(self, seconds: int) -> None:
        self.world.advance(seconds)
        self.decide()

    @rule()
    def crash(self) -> None:
        """Only what is stored survives: the same pass decides the same, and the books are the same."""
        world = self.world
        before = world.pass_()
        books = {name: dict(buckets) for name, buckets in world.usage.books.items()}
        world.usage = Usage(world.usage.half_life_seconds).record(reversed(world.ended))
        assert world.usage.books == books
        assert world.pass_() == before

    # --- what must hold ------------------------------------------------------------------------------------

    def decide(self) -> None:
        world = self.world
        holders, under_way = dict(world.holders), dict(world.under_way)
        made = world.decide()
        for project, shapes in self.shapes.items():
            self.what_is_fixed_starts_at_once(project, shapes)
            self.what_is_left_of_it_starts_at_once(project)
        self.nobody_is_left_without_an_answer(
            made, set(world.waiting) - {one.winner for one in made.preemptions}
        )
        for one in made.preemptions:
            self.the_winner_has_a_place(one, holders, under_way, made)
            self.the_victims_had_to_go(one, holders, made)

    def what_is_fixed_starts_at_once(self, project: str, shapes: list[Request]) -> None:
        """All of it, whatever the project itself and others did before, once its build work is over."""
        world = self.without_waiting(project)
        for lease in self.builds(project):
            world.end(lease)
        asked = {world.submit(project, shape) for shape in shapes}
        assert asked <= world.pass_().grants.keys(), "what is fixed was lent"

    def what_is_left_of_it_starts_at_once(self, project: str) -> None:
        """Beside its build work, in the parts that are kept."""
        world = self.without_waiting(project)
        left = world.policy.project(project).quota.fixed - sum(map(_size, self.builds(project).values()))
        parts = world.pass_().fixed.get(project, ())
        assert sum(part.compute_permille for part in parts) >= left
        within = [part.compute_permille for part in parts if part.compute_permille <= left]
        if within:
            lease = world.submit(project, request_of(max(within), 1, LeaseClass.BUILD))
            assert lease in world.pass_().grants

    def without_waiting(self, project: str) -> QueueWorld:
        """A copy in which the project waits for nothing."""
        world = self.world.copy()
        for lease, one in self.world.waiting.items():
            if one.project == project:
                world.cancel(lease)
        return world

    def builds(self, project: str) -> dict[LeaseId, RunningLease]:
        return {
            lease: one
            for lease, one in self.world.holders.items()
            if one.project == project and one.lease.request.lease_class is LeaseClass.BUILD
        }

    def nobody_is_left_without_an_answer(self, made: Plan, waiting: set[LeaseId]) -> None:
        assert waiting <= made.verdicts.keys()
        assert not made.grants.keys() & made.verdicts.keys()

    def the_winner_has_a_place(
        self,
        one: Preemption,
        holders: dict[LeaseId, RunningLease],
        under_way: dict[LeaseId, Preemption],
        made: Plan,
    ) -> None:
        """When all who leave have left, all that was decided fits on the GPUs together."""
        world = self.world
        assert one.winner in world.waiting
        assert one.victims
        gone = {
            victim.lease for other in (*made.preemptions, *under_way.values()) for victim in other.victims
        }
        load: Counter[str] = Counter()
        for lease, holder in world.holders.items():
            if lease not in gone:
                load.update({grant.gpu: grant.compute_permille for grant in holder.lease.grants})
        for other in world.under_way.values():
            if other.winner in world.waiting:
                load.update({grant.gpu: grant.compute_permille for grant in other.grants})
        assert all(load[grant.gpu] <= 1000 for grant in one.grants)
        assert all(victim.lease in holders for victim in one.victims)

    def the_victims_had_to_go(
        self, one: Preemption, holders: dict[LeaseId, RunningLease], made: Plan
    ) -> None:
        """Nobody goes too early, nor by their own project's equals, nor what is guaranteed to others."""
        world, policy = self.world, self.world.policy
        winner = world.waiting[one.winner]
        lost: dict[str, list[RunningLease]] = defaultdict(list)
        # Whoever goes for an earlier winner may leave room for a later one too.
        earlier = made.preemptions[: made.preemptions.index(one)]
        going = {victim.lease for other in earlier for victim in other.victims}
        for victim in one.victims:
            holder = holders[victim.lease]
            if holder.leaving or one.winner in holder.behind or victim.lease in going:
                continue
            rules = policy.classes[holder.lease.request.lease_class]
            assert rules.gives_way is not GivesWay.NEVER
            assert world.now - holder.started_at >= rules.min_run_seconds
            if holder.project == winner.project:
                assert holder.priority < winner.priority
            elif rules.gives_way is not GivesWay.ALWAYS:
                lost[holder.project].append(holder)
        for project, gone in lost.items():
            guaranteed = policy.project(project).quota.guaranteed
            sizes = [_size(holder) for holder in gone]
            before = sum(_size(holder) for holder in holders.values() if holder.project == project)
            assert before - sum(sizes) + max(sizes) > guaranteed

    @invariant()
    def nothing_is_sold_twice(self) -> None:
        capacities = free_capacities(
            (gpu for gpus in self.world.gpus().values() for gpu in gpus),
            (one.lease for one in self.world.holders.values()),
            {},
        )
        for capacity in capacities.values():
            assert capacity.free_permille >= 0
            assert capacity.free_bytes >= 0
            assert not capacity.exclusive or capacity.leases == 1

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        held: Counter[str] = Counter()
        for one in self.world.holders.values():
            held[one.project] += _size(one)
        for project, size in held.items():
            limit = self.world.policy.project(project).quota.limit
            assert limit is None or size <= limit

    @invariant()
    def the_books_are_exact(self) -> None:
        """They hold what the intervals add up to, to the millisecond; the open ones count by themselves."""
        world = self.world
        added: Counter[str] = Counter()
        for one in world.ended:
            added[one.project] += one.permille * (round(one.end * 1000) - round(one.start * 1000))
        assert {name: sum(buckets.values()) for name, buckets in world.usage.books.items()} == dict(added)
        running = [
            Interval(one.project, _size(one), one.started_at, world.now) for one in world.holders.values()
        ]
        assert world.usage.decayed(world.now, running) == world.usage.record(running).decayed(world.now)


def _shapes(fixed: int) -> Iterable[Request]:
    """What a fixed quota promises: its whole GPUs together, and the rest."""
    whole, rest = divmod(fixed, 1000)
    if whole:
        yield request_of(1000, whole, LeaseClass.BUILD)
    if rest:
        yield request_of(rest, 1, LeaseClass.BUILD)


def _size(holder: RunningLease) -> int:
    return sum(grant.compute_permille for grant in holder.lease.grants)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(settings(), max_examples=settings().max_examples // 5)
"""A step is several passes."""
