"""Notifications over random histories with crashes: each event is told once, and none is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from gpushared.domain.leases import events as m
from gpushared.domain.leases.node_machine import handle, restore
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import (
    Active,
    ContainerId,
    Ended,
    Lease,
    LeaseId,
    LeaseState,
    Paused,
    Requeued,
    Resuming,
    Starting,
    Stopped,
    Suspended,
    Suspending,
)
from gpushared.domain.model.notification import Notification, NotificationKind
from gpushared.domain.model.request import Caller, Request
from gpushared.node.runtime.lease_notifier import LeaseNotifier
from gpushared.node.runtime.loop import Loop
from gpushared.notify.outbox import NotificationOutbox
from gpushared.storage.notification_file import OutboxContents

ALICE, ROOT = Caller(1000, 1000, "alice"), Caller(0, 0, "root", trusted=True)
GPUS = tuple(Gpu(GpuId(f"GPU-{n}"), n, "H100", 81920 * MIB, 81920 * MIB) for n in range(2))
ABLE = m.Means("", checkpoint_with_mps=True, binds_late=True)
PICK = st.integers(0, 7)
SentNotification = tuple[str, NotificationKind]
COUNTED = (
    NotificationKind.GRANTED,
    NotificationKind.GIVES_WAY,
    NotificationKind.PAUSED,
    NotificationKind.RESUMED,
    NotificationKind.ENDED,
)


@dataclass
class FakeLoop:
    """The loop as the notifier sees it."""

    machine: NotifiedNode
    observers: list[Callable[[NodeState, Step], None]] = field(default_factory=list)

    @property
    def state(self) -> NodeState:
        return self.machine.state

    def now(self) -> float:
        return self.machine.now


@dataclass
class FakeOutbox:
    """An outbox whose file lags behind by what was added since the last ``flush``."""

    file: dict[tuple[str, str, str], Notification]
    waiting: list[Notification] = field(default_factory=list)
    live: Callable[[], Collection[str]] = list

    def add(self, events: Iterable[Notification], *, late: bool = False) -> None:
        self.waiting += events

    def flush(self) -> None:
        for event in self.waiting:
            key = (event.subject, str(event.kind), event.occasion)
            assert key not in self.file, f"{key} was told twice"
            self.file[key] = event
        self.waiting.clear()


class NotifiedNode(RuleBasedStateMachine):
    """A node with a notifier, and a naive model that compares each lease with itself one step before."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_800_000_000.0
        self.state = NodeState()
        self.file: dict[tuple[str, str, str], Notification] = {}
        self.journal: dict[LeaseId, Lease] = {}
        self.expected: Counter[SentNotification] = Counter()
        self.begin()
        self.send(m.GpusSurveyed(GPUS))
        self.send(m.EngineSurveyed((), self.now))

    def begin(self) -> None:
        self.loop, self.outbox = FakeLoop(self), FakeOutbox(self.file)
        self.notifier = LeaseNotifier(
            cast("Loop", self.loop), cast("NotificationOutbox", self.outbox), lambda: 600
        )
        self.notifier.begin(OutboxContents(0.0, {}, tuple(self.file), ()))

    def send(self, event: m.Event) -> None:
        self.now += 0.01
        try:
            step = handle(self.state, event, self.now)
        except GpushareError:
            return
        self.outbox.flush()  # what was added with the step before is written by now
        before, self.state = self.state, step.state
        for lease in step.changed:
            self.expect(self.journal.get(lease.id), lease)
            self.journal[lease.id] = lease
        for observe in self.loop.observers:
            observe(before, step)

    def expect(self, old: Lease | None, new: Lease) -> None:
        kind, expected = NotificationKind, self.expected
        if new.grants or (isinstance(new.state, Ended) and new.state.grants):
            expected[new.id, kind.GRANTED] = 1
        expected[new.id, kind.GIVES_WAY] = new.preemption.count
        if isinstance(new.state, Suspended | Requeued):
            expected[new.id, kind.PAUSED] += old is None or not isinstance(old.state, Suspended | Requeued)
        elif isinstance(new.state, Active | Starting | Paused):
            expected[new.id, kind.RESUMED] = expected[new.id, kind.PAUSED]
        elif isinstance(new.state, Ended):
            outcome = new.state.outcome
            own = isinstance(outcome, Stopped) and outcome.by in {new.owner_name, "nobody"}
            expected[new.id, kind.ENDED] = int(bool(expected[new.id, kind.GRANTED]) or not own)

    # --- rules -----------------------------------------------------------------------------------------

    def pick(self, number: int, *states: type[LeaseState]) -> LeaseId:
        """A lease in one of these states if there is one, and any other now and then."""
        found = [one.id for one in self.state.leases.values() if isinstance(one.state, states)]
        ids = found or [*self.state.leases, *list(self.state.ended)[-1:], LeaseId("l-none")]
        return ids[number % len(ids)]

    @rule(share=st.sampled_from((250, 500, 1000)), limit=st.sampled_from((None, 3600)))
    def a_lease_is_asked_for(self, share: int, limit: int | None) -> None:
        self.send(m.RequestSubmitted(Request(1, share, None, share, time_limit_seconds=limit), ALICE))

    @rule(number=PICK)
    def a_container_is_made(self, number: int) -> None:
        lease = self.pick(number)
        self.send(m.ClaimAsked(lease, ALICE))
        self.send(m.ContainerCreated(lease, ContainerId(f"box-of-{lease}"), "box", "image", stays=True))

    @rule(number=PICK, condition=st.sampled_from((*m.Condition, m.Condition.RUNNING, m.Condition.EXITED)))
    def a_container_is_seen(self, number: int, condition: m.Condition) -> None:
        lease = self.pick(number)
        self.send(m.ContainerSeen(ContainerId(f"box-of-{lease}"), condition, exit_code=143))

    @rule()
    def everything_goes_on(self) -> None:
        for lease in list(self.state.leases):
            self.a_container_is_made(list(self.state.leases).index(lease))
            self.send(m.ContainerSeen(ContainerId(f"box-of-{lease}"), m.Condition.RUNNING))

    @rule(idle=st.booleans())
    def the_gpus_are_sampled(self, idle: bool) -> None:
        there = frozenset(self.state.leases)
        seen = frozenset(gpu.id for gpu in GPUS)
        quiet, active = (there, frozenset[LeaseId]()) if idle else (frozenset[LeaseId](), there)
        self.send(m.GpusSampled(self.now, frozenset(), {}, seen, idle=quiet, active=active))

    @rule(number=PICK, able=st.booleans())
    def it_has_to_give_way(self, number: int, able: bool) -> None:
        self.send(m.MeansKnown(ABLE if able else m.Means(binds_late=True)))
        self.send(m.PreemptAsked(self.pick(number, Active), ROOT))

    @rule(number=PICK, deeds=st.integers(1, 4))
    def it_is_paused(self, number: int, deeds: int) -> None:
        self.send(m.MeansKnown(ABLE))
        lease = self.pick(number, Active)
        way = (
            m.PauseAsked(lease, ALICE),
            m.ContainerSuspended(lease),
            m.ResumeAsked(lease, ALICE),
            m.ContainerResumed(lease),
        )
        for deed in way[:deeds]:
            self.send(deed)

    @rule(number=PICK)
    def it_has_left_its_gpus(self, number: int) -> None:
        self.send(m.ContainerSuspended(self.pick(number, Suspending)))

    @rule(number=PICK, fails=st.booleans())
    def it_comes_back(self, number: int, fails: bool) -> None:
        lease = self.pick(number, Suspended, Resuming)
        self.send(m.ResumeAsked(lease, ALICE))
        self.send(m.ResumeFailed(lease, "no") if fails else m.ContainerResumed(lease))

    @rule(number=PICK, by=st.sampled_from((ALICE, ROOT)))
    def it_is_stopped(self, number: int, by: Caller) -> None:
        self.send(m.StopAsked(self.pick(number), by, 0))

    @rule(gpu=st.integers(0, 1), reason=st.sampled_from(("new fan", None)))
    def a_gpu_is_drained_or_undrained(self, gpu: int, reason: str | None) -> None:
        self.send(m.GpuDrainAsked(GPUS[gpu].id, ROOT, reason))

    @rule(seconds=st.sampled_from((0.0, 0.5, 5.0, 61.0, 700.0)))
    def time_passes(self, seconds: float) -> None:
        self.outbox.flush()
        self.now += seconds
        self.send(m.Tick())

    @rule()
    def the_daemon_is_killed_and_starts_again(self) -> None:
        """The events of the last step may not have reached the file."""
        live = [lease for lease in self.journal.values() if not isinstance(lease.state, Ended)]
        over = [lease for lease in self.journal.values() if isinstance(lease.state, Ended)]
        self.state = restore(NodeState(), live, self.state.next_sequence, over, dict(self.state.drained))
        self.begin()
        self.send(m.GpusSurveyed(GPUS))
        boxes = [lease for lease in live if lease.container is not None]
        sights = (m.ContainerSeen(ContainerId(f"box-of-{one.id}"), m.Condition.RUNNING) for one in boxes)
        self.send(m.EngineSurveyed(tuple(sights), self.now))

    def teardown(self) -> None:
        self.outbox.flush()
        told = Counter(
            (subject, event.kind) for (subject, _, _), event in self.file.items() if event.kind in COUNTED
        )
        assert told == Counter({key: count for key, count in self.expected.items() if count})


TestNotifications = NotifiedNode.TestCase
