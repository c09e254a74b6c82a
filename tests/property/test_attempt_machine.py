"""Attempts under random events: each record tells of its lease, and what is final stays as it is."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.job import (
    AttemptState,
    Ending,
    EndKind,
    JobSpec,
    Owner,
)
from gpushared.domain.jobs.node_messages import (
    AttemptPrepared,
    Contact,
    ContactMade,
    FencesLooked,
    LaunchFailed,
    OrderTaken,
)
from gpushared.domain.jobs.protocol import (
    CancelPart,
    Commit,
    Gang,
    GiveBack,
    Order,
    Place,
    Query,
    Report,
    StaleEpoch,
)
from gpushared.domain.leases import events as m
from gpushared.domain.leases.node_machine import restore
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.model.lease import (
    Active,
    AttemptKey,
    Draining,
    Ended,
    JobId,
    LeaseState,
    Queued,
    Reserved,
    Starting,
)
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.project_accounts import ProjectAccounts, changed_rows
from tests.property.test_node_machine import NodeMachine
from tests.property.worlds import CALLERS, REQUESTS

POOL = "lab"
COORDINATOR = st.sampled_from(("", POOL))
JOB = st.integers(0, 30)
PICK = st.integers(0, 30)
EPOCH = st.sampled_from((1, 1, 1, 1, 2))
NO_PATH = Ending(EndKind.FAILED, "no such path")
STOP_AFTER = 600
ANY_LIVE = frozenset({AttemptState.RESERVED, AttemptState.RUNNING, AttemptState.PAUSED})
FITS: dict[type[LeaseState], frozenset[AttemptState]] = {
    Queued: frozenset({AttemptState.WAITING}),
    Reserved: frozenset({AttemptState.RESERVED}),
    Active: frozenset({AttemptState.RUNNING}),
    Starting: ANY_LIVE,
    Draining: ANY_LIVE,
}


def key_of(job: int) -> AttemptKey:
    return AttemptKey(JobId(f"job{job % 10}"), 1 + job // 10)


class AttemptMachine(NodeMachine):
    """The node's machine, with two coordinators beside its users, and a model of what they were told."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[tuple[str, AttemptKey], Attempt] = {}
        self.contacts: dict[str, Contact] = {}
        self.boot = 1

    # --- coordinators ----------------------------------------------------------------------------------

    @rule(
        coordinator=COORDINATOR,
        job=JOB,
        epoch=EPOCH,
        request=REQUESTS,
        wait=st.booleans(),
        gang=st.sampled_from((False, False, True)),
        interactive=st.sampled_from((False, False, True)),
        fenced=st.booleans(),
    )
    def one_is_placed(
        self,
        coordinator: str,
        job: int,
        epoch: int,
        request: Request,
        wait: bool,
        gang: bool,
        interactive: bool,
        fenced: bool,
    ) -> None:
        stop_after = STOP_AFTER if fenced else None
        owner = Owner("ada@lab", "ada")
        spec = JobSpec(request, owner, "i", interactive=interactive, stop_after_seconds=stop_after)
        place = Place(key_of(job), epoch, spec, request, wait and not gang, gang)
        self.send(OrderTaken(place, coordinator, CALLERS[1]))
        self.send(AttemptPrepared(key_of(job), coordinator))

    @rule(pick=PICK, fails=st.booleans())
    def one_is_prepared(self, pick: int, fails: bool) -> None:
        coordinator, key = self.some(pick)
        self.send(AttemptPrepared(key, coordinator, NO_PATH if fails else None))

    @rule(pick=PICK, epoch=EPOCH, which=st.integers(0, 3))
    def something_else_is_said(self, pick: int, epoch: int, which: int) -> None:
        coordinator, key = self.some(pick)
        gang = Gang(("a", "b"), 0, 29500, (1, 1))
        orders: tuple[Order, ...] = (
            Query(key, epoch),
            CancelPart(key, epoch, 5, "ada"),
            Commit(key, epoch, gang),
            GiveBack(key, epoch),
        )
        self.send(OrderTaken(orders[which], coordinator))

    @rule(pick=PICK, steps=st.integers(1, 4), code=st.sampled_from((0, 1)))
    def one_goes_on(self, pick: int, steps: int, code: int) -> None:
        """The usual way, so that deep states are common: claimed, created, running, over."""
        coordinator, key = self.some(pick)
        for _ in range(steps):
            log = self.state.attempts.get(coordinator)
            attempt = log.live.get(key) if log is not None else None
            if attempt is not None and attempt.lease is not None:
                self.a_lease_goes_on(list(self.state.leases).index(attempt.lease), 0.25, code)

    @rule(pick=PICK)
    def a_launch_fails(self, pick: int) -> None:
        coordinator, key = self.some(pick)
        self.send(LaunchFailed(key, NO_PATH, coordinator))

    @rule(ago=st.sampled_from((0.0, 1.0, 700.0)), revision=st.integers(0, 3))
    def the_pool_hears_of_the_node(self, ago: float, revision: int) -> None:
        self.send(ContactMade(POOL, self.boot_id, self.now - ago, 1, revision))

    @rule()
    def fences_are_looked_at(self) -> None:
        self.send(FencesLooked(self.boot_id, self.now))
        contact = self.state.contacts.get(POOL, Contact())
        since = contact.at if contact.boot_id == self.boot_id and contact.at is not None else 0.0
        for coordinator, attempt in self.live():
            fence = attempt.spec.stop_after_seconds if attempt.spec is not None else None
            if coordinator == POOL and fence is not None and self.now - since >= fence:
                assert attempt.ending is not None, "it runs on though nobody may know of it"

    @rule(reboot=st.booleans())
    def the_daemon_is_killed_and_starts_again(self, reboot: bool) -> None:
        self.batch = None
        self.boot += reboot
        kept = [lease for lease in self.journal.values() if not isinstance(lease.state, Ended)]
        empty = NodeState(rules=self.committed.rules, boot_id=self.boot_id)
        self.state = self.committed = restore(
            empty,
            kept,
            self.committed.next_sequence,
            drained=dict(self.committed.drained),
            accounts=ProjectAccounts(changed_rows(empty.usage, self.committed.usage)),
            records=self.records.values(),
            contacts=dict(self.contacts),
        )
        self.send(m.GpusSurveyed(self.gpus))

    # --- what is true after each step ------------------------------------------------------------------

    @invariant()
    def each_lease_of_an_attempt_is_told_of_by_its_record(self) -> None:
        for lease in self.state.leases.values():
            if lease.attempt is not None:
                attempt = self.state.attempts[lease.coordinator].live[lease.attempt]
                assert attempt.lease == lease.id
                assert attempt.state in FITS.get(type(lease.state), {AttemptState.PAUSED})

    @invariant()
    def each_record_that_lives_has_the_lease_that_it_tells_of(self) -> None:
        for coordinator, attempt in self.live():
            lease = self.state.attempt_lease(attempt)
            assert (lease is None) == (attempt.state is AttemptState.PREPARING)
            assert lease is None or (lease.coordinator, lease.attempt) == (coordinator, attempt.key)

    @invariant()
    def what_is_on_disk_is_what_is_known(self) -> None:
        if self.batch is None:
            logs = self.state.attempts.items()
            known = {(name, key): one for name, log in logs for key, one in log.records.items()}
            assert known == self.records

    def commit(self, step: Step) -> None:
        for attempt in step.attempts:
            place = (attempt.coordinator, attempt.key)
            before = self.records.get(place)
            if before is not None:
                assert not before.state.is_final, "a final record changed"
                assert before.revision < attempt.revision
            self.records[place] = attempt
        self.contacts |= step.contacts
        super().commit(step)

    def check_step(self, before: NodeState, event: m.Event, step: Step) -> None:
        """Besides: orders are answered, each by its record, and old coordinators are not obeyed."""
        super().check_step(before, event, step)
        if not isinstance(event, OrderTaken):
            return
        log = step.state.attempts[event.coordinator]
        if isinstance(step.report, StaleEpoch):
            assert event.order.epoch < step.report.epoch == log.epoch
            assert step.attempts == ()
        else:
            assert isinstance(step.report, Report)
            record = log.records[event.order.key]
            assert (step.report.state, step.report.revision) == (record.state, record.revision)

    def some(self, pick: int) -> tuple[str, AttemptKey]:
        """Mostly an attempt that lives, sometimes any."""
        live = self.live()
        if live and pick % 4:
            coordinator, attempt = live[pick % len(live)]
            return coordinator, attempt.key
        return ("", POOL)[pick % 2], key_of(pick)

    def live(self) -> list[tuple[str, Attempt]]:
        return [(name, one) for name, log in self.state.attempts.items() for one in log.live.values()]

    @property
    def boot_id(self) -> str:
        return f"b{self.boot}"


TestAttemptMachine = AttemptMachine.TestCase
