"""Idle leases under random looks, rules, quiet times and restarts: nothing befalls them without warning."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpushared.domain.leases import events as m
from gpushared.domain.leases.node_machine import handle, restore
from gpushared.domain.leases.node_rules import IdleAction, IdlePolicy, Rules
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import (
    Active,
    ContainerId,
    Draining,
    Idle,
    Idleness,
    Lease,
    LeaseId,
    NoticeKind,
    Suspended,
    Suspending,
)
from gpushared.domain.model.request import Caller, LeaseClass, Request

ALICE = Caller(1000, 1000, "alice")
GPU = Gpu(GpuId("GPU-0"), 0, "H100", 81920 * MIB, 81920 * MIB)
SECONDS = st.sampled_from((0.0, 100.0, 1000.0))
POLICIES = st.builds(
    IdlePolicy, SECONDS, SECONDS, st.sampled_from(IdleAction), st.sampled_from((50.0, 500.0))
)


def rules(by_day: IdlePolicy, quiet: IdlePolicy) -> Rules:
    idle = {lease_class: by_day for lease_class in LeaseClass}  # noqa: C420 - mypy reads fromkeys as Any | None
    return Rules(idle=idle, quiet_idle={LeaseClass.TRAIN: quiet})


RULES = st.builds(rules, POLICIES, POLICIES)


class IdleMachine(RuleBasedStateMachine):
    """One lease that runs; beside it what a fair judge would remember of it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.state = NodeState()
        self.id = LeaseId("")
        self.works_at = self.now
        """When it was last seen to work, or started."""
        self.told_at = self.now
        """When what it is told now was first said."""

    @initialize(rules=RULES)
    def it_runs(self, rules: Rules) -> None:
        self.state = NodeState(rules=rules)
        self.send(m.GpusSurveyed((GPU,)))
        lease = handle(self.state, m.RequestSubmitted(Request(1, 500, None, 500), ALICE), self.now).lease
        assert lease is not None
        self.send(m.RequestSubmitted(Request(1, 500, None, 500), ALICE))
        self.id = lease.id
        self.send(m.ClaimAsked(self.id, ALICE))
        self.send(m.ContainerCreated(self.id, ContainerId("box"), "box", "image"))
        self.send(m.ContainerSeen(ContainerId("box"), m.Condition.RUNNING))

    @property
    def lease(self) -> Lease:
        return self.state.find(self.id)

    @property
    def runs(self) -> bool:
        return isinstance(self.lease.state, Active)

    @rule(
        seconds=st.sampled_from((1.0, 30.0, 70.0, 600.0)), shows=st.sampled_from(("idle", "idle", "work", ""))
    )
    def a_look(self, seconds: float, shows: str) -> None:
        self.now += seconds
        mine = frozenset({self.id})
        idle = mine if shows == "idle" else frozenset()
        active = mine if shows == "work" else frozenset()
        before = self.lease
        self.send(m.GpusSampled(self.now, mine, {}, frozenset({GPU.id}), idle=idle, active=active))
        if shows == "work":
            self.works_at = self.now
        self.judge(before, shows)

    def judge(self, before: Lease, shows: str) -> None:
        """What a look may lead to, after what was said before."""
        after = self.lease
        if type(before.state) is type(after.state) or not isinstance(before.state, Active):
            return
        assert shows == "idle"
        assert before.notice is not None
        assert before.notice.kind is NoticeKind.IDLE
        assert self.now - self.told_at >= self.state.rules.preempt_notice_seconds
        assert self.told_at > self.works_at
        if isinstance(after.state, Draining):
            assert before.notice.ends
            assert isinstance(after.state.outcome, Idle)
            assert after.state.outcome.seconds <= self.now - self.works_at
        else:
            assert isinstance(after.state, Suspending)
            assert not before.notice.ends

    @rule(works=st.booleans())
    def checkpoints_are_tried(self, works: bool) -> None:
        no_checkpoint = "" if works else "no driver"
        self.send(m.MeansKnown(m.Means(no_checkpoint=no_checkpoint, checkpoint_with_mps=True)))

    @rule(quiet=st.booleans())
    def quiet_times_change(self, quiet: bool) -> None:
        self.send(m.QuietTimeChanged(quiet))

    @rule(rules=RULES)
    def the_configuration_changes(self, rules: Rules) -> None:
        self.state = replace(self.state, rules=rules)

    @rule()
    def the_daemon_starts_again(self) -> None:
        empty = NodeState(rules=self.state.rules, means=self.state.means)
        self.state = restore(empty, self.state.leases.values(), self.state.next_sequence)
        self.send(m.GpusSurveyed((GPU,)))

    @precondition(lambda self: isinstance(self.lease.state, Suspending))
    @rule(works=st.booleans())
    def it_is_suspended(self, works: bool) -> None:
        self.send(m.ContainerSuspended(self.id) if works else m.SuspendFailed(self.id, "no memory"))

    @precondition(lambda self: isinstance(self.lease.state, Suspended))
    @rule()
    def it_is_resumed(self) -> None:
        self.send(m.ResumeAsked(self.id, ALICE))
        self.send(m.ContainerResumed(self.id))
        self.works_at = self.now
        assert self.runs

    @rule()
    def it_starts_again(self) -> None:
        if self.runs:
            self.send(m.ContainerSeen(ContainerId("box"), m.Condition.RESTARTING))
            self.send(m.ContainerSeen(ContainerId("box"), m.Condition.RUNNING))
            self.works_at = self.now

    @invariant()
    def who_worked_is_neither_told_nor_lowered(self) -> None:
        if self.id and self.runs and self.works_at == self.now:
            assert (self.lease.notice, self.lease.idleness) == (None, Idleness())

    @invariant()
    def it_goes_by_itself_only_when_it_was_idle(self) -> None:
        if self.id and isinstance(self.lease.state, Suspended):
            assert not self.lease.state.wanted

    def send(self, event: m.Event) -> None:
        known = self.state.leases.get(self.id)
        before = None if known is None else known.notice
        self.state = handle(self.state, event, self.now).state
        now = self.state.leases.get(self.id)
        notice = None if now is None else now.notice
        if notice is not None and (before is None or before.ends is not notice.ends or not before.until):
            self.told_at = self.now


TestIdleMachine = IdleMachine.TestCase
