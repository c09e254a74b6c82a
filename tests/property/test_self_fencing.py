"""A job that its node ends when it hears nothing, and that the coordinator starts elsewhere afterwards.

All patterns of a link that works in both directions, in one, late, or not at all, and of a node's daemon that
is away (stopped, frozen or hung), are tried, step by step, with a node whose clock is as wrong as it may be;
both sides are the functions that the daemons run, and the guard is played by its rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from gpushared.domain.jobs import attempt_log
from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.attempt_log import AttemptLog
from gpushared.domain.jobs.cluster_snapshot import ClusterSnapshot
from gpushared.domain.jobs.coordinator import handle, restore
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import (
    AttemptState,
    Cancelling,
    Ending,
    EndKind,
    Job,
    JobSpec,
    NodeName,
    Placing,
    Queued,
    Running,
)
from gpushared.domain.jobs.member import HeartbeatReport
from gpushared.domain.leases.job_attempts import GUARD_AFTER_SECONDS
from gpushared.domain.model.lease import AttemptKey, LeaseId
from tests.property.protocol_world import ACCOUNT, ADA, HALF, JOB, NOW, inventory

STEP_SECONDS = 10.0
STEPS = 16
STOP_AFTER_SECONDS = 40
FIRST, SECOND = NodeName("n0"), NodeName("n1")
KEY = AttemptKey(JOB, 1)
SPEC = JobSpec(HALF, ADA, image="x", stop_after_seconds=STOP_AFTER_SECONDS)
RULES = PoolRules(settle_seconds=0.0, plan_seconds=0.0)
SNAPSHOT = ClusterSnapshot()
"""All worlds share it; it spares work, and changes no decision."""
UP, DOWN, BOTH, LATE, NONE, AWAY = "up", "down", "both", "late", "none", "away"
"""Which direction of the first node's link works in a step: up is to the coordinator. Late: a step later.
Away: the daemon of the first node does nothing."""
GUARD_STEPS = 2
"""The guard's look, a container's grace and the kill take less than so many steps."""


@dataclass(frozen=True)
class World:
    """``contact_at``, ``armed_at`` and ``late`` are times of the node's clock, ``now`` is the pool's.

    ``late``: of a beat under way. ``armed_at``: the contact by which the guard counts.
    """

    state: PoolState
    log: AttemptLog
    now: float = NOW
    contact_at: float = 0.0
    late: float | None = None
    fenced: bool = False
    """It is being ended, which takes the grace of a stop."""
    armed_at: float = 0.0
    guard_steps: int | None = None
    """The guard ends it, and is done after so many steps."""

    @property
    def elapsed(self) -> float:
        return self.now - NOW

    def shape(self) -> object:
        job = self.state.jobs[JOB]
        heard_at = self.state.members[FIRST].heard_at
        record = self.log.records[KEY]
        state = type(job.state), job.attempts
        guard = self.armed_at, self.guard_steps
        return self.now, self.contact_at, self.late, self.fenced, guard, heard_at, state, record.state


@dataclass
class Fencing:
    """``rate``: how fast the node's clock goes beside the coordinator's."""

    rate: float = 1.0
    rules: PoolRules = RULES
    any_word_counts: bool = False
    """Whether the node takes everything that it hears for a contact; it must not."""
    has_guard: bool = True
    fences_by_daemon: bool = True
    renewed_by_life: bool = False
    """Whether the guard counts from when the daemon last renewed its deadline; it must not."""
    replaced: int = field(default=0)

    def run(self) -> None:
        """Raises AssertionError where two copies run."""
        seen: set[object] = set()
        worlds = [self.first()]
        while worlds:
            world = worlds.pop()
            if world.elapsed >= STEPS * STEP_SECONDS:
                continue
            for link in (UP, DOWN, BOTH, LATE, NONE, AWAY):
                after = self.stepped(world, link)
                self._check(after)
                if after.shape() not in seen:
                    seen.add(after.shape())
                    worlds.append(after)

    def first(self) -> World:
        """The job runs on the first node, which was just heard of."""
        state = restore(self.rules, epoch=1, now=NOW)
        for name in (FIRST, SECOND):
            state = handle(state, m.NodeEnrolled(name), NOW, SNAPSHOT).state
            hello = m.NodeRegistered(name, inventory(name), HeartbeatReport())
            state = handle(state, hello, NOW, SNAPSHOT).state
        step = handle(state, m.JobSubmitted(JOB, SPEC), NOW, SNAPSHOT)
        (send,) = (one for one in step.instructions if isinstance(one, m.Send))
        assert send.node == FIRST
        log = attempt_log.take(AttemptLog(), send.order, ACCOUNT, None, NOW).attempt_log
        log = attempt_log.changed(log, KEY, AttemptState.RUNNING, lease=LeaseId("l-1"), now=NOW)
        report = attempt_log.report_of(log.records[KEY])
        return World(handle(step.state, m.AttemptReported(FIRST, report), NOW, SNAPSHOT).state, log)

    def stepped(self, world: World, link: str) -> World:
        """A step later: the coordinator's beat, then the node, then its guard, then the coordinator."""
        now = world.now + STEP_SECONDS
        world = replace(world, now=now)
        world = self._beaten(world, link)
        world = self._looked(world, link)
        world = self._guarded(world)
        state = handle(world.state, m.NodeHeartbeat(SECOND), now, SNAPSHOT).state
        return replace(world, state=handle(state, m.PoolTick(), now, SNAPSHOT).state)

    def _beaten(self, world: World, link: str) -> World:
        clock = world.elapsed * self.rate
        arrives = world.late if world.late is not None else clock if link in (UP, BOTH) else None
        world = replace(world, late=clock if link == LATE else None)
        if arrives is not None:
            state = handle(world.state, m.NodeHeartbeat(FIRST), world.now, SNAPSHOT).state
            world = replace(world, state=state)
            if link in (BOTH, DOWN, LATE):
                world = replace(world, contact_at=max(world.contact_at, arrives))
        if self.any_word_counts and link in (BOTH, DOWN):
            world = replace(world, contact_at=clock)
        return world

    def _looked(self, world: World, link: str) -> World:
        if world.fenced:
            return self._ended(world)
        if link == AWAY:
            return world
        clock = world.elapsed * self.rate
        due = attempt_log.to_fence(world.log, world.contact_at, clock)
        fenced = self.fences_by_daemon and KEY in due
        return replace(world, fenced=fenced, armed_at=clock if self.renewed_by_life else world.contact_at)

    def _guarded(self, world: World) -> World:
        if not self.has_guard:
            return world
        if world.guard_steps is not None:
            world = replace(world, guard_steps=max(0, world.guard_steps - 1))
            return world if world.guard_steps else self._ended(world)
        due = world.armed_at + STOP_AFTER_SECONDS + GUARD_AFTER_SECONDS
        return replace(world, guard_steps=GUARD_STEPS) if world.elapsed * self.rate >= due else world

    def _ended(self, world: World) -> World:
        fenced = Ending(EndKind.FENCED, "it heard nothing")
        log = attempt_log.changed(world.log, KEY, AttemptState.ENDED, ending=fenced, now=world.now)
        return replace(world, log=log)

    def _check(self, world: World) -> None:
        job = world.state.jobs[JOB]
        second = isinstance(job.state, Placing | Running) and job.attempts > 1
        if second:
            self.replaced += 1
        still = world.log.records[KEY].state is AttemptState.RUNNING
        assert not (second and still), f"both run {world.elapsed:g} seconds after the start"


@pytest.mark.parametrize("rate", [0.99, 1.0, 1.01], ids=["slow", "right", "fast"])
def test_the_second_copy_starts_when_the_first_one_is_surely_over(rate: float) -> None:
    """Whatever the link does, and although the clocks differ by a hundredth."""
    fencing = Fencing(rate)
    fencing.run()
    assert fencing.replaced, "it must be started elsewhere in some of the patterns"


def test_a_node_that_takes_any_word_for_a_contact_is_found() -> None:
    """Where only the way down works, it hears much, and is not heard."""
    with pytest.raises(AssertionError, match="both run"):
        Fencing(any_word_counts=True).run()


def test_a_fence_that_needs_the_daemon_is_found() -> None:
    """A daemon that is away ends nothing."""
    with pytest.raises(AssertionError, match="both run"):
        Fencing(has_guard=False).run()


def test_a_guard_that_counts_from_the_daemons_life_is_found() -> None:
    """A daemon that lives and is not heard must not put the deadline off."""
    with pytest.raises(AssertionError, match="both run"):
        Fencing(renewed_by_life=True, fences_by_daemon=False).run()


def test_an_attempt_that_no_guard_watches_is_never_replaced() -> None:
    """Neither by a node of an older version, nor by one whose guard cannot be had."""
    state = Fencing().first().state
    (part,) = state.jobs[JOB].parts
    assert part.guarded
    job = replace(state.jobs[JOB], state=Running(1, (replace(part, guarded=False),), NOW))
    state = restore(RULES, epoch=2, jobs=[job], members=list(state.members.values()), now=NOW)
    state = handle(
        state, m.NodeRegistered(SECOND, inventory(SECOND), HeartbeatReport(), seen_epoch=1), NOW
    ).state
    later = handle(state, m.PoolTick(), NOW + 1e6, SNAPSHOT).state
    assert _is_running(later.jobs[JOB])
    assert later.jobs[JOB].attempts == 1


def test_a_coordinator_without_margin_is_found() -> None:
    """A stop takes its time, and nobody looks at each moment."""
    rules = replace(RULES, fence_margin_seconds=0.0, stop_grace_seconds=0, fence_drift=0.0)
    with pytest.raises(AssertionError, match="both run"):
        Fencing(rules=rules).run()


def test_a_clock_at_less_than_half_speed_is_found() -> None:
    """The promise holds for clocks that go wrong by a hundredth, not for any."""
    with pytest.raises(AssertionError, match="both run"):
        Fencing(rate=0.4).run()


@pytest.mark.parametrize("stop_after_seconds", [None, STOP_AFTER_SECONDS])
def test_an_order_without_an_answer_is_never_replaced(stop_after_seconds: int | None) -> None:
    """It may be under way as long as it likes, and would start whenever it comes."""
    spec = replace(SPEC, stop_after_seconds=stop_after_seconds)
    state = Fencing().first().state
    job = state.jobs[JOB]
    part = replace(job.parts[0], state=None, lease=None, revision=0)
    unanswered = replace(job, spec=spec, state=Placing(1, (part,), NOW))
    state = restore(RULES, epoch=2, jobs=[unanswered], members=list(state.members.values()), now=NOW)
    state = handle(
        state, m.NodeRegistered(SECOND, inventory(SECOND), HeartbeatReport(), seen_epoch=1), NOW
    ).state
    later = handle(state, m.PoolTick(), NOW + 1e6, SNAPSHOT).state
    assert isinstance(later.jobs[JOB].state, Placing)
    assert later.jobs[JOB].attempts == 1


def test_a_silent_job_that_is_kept_is_kept() -> None:
    """Without ``stop_after_seconds``, for ever."""
    job = replace(Fencing().first().state.jobs[JOB], spec=replace(SPEC, stop_after_seconds=None))
    members = list(Fencing().first().state.members.values())
    state = restore(RULES, epoch=2, jobs=[job], members=members, now=NOW)
    later = handle(state, m.PoolTick(), NOW + 1e9, SNAPSHOT).state
    assert _is_running(later.jobs[JOB])


def _is_running(job: Job) -> bool:
    assert not isinstance(job.state, Queued | Cancelling)
    return isinstance(job.state, Running)
