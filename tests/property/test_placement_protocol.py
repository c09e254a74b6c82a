"""The placement protocol, looked through state by state with the functions that the daemons run.

Each story says what may go wrong in it and how often; within that, all orders of events are tried, up to a
number of worlds. The tests of what must not be done see to it that the search finds what it is to find.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpushared.domain.jobs import (
    attempt_log,
    job_progress,
    orders,
    recovery,
)
from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.attempt_log import AttemptLog, OrderAnswer
from gpushared.domain.jobs.coordinator import restore
from gpushared.domain.jobs.coordinator_state import PoolDraft
from gpushared.domain.jobs.job import (
    AttemptState,
    EndKind,
    Job,
    JobSpec,
    Part,
    Placing,
    Running,
)
from gpushared.domain.jobs.protocol import CancelPart, Order, Query, Report
from gpushared.domain.model.lease import AttemptKey
from tests.property.protocol_world import (
    ADA,
    HALF,
    JOB,
    NOW,
    Event,
    InvariantBroken,
    NodeSide,
    Scenario,
    Search,
    Step,
    World,
)

ONE = JobSpec(HALF, ADA, image="x", retries=1)
PAIR = JobSpec(HALF, ADA, image="x", nodes=2)

TWO = Scenario(spec=PAIR, quick=True, failures=False, most_attempts=2)

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
MOST_WORLDS = 1_000_000 if THOROUGH else 8_000
"""Most stories are through with fewer; of the others the worlds that need the fewest steps are looked at."""

STORIES = {
    "nothing goes wrong but the network": Scenario(),
    "it is cancelled, and the coordinator begins anew": Scenario(cancels=1, restarts=1),
    "its node reboots, and another one is the best place": Scenario(reboots=1, moves=1, cancels=1),
    "the coordinator begins anew twice": Scenario(restarts=2, failures=False),
    "a node is off, is said to be off, and comes back": Scenario(outages=1, moves=1, restarts=1),
    "a node is reinstalled": Scenario(reinstalls=1, cancels=1, moves=1),
    "a node is reinstalled, and the coordinator begins anew": Scenario(
        reinstalls=1, restarts=1, failures=False
    ),
    "a node is reinstalled twice": Scenario(reinstalls=2, failures=False),
    "an old store is put back": Scenario(restores=1, cancels=1, moves=1),
    "an old store is put back, and a node is off": Scenario(restores=1, outages=1, failures=False),
    "an old store is put back, and the coordinator begins anew": Scenario(
        restores=1, restarts=1, failures=False, cancels=1
    ),
    "three nodes, and each of them better once": Scenario(nodes=3, moves=1, cancels=1, failures=False),
    "a gang, and the network": TWO,
    "a gang is cancelled": replace(TWO, cancels=1),
    "a gang, and a node of it reboots": replace(TWO, reboots=1),
    "a gang, and a node of it is reinstalled": replace(TWO, reinstalls=1, cancels=1),
    "a gang, and the coordinator begins anew": replace(TWO, restarts=1),
    "a gang, and an old store is put back": replace(TWO, restores=1),
}


@pytest.fixture(autouse=True)
def _untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stories of jobs differ with every way to the same state, so that they are not kept here."""
    monkeypatch.setattr(Job, "note", lambda self, _at, _text: self)


@pytest.mark.parametrize("name", STORIES)
def test_no_job_runs_twice_nor_after_its_end_and_each_can_end(name: str) -> None:
    """Whatever is lost, doubled, late or out of order, and whoever begins anew meanwhile."""
    Search(replace(STORIES[name], most_states=MOST_WORLDS)).run()


def _finds(search: Search, *what: str) -> None:
    with pytest.raises(InvariantBroken) as found:
        search.run()
    assert found.value.what in what, str(found.value)


# --- what must not be done -----------------------------------------------------------------------------


class _WithGivingUp(Search):
    """A coordinator that takes a part for lost without being told."""

    def gives_up(self, part: Part) -> bool:
        raise NotImplementedError

    def wrongs(self, world: World) -> Iterator[tuple[str, World]]:
        coordinator, sides, sent, copy, budget = world
        job = self.coordinators.values[coordinator].jobs.get(JOB)
        if job is None or not isinstance(job.state, Placing | Running) or not self.gives_up(job.parts[0]):
            return
        after, more = self._handled(coordinator, ("give-up", job.parts[0].node, 0))
        yield f"{job.parts[0].node} is given up", (after, sides, sent | more, copy, budget)

    def handled(self, coordinator: int, event: Event) -> Step:
        if event[0] != "give-up":
            return super().handled(coordinator, event)
        draft = PoolDraft(self.coordinators.values[coordinator], NOW)
        assert event[1] is not None
        recovery.lose_part(draft.state.jobs[JOB], event[1], EndKind.LOST, "given up", draft)
        return self.settled(draft.finish().state, m.PoolTick(), None)


class _Impatient(_WithGivingUp):
    def gives_up(self, part: Part) -> bool:
        return part.state is None


class _TakesSilenceForDeath(_WithGivingUp):
    def gives_up(self, part: Part) -> bool:
        return part.state is AttemptState.RUNNING


class _WithoutTombstones(Search):
    def take(self, log: AttemptLog, order: Order) -> OrderAnswer:
        taken = super().take(log, order)
        if isinstance(order, Query | CancelPart) and log.get(order.key) is None:
            return replace(taken, attempt_log=log)
        return taken


class _WithoutMatching(Search):
    """A coordinator that takes each answer for one to what it asked last."""

    def tidied(self, world: World) -> World:
        return world

    def _event(self, what: str, node: object, number: int) -> m.PoolEvent:
        event = super()._event(what, node, number)  # type: ignore[arg-type]
        if isinstance(event, m.AttemptReported) and isinstance(event.report, Report):
            job = self.coordinators.values[self._asked].jobs.get(JOB)
            if job is not None and job.parts:
                part = job.parts[0]
                key = AttemptKey(JOB, job.attempts)
                return m.AttemptReported(
                    part.node, replace(event.report, key=key, revision=part.revision + 1)
                )
        return event

    def handled(self, coordinator: int, event: Event) -> Step:
        self._asked = coordinator
        return super().handled(coordinator, event)


class _Forgetful(Search):
    """Nodes whose logs lose what was written last when they lose power."""

    def tidied(self, world: World) -> World:
        return world

    def after_reboot(self, log: AttemptLog) -> AttemptLog:
        return AttemptLog(epoch=log.epoch, next_revision=log.next_revision)


class _ResumesAfterBoot(Search):
    """Nodes that go on, after they were off, with what had not begun before."""

    def over_with_boot(self, log: AttemptLog) -> tuple[AttemptKey, ...]:
        del log
        return ()


class _WithoutRecovery(Search):
    """A coordinator that goes on with whatever store it finds."""

    def handled(self, coordinator: int, event: Event) -> Step:
        if event[0] != "restore":
            return super().handled(coordinator, event)
        state = self.coordinators.values[coordinator]
        after = restore(
            self.rules(),
            epoch=100,
            jobs=(*state.jobs.values(), *state.ended.values()),
            members=tuple(state.members.values()),
            now=NOW,
        )
        return self.settled(after, m.PoolTick(), None)


class _SaysBeforeItWrites(Search):
    """A coordinator whose orders go out though what they say was never written."""

    def wrongs(self, world: World) -> Iterator[tuple[str, World]]:
        coordinator, sides, sent, copy, budget = world
        if JOB not in self.coordinators.values[coordinator].jobs:
            _, more = self._handled(coordinator, ("submit", None, 0))
            yield "it is placed, and the write is lost", (coordinator, sides, sent | more, copy, budget)


class _WithoutEpochs(Search):
    """Nodes that take orders of any epoch."""

    def take(self, log: AttemptLog, order: Order) -> OrderAnswer:
        return super().take(log, replace(order, epoch=max(order.epoch, log.epoch)))


WRONG = {
    "a place is given up after a time, without asking": _Impatient(Scenario(moves=1)),
    "what was asked about and never seen is not refused for ever": _WithoutTombstones(Scenario(cancels=1)),
    "an answer counts whatever it was an answer to": _WithoutMatching(Scenario(cancels=1, reboots=1)),
    "a node forgets what it wrote last": _Forgetful(Scenario(reboots=1, moves=1)),
    "an old store is put back, and nobody is asked": _WithoutRecovery(Scenario(restores=1, moves=1)),
    "a node that was truly said to be off begins what it had been told before": _ResumesAfterBoot(
        Scenario(outages=1, moves=1)
    ),
    "a silent node is replaced": _TakesSilenceForDeath(Scenario()),
    "an order is said before it is written": _SaysBeforeItWrites(Scenario(moves=1)),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_search_finds_what_is_wrong_where(name: str) -> None:
    """Each of the protocol's rules is one that it does not hold without."""
    _finds(WRONG[name], "two copies run", "it runs after it was over", "it was over twice")


def test_placing_is_safe_even_where_nodes_take_orders_of_any_epoch() -> None:
    """Attempts are never numbered twice; epochs are for what has no attempt of its own to go by."""
    _WithoutEpochs(Scenario(restarts=1, cancels=1, failures=False, most_states=MOST_WORLDS)).run()


def test_a_gang_that_starts_before_all_have_come_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a commit as soon as one node has its reservation, a part runs alone."""

    def hasty(job: Job, state: Placing, draft: PoolDraft) -> None:
        if any(part.state is AttemptState.RESERVED for part in state.parts):
            committed = draft.put(replace(job, state=replace(state, committed=True)))
            orders.send(committed, draft)

    monkeypatch.setattr(job_progress, "_gather", hasty)
    _finds(Search(TWO), "a part runs though not all were reserved")


def test_a_gang_that_keeps_its_other_parts_when_one_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest must be ended before all of it is begun anew, or old parts run beside new ones."""

    def careless(job: Job, part: Part, draft: PoolDraft) -> None:
        job_progress.requeue(job, f"{part.node} lost it", draft)

    monkeypatch.setattr(job_progress, "take_down", careless)
    _finds(Search(replace(TWO, reboots=1)), "two copies run")


# --- what the world itself promises --------------------------------------------------------------------


def test_an_attempt_log_says_the_same_again_to_the_same_order() -> None:
    """So that it does not matter how often it comes."""
    search = Search(Scenario())
    search.run()
    orders = [number for number, to_node in enumerate(search._to_node) if to_node]
    for number in orders:
        node, _ = search.messages.values[number]
        for side in range(len(search.sides.values)):
            once, _ = search._taken(side, node, number)
            assert search.taken(once, node, number)[0] == once


def test_the_searched_worlds_are_many_and_different() -> None:
    """A search that came nowhere would find nothing wrong either."""
    search = Search(Scenario(cancels=1)).run()
    ends = {search._ended(world[0]) for world in search.worlds}
    assert {type(end).__name__ for end in ends} == {"NoneType", "Succeeded", "JobFailed", "Cancelled"}
    assert any(isinstance(side, NodeSide) and side.log.records for side in search.sides.values)
    assert attempt_log.NEVER_SEEN.kind is EndKind.LOST
