"""The node under random events: whatever happens, in whatever order, its promises hold after each step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpushared.domain.accounting.summary import summary_of
from gpushared.domain.jobs.node_messages import AttemptPrepared
from gpushared.domain.leases import events as m
from gpushared.domain.leases.explain import count_bounds
from gpushared.domain.leases.granting import decisions
from gpushared.domain.leases.instructions import DropEdits, MakeEdits
from gpushared.domain.leases.node_machine import handle, restore
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import NodeState, Step, open_spans
from gpushared.domain.leases.queue_pass import fleet_of, quota_usage
from gpushared.domain.model.elastic import is_elastic, least, most
from gpushared.domain.model.errors import GpushareError, InvalidTransition
from gpushared.domain.model.gpu import (
    MIB,
    WHOLE_PERMILLE,
    Gpu,
    GpuId,
)
from gpushared.domain.model.lease import (
    STORY_KEPT_IN_MEMORY,
    Active,
    ComputeCap,
    ContainerId,
    Draining,
    Ended,
    Lease,
    LeaseId,
    MemoryWall,
    Paused,
    Queued,
    Reserved,
    Resuming,
    Starting,
    Suspended,
    Walls,
    WithContainer,
)
from gpushared.domain.model.request import Caller, Isolation, Request
from gpushared.domain.model.request_spec import NewSize, read_size
from gpushared.domain.model.span import Span, milliseconds
from gpushared.domain.scheduling.gpu_amounts import permille_of
from gpushared.domain.scheduling.placement.free_capacity import need_on
from gpushared.domain.scheduling.project_accounts import ProjectAccounts, changed_rows
from gpushared.domain.scheduling.projects import DAY
from gpushared.domain.scheduling.use_over_time import Interval, Usage
from gpushared.storage.history import HistoryFile
from gpushared.storage.history.records import HistoryBatch, HistoryFilter, SourceName
from tests.property.worlds import CALLERS, GIB, REQUESTS, gpu_sets

PICK = st.integers(0, 40)
CALLER = st.sampled_from(CALLERS)
CONDITION = st.sampled_from(tuple(m.Condition))
PLAIN_SIZES = st.builds(
    NewSize,
    st.just(1),
    st.sampled_from((None, 10, 100, 250, 500, 1000)),
    st.sampled_from((None, None, MIB, 2 * GIB, 7 * GIB, 20 * GIB)),
    st.sampled_from((None, 10, 250, 500, 1000)),
)
SIZE_RANGES = st.sampled_from(
    (
        read_size(gpu="0.01..0.1"),
        read_size(gpu="0.25..1"),
        read_size(gpu_memory="1m..500g"),
        read_size(gpu="0.1..0.5", gpu_memory="2g..7g"),
        read_size(gpu_compute="10%..100%"),
    )
)
SIZES = st.one_of(PLAIN_SIZES, SIZE_RANGES)
WALLS = Walls(MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)
ROOT = CALLERS[0]

GivingWay = type[m.PauseAsked | m.ResumeAsked | m.PreemptAsked]
GIVING_WAY: tuple[GivingWay, ...] = (m.PauseAsked, m.ResumeAsked, m.PreemptAsked)


class NodeMachine(RuleBasedStateMachine):
    """Drives a node, with a model of its journal beside it.

    ``state`` is what the daemon has in memory, ``journal`` what is on disk. They differ only inside a batch:
    steps that were computed, but are not committed yet and may be lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_800_000_000.0
        self.gpus: tuple[Gpu, ...] = ()
        self.state = NodeState()
        self.committed = self.state
        self.journal: dict[LeaseId, Lease] = {}
        self.batch: list[Step] | None = None
        self.spans: list[Span] = []
        self.went_back = False
        self.looked_after = False

    @initialize(gpus=gpu_sets())
    def a_daemon_starts(self, gpus: tuple[Gpu, ...]) -> None:
        self.gpus = gpus
        self.state = self.committed = NodeState(rules=Rules(max_queued=12, max_queued_per_user=9))
        self.send(m.GpusSurveyed(gpus))

    # --- users -----------------------------------------------------------------------------------------

    @rule(request=REQUESTS, caller=CALLER, number=st.integers(0, 6), immediate=st.booleans())
    def somebody_asks(self, request: Request, caller: Caller, number: int, immediate: bool) -> None:
        request_id = f"r{number}" if number < 3 else ""
        device = f"c-{number}" if number > 5 else ""
        self.send(m.RequestSubmitted(request, caller, request_id, device, immediate and number == 4))

    @rule(request=REQUESTS, caller=CALLER)
    def somebody_simply_asks(self, request: Request, caller: Caller) -> None:
        self.send(m.RequestSubmitted(request, caller))

    @rule(pick=PICK)
    def nobody_waits(self, pick: int) -> None:
        self.send(m.RequestAbandoned(self.lease(pick)))

    @rule(pick=PICK, caller=CALLER)
    def it_is_released(self, pick: int, caller: Caller) -> None:
        self.send(m.ReleaseAsked(self.lease(pick), caller))

    @rule(pick=PICK, caller=CALLER, grace=st.sampled_from((0, 10, 3600)))
    def a_stop_is_asked_for(self, pick: int, caller: Caller, grace: int) -> None:
        self.send(m.StopAsked(self.lease(pick), caller, grace))

    @rule(pick=PICK, caller=CALLER, size=SIZES)
    def it_is_resized(self, pick: int, caller: Caller, size: NewSize) -> None:
        self.send(m.ResizeAsked(self.lease(pick), caller, size))

    @rule(pick=PICK, size=SIZES, greed=st.sampled_from((0.0, 0.2, 0.9)))
    def a_lease_at_work_is_resized(self, pick: int, size: NewSize, greed: float) -> None:
        lease = self.state.leases.get(self.lease(pick))
        if lease is not None and lease.grants:
            self.sample(self.now, frozenset({lease.id} if greed else ()), {}, 0, greed)
            self.send(m.ResizeAsked(lease.id, ROOT, size))

    @rule(pick=PICK, caller=CALLER, what=st.sampled_from(GIVING_WAY))
    def it_is_paused_resumed_or_preempted(self, pick: int, caller: Caller, what: GivingWay) -> None:
        self.send(what(self.lease(pick), caller))

    @rule(pick=PICK, what=st.sampled_from((m.ContainerSuspended, m.ContainerResumed)))
    def it_has_left_its_gpus_or_is_back(
        self, pick: int, what: type[m.ContainerSuspended | m.ContainerResumed]
    ) -> None:
        self.send(what(self.lease(pick)))

    @rule(pick=PICK, what=st.sampled_from((m.SuspendFailed, m.ResumeFailed)))
    def it_could_not(self, pick: int, what: type[m.SuspendFailed | m.ResumeFailed]) -> None:
        self.send(what(self.lease(pick), "the driver says no"))

    @rule(able=st.booleans(), late=st.booleans())
    def the_nodes_means_are_known(self, able: bool, late: bool) -> None:
        self.send(m.MeansKnown(m.Means("" if able else "no", checkpoint_with_mps=True, binds_late=late)))

    @rule(pick=PICK, caller=CALLER, held=st.booleans())
    def it_is_held_or_let_go(self, pick: int, caller: Caller, held: bool) -> None:
        self.send(m.HoldAsked(self.lease(pick), caller, held))

    @rule(pick=PICK, caller=CALLER, seconds=st.sampled_from((60, 10**9)))
    def it_is_extended(self, pick: int, caller: Caller, seconds: int) -> None:
        self.send(m.ExtendAsked(self.lease(pick), caller, seconds))

    @rule(pick=PICK, caller=CALLER, priority=st.integers(-101, 101))
    def it_gets_a_priority(self, pick: int, caller: Caller, priority: int) -> None:
        self.send(m.PriorityAsked(self.lease(pick), caller, priority))

    @rule(pick=PICK, caller=CALLER)
    def it_is_claimed(self, pick: int, caller: Caller) -> None:
        self.send(m.ClaimAsked(self.lease(pick), caller))

    @rule(pick=PICK)
    def the_claim_is_dropped(self, pick: int) -> None:
        self.send(m.ClaimDropped(self.lease(pick)))

    @rule(pick=PICK, container=st.integers(0, 2), stays=st.booleans())
    def a_container_is_created(self, pick: int, container: int, stays: bool) -> None:
        box = ContainerId(f"box-{container}")
        self.send(m.ContainerCreated(self.lease(pick), box, "box", "image", stays))

    @rule(pick=PICK)
    def a_start_is_asked_for(self, pick: int) -> None:
        self.send(m.StartAsked(self.lease(pick)))

    @rule(pick=PICK)
    def a_restart_begins(self, pick: int) -> None:
        self.send(m.RestartAsked(self.lease(pick), 10))

    @rule(pick=PICK)
    def a_restart_is_done(self, pick: int) -> None:
        self.send(m.RestartDone(self.lease(pick)))

    # --- parts -----------------------------------------------------------------------------------------

    @rule(pick=PICK, condition=CONDITION, code=st.sampled_from((None, 0, 137)))
    def a_container_is_seen(self, pick: int, condition: m.Condition, code: int | None) -> None:
        self.send(self.sight(pick, condition, code))

    @rule(sights=st.lists(st.tuples(PICK, CONDITION), max_size=4), age=st.sampled_from((0.0, 0.5, 100.0)))
    def the_engine_is_surveyed(self, sights: list[tuple[int, m.Condition]], age: float) -> None:
        there = [self.sight(pick, condition, 0) for pick, condition in sights]
        there = [one for one in there if one.condition is not m.Condition.GONE]
        self.send(m.EngineSurveyed(tuple(there), self.now - age))

    @rule()
    def a_survey_finds_everything_running(self) -> None:
        there = (lease for lease in self.state.leases.values() if lease.container is not None)
        sights = (m.ContainerSeen(_box(one), m.Condition.RUNNING, one.device_name) for one in there)
        self.send(m.EngineSurveyed(tuple(sights), self.now))

    @rule(pick=PICK)
    def edits_are_made(self, pick: int) -> None:
        self.send(m.EditsMade(self.lease(pick), WALLS))

    @rule(pick=PICK)
    def edits_fail(self, pick: int) -> None:
        self.send(m.EditsFailed(self.lease(pick), "no MPS"))

    @rule(troubles=st.lists(st.sampled_from((None, None, "is lost")), min_size=4, max_size=4))
    def gpus_are_surveyed(self, troubles: list[str | None]) -> None:
        self.send(m.GpusSurveyed(tuple(map(_in_trouble, self.gpus, troubles))))

    @rule(kept=st.integers(0, 15))
    def some_gpus_vanish(self, kept: int) -> None:
        self.send(m.GpusSurveyed(tuple(gpu for gpu in self.gpus if kept >> gpu.index & 1)))

    @rule(
        age=st.sampled_from((0.0, 0.0, 0.5, 100.0)),
        busy=st.integers(0, 255),
        mute=st.integers(0, 15),
        stray=st.sampled_from((0, 0, GIB, 30 * GIB)),
        greed=st.sampled_from((0.5, 1.0, 1.0, 3.0)),
    )
    def gpus_are_sampled(self, age: float, busy: int, mute: int, stray: int, greed: float) -> None:
        there = frozenset(lease for at, lease in enumerate(self.state.leases) if busy >> at % 8 & 1)
        quiet = {gpu.id: "does not answer" for gpu in self.gpus if mute >> gpu.index & 1}
        self.sample(self.now - age, there, quiet, stray, greed)

    @rule(gpu=PICK, xid=st.sampled_from((31, 31, 45, 79)), lost=st.booleans(), busy=st.integers(0, 255))
    def a_gpu_errs(self, gpu: int, xid: int, lost: bool, busy: int) -> None:
        one = self.gpus[gpu % len(self.gpus)].id
        there = frozenset(lease for at, lease in enumerate(self.state.leases) if busy >> at % 8 & 1)
        self.sample(self.now, there, {one: "is lost"} if lost else {}, 0, lost=lost, xids={one: (xid,)})

    @rule(gpu=PICK, hit=st.integers(0, 255), culprit=st.sampled_from((None, 0, 1, 2, 3)))
    def a_server_is_in_a_fault(self, gpu: int, hit: int, culprit: int | None) -> None:
        victims = [lease for at, lease in enumerate(self.state.leases) if hit >> at % 8 & 1]
        by = victims[culprit] if culprit is not None and culprit < len(victims) else None
        one = self.gpus[gpu % len(self.gpus)].id
        self.send(m.ServerFaulted((one,), frozenset(victims), by))

    @rule(gpu=PICK, caller=CALLER, reason=st.sampled_from(("new fan", "", None, None)))
    def somebody_drains(self, gpu: int, caller: Caller, reason: str | None) -> None:
        self.send(m.GpuDrainAsked(self.gpus[gpu % len(self.gpus)].id, caller, reason))

    @rule(seconds=st.sampled_from((0.0, 0.5, 5.0, 61.0, 700.0, 4000.0, -30.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.went_back |= seconds < 0
        self.send(m.Tick())

    # --- the usual way, so that deep states are common -----------------------------------------------------

    @rule(pick=PICK, small=st.sampled_from((0.0, 0.25)), code=st.sampled_from((0, 1)))
    def a_lease_goes_on(self, pick: int, small: float, code: int) -> None:
        self.now += small
        lease = self.state.leases.get(self.lease(pick))
        match lease.state if lease else None:
            case Reserved(claimed=False) if lease:
                self.send(m.ClaimAsked(lease.id, Caller(lease.owner_uid, 0, lease.owner_name)))
            case Reserved() if lease:
                self.send(
                    m.ContainerCreated(lease.id, ContainerId(f"box-of-{lease.id}"), "box", "image", True)
                )
            case Starting() | Active() | Paused() | Draining(exited=False) if lease:
                up = isinstance(lease.state, Starting)
                condition = m.Condition.RUNNING if up else m.Condition.EXITED
                self.send(m.ContainerSeen(_box(lease), condition, lease.device_name, code))
            case Draining():
                self.sample(self.now, frozenset(), {}, 0)
            case _:
                self.send(m.Tick())

    # --- interruptions ---------------------------------------------------------------------------------

    @precondition(lambda self: self.batch is None)
    @rule()
    def a_batch_begins(self) -> None:
        self.batch = []

    @precondition(lambda self: self.batch is not None)
    @rule()
    def the_batch_is_written(self) -> None:
        steps, self.batch = self.batch, None
        for step in steps or ():
            self.commit(step)

    @precondition(lambda self: self.batch is not None)
    @rule()
    def the_batch_cannot_be_written(self) -> None:
        self.batch = None
        self.state = self.committed

    @rule(surveyed_first=st.booleans(), older=st.booleans())
    def the_daemon_is_killed_and_starts_again(self, surveyed_first: bool, older: bool) -> None:
        """``older``: with a journal of the release before, in which a lease's container says less."""
        self.batch = None
        kept = [lease for lease in self.journal.values() if not isinstance(lease.state, Ended)]
        kept = [replace(lease, created_grants=()) if older else lease for lease in kept]
        empty = NodeState(rules=self.committed.rules)
        drained = dict(self.committed.drained)
        accounts = ProjectAccounts(changed_rows(empty.usage, self.committed.usage))
        self.state = self.committed = restore(
            empty, reversed(kept), self.committed.next_sequence, drained=drained, accounts=accounts
        )
        assert {one.id: one.grants for one in kept if one.grants} == {
            one.id: one.grants for one in self.state.holders()
        }
        if surveyed_first:
            self.send(m.GpusSurveyed(self.gpus))

    # --- what is true after each step ------------------------------------------------------------------

    @invariant()
    def no_gpu_is_oversold(self) -> None:
        for gpu in self.gpus:
            held = [(one, g) for one in self.state.leases.values() for g in one.grants if g.gpu == gpu.id]
            assert sum(grant.memory_bytes for _, grant in held) <= gpu.leasable_bytes
            assert sum(grant.compute_permille for _, grant in held) <= WHOLE_PERMILLE
            if any(lease.request.wants_whole_gpus for lease, _ in held):
                assert len(held) == 1

    @invariant()
    def instances_go_whole_to_who_asked_for_them_and_to_nobody_else(self) -> None:
        known = {gpu.id: gpu for gpu in self.gpus}
        for lease in self.state.holders():
            of_mig = lease.request.isolation is Isolation.MIG
            for grant in lease.grants:
                gpu = known[grant.gpu]
                assert not gpu.split
                assert of_mig == (gpu.parent is not None)
                if gpu.mig is not None:
                    request = lease.request
                    assert grant.compute_permille == WHOLE_PERMILLE
                    assert (request.memory_permille or 0) <= gpu.mig.memory_permille
                    assert (request.compute_permille or 0) <= gpu.mig.compute_permille

    @invariant()
    def each_holder_has_what_it_asked_for(self) -> None:
        known = {gpu.id: gpu for gpu in self.gpus}
        for lease in self.state.holders():
            request = lease.request
            where = [grant.gpu for grant in lease.grants]
            fewest, greatest = count_bounds(request)
            assert fewest <= len(set(where)) == len(where) <= greatest
            assert not request.gpus or set(where) == set(request.gpus)
            for grant in lease.grants:
                low, high = (need_on(end(request), known[grant.gpu]) for end in (least, most))
                assert low.compute_permille <= grant.compute_permille <= high.compute_permille
                assert max(1, low.memory_bytes) <= grant.memory_bytes
                assert request.wants_whole_gpus or grant.memory_bytes <= high.memory_bytes

    @invariant()
    def nothing_goes_on_where_a_gpu_is_sick(self) -> None:
        """Once time has passed or the GPUs were looked at; before the engine's survey nobody knows."""
        sick = {gpu for gpu, drained in self.state.drained.items() if drained.sick}
        for lease in self.state.holders():
            if any(grant.gpu in sick for grant in lease.grants) and self.looked_after:
                assert isinstance(lease.state, Draining | Reserved)
                assert isinstance(lease.state, Draining) or not self.state.engine_surveyed

    @invariant()
    def nobody_is_started_again_more_often_than_asked_for(self) -> None:
        for lease in self.state.leases.values():
            assert lease.health.restarts <= lease.request.restart_on_fault

    @invariant()
    def containers_and_devices_belong_to_one_lease(self) -> None:
        live = self.state.leases.values()
        containers = Counter(lease.container for lease in live if lease.container is not None)
        assert not containers or max(containers.values()) == 1
        devices = Counter(lease.device_name for lease in live)
        assert not devices or max(devices.values()) == 1

    @invariant()
    def it_is_known_what_each_container_was_given(self) -> None:
        """Of one that runs without its lease's grants, an older journal does not say it."""
        for lease in self.state.leases.values():
            if lease.container is not None and not (isinstance(lease.state, Draining) and not lease.grants):
                assert lease.created_grants
                assert {grant.gpu for grant in (*lease.created_grants, *lease.grants)} <= lease.container_gpus

    @invariant()
    def the_history_and_the_accounts_of_fair_share_agree_to_the_millisecond(self) -> None:
        """The spans that were written, with those that are open, say what the projects' accounts say."""
        if self.batch is not None:
            return
        known = [*self.spans, *open_spans(self.state, self.now)]
        found = Usage(DAY).record(
            Interval(span.project, span.permille, span.start_ms / 1000, span.end_ms / 1000)
            for span in known
            if span.gpu is not None
        )
        running = [
            Interval(lease.payer, permille_of(lease.grants, self.state.gpus), lease.holds_since, self.now)
            for lease in self.state.holders()
            if lease.holds_since is not None
        ]
        assert found.prune(self.now).books == self.state.usage.record(running).prune(self.now).books

    @invariant()
    def the_history_and_the_quotas_agree_on_what_each_project_holds(self) -> None:
        held = Counter[str]()
        began = [lease.holds_since or 0.0 for lease in self.state.holders()]
        for span in open_spans(self.state, max([self.now, *began]) + 1):
            held[span.project] += span.permille
        places = fleet_of(self.state)
        quotas = quota_usage(self.state, places, self.now)
        assert {one: held[one] for one in held if held[one]} == {
            lease.payer: quotas.held(lease.payer) for lease in self.state.holders()
        }

    @invariant()
    def the_queue_keeps_its_order(self) -> None:
        order = [lease.sequence for lease in self.state.leases.values()]
        assert order == sorted(order)
        assert all(lease.sequence < self.state.next_sequence for lease in self.state.leases.values())

    @invariant()
    def every_waiting_lease_has_a_reason(self) -> None:
        decided = decisions(self.state, self.now)
        assert sorted(one.lease for one in decided) == sorted(lease.id for lease in self.state.waiting())
        assert all(one.reason is not None for one in decided if not one.grants)

    def check_history(self) -> None:
        """The history's file says the same, in whatever pieces it was written, and how often."""
        open_now = open_spans(self.state, self.now)
        leases = tuple(summary_of(replace(lease, container_name="")) for lease in self.journal.values())
        with TemporaryDirectory() as folder:
            history = HistoryFile(Path(folder) / "history.db", busy_seconds=1.0)
            numbered = list(enumerate(self.spans, start=1))
            for begin in range(0, len(numbered) + 1, 7):
                piece = tuple(numbered[max(0, begin - 2) : begin + 7])
                source = SourceName("box", 1)
                now_ms = milliseconds(self.now)
                history.write(HistoryBatch(source, now_ms, 0, (), leases, piece, tuple(open_now)))
            held = Counter[str]()
            for one in history.accounts(HistoryFilter()):
                held[one.project] += one.account.held_permille_ms
            waited = {one.lease: one.waited_ms for one in history.waits(HistoryFilter()) if one.waited_ms}
            history.close()
        books, waits = Counter[str](), Counter[LeaseId]()
        for span in (*self.spans, *open_now):
            amount = span.end_ms - span.start_ms
            if span.gpu is None:
                waits[span.lease] += amount
            else:
                books[span.project] += span.permille * amount
        assert held == books
        assert waited == waits

    def teardown(self) -> None:
        """Once all trouble is over and all who hold something end, the whole queue has its turn."""
        # A lease's spans lie within its own time, and the daemon's clock never goes back.
        if self.batch is None and not self.went_back:
            self.check_history()
        self.send(m.GpusSurveyed(self.gpus))
        self.send(m.EngineSurveyed((), self.now - 1000.0))
        self.now += 100.0
        self.sample(self.now, frozenset(), {}, 0)
        for gpu in self.gpus:
            self.send(m.GpuDrainAsked(gpu.id, ROOT, None))
        self.sample(self.now, frozenset(), {}, 0)
        for lease in self.state.leases.values():
            self.send(m.HoldAsked(lease.id, ROOT, held=False))
            if isinstance(lease.state, Suspended):
                self.send(m.ResumeAsked(lease.id, ROOT))
        for _ in range(2 * len(self.state.leases) + 2):
            for lease in self.state.holders():
                self.send(m.StopAsked(lease.id, ROOT, 0))
                if lease.container is not None:
                    self.send(m.ContainerSeen(lease.container, m.Condition.GONE))
            self.sample(self.now, frozenset(), {}, 0)
        assert not self.state.leases, "somebody waits for ever"

    # --- helpers ---------------------------------------------------------------------------------------

    def lease(self, pick: int) -> LeaseId:
        """Mostly a live lease, sometimes one that is over or never was."""
        ids = [*self.state.leases, *list(self.state.ended)[-2:], LeaseId("l-none")]
        return ids[pick % len(ids)]

    def sight(self, pick: int, condition: m.Condition, code: int | None) -> m.ContainerSeen:
        """Of a lease's own container, of one that bears only its label, or of a stranger's."""
        lease = self.state.leases.get(self.lease(pick))
        container = ContainerId(f"box-{pick % 3}")
        if lease is not None and lease.container is not None:
            container = lease.container
        return m.ContainerSeen(container, condition, lease.device_name if lease else "", code, "box", "image")

    def sample(
        self,
        at: float,
        busy: frozenset[LeaseId],
        quiet: dict[GpuId, str],
        stray_bytes: int,
        greed: float = 1.0,
        *,
        lost: bool = False,
        xids: dict[GpuId, tuple[int, ...]] | None = None,
    ) -> None:
        """``lost``: the quiet ones will never answer again."""
        used = {
            lease: {grant.gpu: int(grant.memory_bytes * greed) for grant in self.state.leases[lease].grants}
            for lease in busy
        }
        answered = frozenset(gpu.id for gpu in self.gpus) - quiet.keys()
        strays = {self.gpus[0].id: stray_bytes}
        gone = frozenset(quiet) if lost else frozenset()
        self.send(m.GpusSampled(at, busy, strays, answered, quiet, used, xids=xids or {}, lost=gone))

    def send(self, event: m.Event) -> None:
        before = self.state
        held = dict(before.leases)
        step = _step(before, event, self.now)
        assert held == before.leases, "a step touched the state it came from"
        if step is None:
            return
        self.check_step(before, event, step)
        self.looked_after = isinstance(event, m.Tick | m.GpusSampled)
        self.state = step.state
        if self.batch is None:
            self.commit(step)
        else:
            self.batch.append(step)

    def commit(self, step: Step) -> None:
        for lease in step.changed:
            known = self.journal.get(lease.id)
            assert known is None or not isinstance(known.state, Ended), "a lease that was over came back"
            assert known is None or known.sequence == lease.sequence
            self.journal[lease.id] = lease
        self.committed = step.state
        self.spans += step.spans
        numbers = [lease.sequence for lease in self.journal.values()]
        assert len(set(numbers)) == len(numbers)

    def check_step(self, before: NodeState, event: m.Event, step: Step) -> None:
        replayed = dict(before.leases)
        for lease in step.changed:
            if isinstance(lease.state, Ended):
                replayed.pop(lease.id, None)
                assert step.state.ended[lease.id] == lease
            else:
                replayed[lease.id] = lease
        assert list(replayed.items()) == list(step.state.leases.items())
        _check_entries(before, step)
        _check_edits(before, event, step)
        new = step.state.leases.keys() | step.state.ended.keys()
        new -= before.leases.keys() | before.ended.keys()
        assert len(new) == step.state.next_sequence - before.next_sequence <= 1
        assert not new or isinstance(event, m.RequestSubmitted | AttemptPrepared)
        for lease in step.changed:
            old = before.leases.get(lease.id)
            if old is not None and old.grants and lease.grants and not _is_resize_of(event, lease):
                assert old.grants == lease.grants, "what was granted changed"
        if isinstance(event, m.ResizeAsked) and step.changed:
            self.check_resize(before, event, step)
        self.check_fresh(before, step)

    def check_resize(self, before: NodeState, event: m.ResizeAsked, step: Step) -> None:
        """It stays where it is, over what it uses, and off what the head waits for."""
        old, new = before.leases[event.lease], step.state.leases[event.lease]
        assert event.caller.trusted or event.caller.uid == old.owner_uid
        assert type(old.state) is type(new.state) or not old.grants
        if not old.grants:
            return
        assert [grant.gpu for grant in old.grants] == [grant.gpu for grant in new.grants]
        raised = set()
        for was, now in zip(old.grants, new.grants, strict=True):
            used = before.use.used_bytes.get(old.id, {}).get(was.gpu, 0)
            if now.memory_bytes < was.memory_bytes and isinstance(old.state, WithContainer):
                assert not used or used < now.memory_bytes
            if now.memory_bytes > was.memory_bytes or now.compute_permille > was.compute_permille:
                raised.add(was.gpu)
        for decision in decisions(before, self.now):
            kept = decision.reservation
            if kept is not None and raised & kept.gpus:
                assert (old.expires_at or kept.start_at + 1) <= kept.start_at < float("inf")

    def check_fresh(self, before: NodeState, step: Step) -> None:
        """Nobody is put on a GPU that is in trouble or drained."""
        state = step.state
        held = {lease.id for lease in before.holders()}
        made = (i.lease for i in step.instructions if isinstance(i, MakeEdits))
        fresh = [state.leases[one] for one in made if one not in held]
        assert all(state.gpus[grant.gpu].trouble is None for lease in fresh for grant in lease.grants)
        assert all(state.drain_of(grant.gpu) is None for lease in fresh for grant in lease.grants)


def _step(state: NodeState, event: m.Event, now: float) -> Step | None:
    """The step, or None where a rule refused; a bug of ours passes through."""
    try:
        return handle(state, event, now)
    except InvalidTransition:
        raise
    except GpushareError as error:
        refusal = error
    assert refusal.message
    assert refusal.hint, f"no hint beside {refusal.message!r}"
    return None


def _check_entries(before: NodeState, step: Step) -> None:
    written: dict[LeaseId, list[object]] = {lease.id: [] for lease in step.changed}
    for lease_id, entry in step.entries:
        written[lease_id].append(entry)
    for lease in step.changed:
        old = before.leases.get(lease.id)
        story = [*(old.story if old else ()), *written[lease.id]]
        assert written[lease.id]
        assert list(lease.story) == story[-STORY_KEPT_IN_MEMORY:]


def _is_resize_of(event: m.Event, lease: Lease) -> bool:
    return isinstance(event, m.ResizeAsked) and event.lease == lease.id


def _told(lease: Lease) -> tuple[object, ...]:
    """What a container is told of its size."""
    request = lease.request
    return lease.grants, (least(request), most(request)) if is_elastic(request) else None


def _check_edits(before: NodeState, event: m.Event, step: Step) -> None:
    made = [one.lease for one in step.instructions if isinstance(one, MakeEdits)]
    dropped = [one.lease for one in step.instructions if isinstance(one, DropEdits)]
    held = {lease.id for lease in before.holders()}
    hold = {lease.id for lease in step.state.holders()}
    changed = {
        one.id for one in step.changed if one.id in held and _told(before.leases[one.id]) != _told(one)
    }
    remade = {one for one in changed & hold if _is_resize_of(event, step.state.leases[one])}
    if isinstance(event, m.ExtendAsked) and event.lease in held:
        remade.add(event.lease)
    assert sorted(made) == sorted((hold - held) | remade)
    assert all(
        isinstance(step.state.leases[one].state, Reserved | Resuming | Starting) for one in set(made) - remade
    )
    ended = [lease.id for lease in step.changed if isinstance(lease.state, Ended)]
    queued = {lease.id for lease in before.waiting() if isinstance(lease.state, Queued)}
    assert sorted(dropped) == sorted(one for one in ended if one in before.leases and one not in queued)


def _box(lease: Lease) -> ContainerId:
    assert isinstance(lease.state, WithContainer)
    return lease.state.container


def _in_trouble(gpu: Gpu, trouble: str | None) -> Gpu:
    return replace(gpu, trouble=trouble)


TestNodeMachine = NodeMachine.TestCase
