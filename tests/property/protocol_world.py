"""A world of one job, a coordinator and a few nodes, in which all that can happen is tried in every order.

The coordinator is the real ``coordinator.handle`` and each node's answers are the real ``attempts.take`` and
``attempts.changed``; only the network, the containers and the stores are made up. A message that was sent
once may arrive at any time from then on, as often as it likes, or never.

What a coordinator or a node does about an event depends on its own state alone, so each is asked once for
each state and event, and the search itself turns numbers over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Generic, TypeVar

from gpushared.domain.jobs import attempt_log
from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.attempt_log import Attempt, AttemptLog
from gpushared.domain.jobs.cluster_snapshot import ClusterSnapshot
from gpushared.domain.jobs.coordinator import handle, restore
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import (
    AttemptState,
    Ended,
    Ending,
    EndKind,
    Job,
    JobSpec,
    NodeName,
    Owner,
    Queued,
)
from gpushared.domain.jobs.member import HeartbeatReport, Inventory
from gpushared.domain.jobs.protocol import Order, Report, StaleEpoch
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import AttemptKey, JobId, LeaseId
from gpushared.domain.model.request import Caller, Request

NOW = 1_000_000.0
POOL = "lab"
BOOT, NEXT_BOOT = "boot", "next boot"
JOB = JobId("j0b")
ADA = Owner("ada@lab", "ada")
ACCOUNT = Caller(1000, 1000, "ada")
GIB = 1024 * MIB
RULES = PoolRules(
    settle_seconds=0.0,
    recover_seconds=0.0,
    retry_seconds=0.0,
    refused_seconds=0.0,
    refusals_before_rest=1000,
    plan_seconds=0.0,
    gang_patience_seconds=0.0,
)
"""Nobody waits for a time: what a time-out would do may happen at once."""
HALF = Request(compute_permille=500, memory_permille=500)
EXITED_WELL = Ending(EndKind.EXITED, exit_code=0)
EXITED_BADLY = Ending(EndKind.EXITED, exit_code=1)
STOPPED = Ending(EndKind.STOPPED, "stopped")
LOST = Ending(EndKind.LOST, "the node went down")
NO_ROOM = Ending(EndKind.NO_ROOM, "no room")
RAN_OUT = Ending(EndKind.NO_ROOM, "its reservation ran out")

World = tuple[int, tuple[int, ...], int, int, tuple[int, ...]]
"""The coordinator, the nodes, the messages that were sent (bits), an old copy of the store (-1 = none), and
how often each thing may still happen: all by number."""


@dataclass(frozen=True)
class Scenario:
    """What may happen, and how often. ``fast``: whether a container may also end badly, and so on."""

    nodes: int = 2
    spec: JobSpec = field(default_factory=lambda: JobSpec(HALF, ADA, image="x", retries=1))
    cancels: int = 0
    reboots: int = 0
    restarts: int = 0
    """Of the coordinator, with its store as it is."""
    restores: int = 0
    """Of the coordinator, with a copy of its store that was made at any time before."""
    outages: int = 0
    """Of a node, of which an admin says that it is off while it is."""
    reinstalls: int = 0
    """Of a node, which joins again with an empty log, and without the containers that it had."""
    moves: int = 0
    """How often another node becomes the best place."""
    failures: bool = True
    """Whether containers may end badly, and nodes may have no room."""
    quick: bool = False
    """Whether images are there at once, so that fewer states come between."""
    most_attempts: int = 3
    most_states: int = 60_000


BUDGETS = ("cancels", "reboots", "restarts", "restores", "outages", "moves", "reinstalls")


class InvariantBroken(Exception):
    """An invariant does not hold; ``steps`` lead there."""

    def __init__(self, what: str, steps: list[str]) -> None:
        super().__init__(f"{what}\n  " + "\n  ".join(steps))
        self.what = what
        self.steps = steps


T = TypeVar("T")


@dataclass
class Interned(Generic[T]):
    """Values by number; equal keys are the same."""

    values: list[T] = field(default_factory=list)
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def number(self, key: Hashable, value: T) -> int:
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = len(self.values)
            self.values.append(value)
        return found


@dataclass(frozen=True)
class NodeSide:
    """A node: its log, and whether it is off. What is running in its log runs, where it is not off.

    ``cut``: it was off, and nothing comes to it before it has a new connection.
    """

    log: AttemptLog
    off: bool = False
    cut: bool = False


Event = tuple[str, NodeName | None, int]
"""What happens to a coordinator: what, at which node, and a number of a message, a node or a copy."""
Step = tuple[int, int]
"""The number of what comes out, and the messages that are sent (bits)."""


class Search:
    """All worlds that a story can come to; ``run`` raises Broken where an invariant does not hold."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.names = tuple(NodeName(f"n{at}") for at in range(scenario.nodes))
        self.coordinators: Interned[PoolState] = Interned()
        self.sides: Interned[NodeSide] = Interned()
        self.messages: Interned[tuple[NodeName, Order | Report | StaleEpoch]] = Interned()
        self._to_node: list[bool] = []
        self._written: list[Job | None] = []
        """By coordinator: the job as its store has it."""
        self._by_coordinator: dict[tuple[int, Event], Step] = {}
        self._by_node: dict[tuple[int, NodeName, str, int], Step] = {}
        self._running: list[tuple[AttemptKey, ...]] = []
        self._snapshot = ClusterSnapshot()
        self.worlds: dict[World, tuple[World, str] | None] = {}
        self.edges: dict[World, list[World]] = {}

    # --- the search ------------------------------------------------------------------------------------

    def run(self) -> Search:
        first = self._first()
        self.worlds[first] = None
        ahead = deque([first])
        while ahead:
            world = ahead.popleft()
            if (
                self._attempts(world) > self.scenario.most_attempts
                or len(self.worlds) > self.scenario.most_states
            ):
                continue
            reached = self.edges[world] = []
            for label, untidy in self._steps(world):
                after = self.tidied(untidy)
                reached.append(after)
                if after not in self.worlds:
                    self.worlds[after] = world, label
                    self._check(world, after)
                    ahead.append(after)
        self._check_ends()
        return self

    def tidied(self, world: World) -> World:
        """Without messages that can change nothing any more, whatever comes: those of attempts that are over.

        Only where the coordinator cannot fall back behind them.
        """
        coordinator, sides, sent, copy, budget = world
        if budget[3]:
            return world
        job = self.coordinators.values[coordinator].jobs.get(JOB)
        left, kept = sent, sent
        while left:
            bit = left & -left
            left ^= bit
            number = bit.bit_length() - 1
            node, message = self.messages.values[number]
            record = self.sides.values[sides[self.names.index(node)]].log.get(message.key)
            passed = self._to_node[number] or (job is not None and message.key.number < _under_way(job))
            if passed and record is not None and record.state.is_final:
                kept ^= bit
        return coordinator, sides, kept, copy, budget

    def _steps(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self._deliveries(world)
        yield from self._of_nodes(world)
        yield from self._of_users(world)
        yield from self._of_fate(world)

    def _check(self, before: World, world: World) -> None:
        running = [key for side in world[1] for key in self._runs(side)]
        if self._is_too_much(running):
            raise InvariantBroken("two copies run", self.story_of(world))
        if self.scenario.spec.nodes > 1 and not all(self._all_came(key, world) for key in running):
            raise InvariantBroken("a part runs though not all were reserved", self.story_of(world))
        ended = self._ended(world[0])
        if ended is not None and running:
            raise InvariantBroken("it runs after it was over", self.story_of(world))
        was = self._ended(before[0])
        if was is not None and before[4] == world[4] and ended != was:
            raise InvariantBroken("it was over twice", self.story_of(world))

    def _is_too_much(self, running: list[AttemptKey]) -> bool:
        if self.scenario.spec.nodes > 1:
            return len(set(running)) > 1
        return len(running) > 1

    def _all_came(self, key: AttemptKey, world: World) -> bool:
        """Whether each node once had its part of a gang's attempt reserved; a reinstalled one cannot tell."""
        if world[4][6] < self.scenario.reinstalls:
            return True
        records = [self.sides.values[side].log.get(key) for side in world[1]]
        return sum(one is not None and one.lease is not None for one in records) >= self.scenario.spec.nodes

    def _check_ends(self) -> None:
        """From everywhere the job can still come to an end; what was not looked at any more may."""
        backwards: dict[World, list[World]] = {}
        for world, reached in self.edges.items():
            for after in reached:
                backwards.setdefault(after, []).append(world)
        fine = {
            world for world in self.worlds if world not in self.edges or self._ended(world[0]) is not None
        }
        ahead = deque(fine)
        while ahead:
            for before in backwards.get(ahead.popleft(), ()):
                if before not in fine:
                    fine.add(before)
                    ahead.append(before)
        stuck = next((world for world in self.worlds if world not in fine), None)
        if stuck is not None:
            raise InvariantBroken("it can never be over", self.story_of(stuck))

    def story_of(self, world: World) -> list[str]:
        """How it came to this."""
        found = []
        while (came := self.worlds[world]) is not None:
            world, label = came
            found.append(label)
        return found[::-1]

    # --- what happens ----------------------------------------------------------------------------------

    def _first(self) -> World:
        fresh = restore(self.rules(), epoch=1, members=(), now=NOW)
        number = self._coordinator(fresh, None)
        sides = []
        for name in self.names:
            number, _ = self._handled(number, ("enroll", name, 0))
            sides.append(self._side(NodeSide(AttemptLog(coordinator=POOL))))
        for at, name in enumerate(self.names):
            sides[at] = self._heard(sides[at], self.coordinators.values[number].epoch)
            number, _ = self._handled(number, ("hello", name, sides[at]))
        budget = tuple(getattr(self.scenario, name) for name in BUDGETS)
        return number, tuple(sides), 0, -1, budget

    def rules(self) -> PoolRules:
        return RULES

    def _deliveries(self, world: World) -> Iterator[tuple[str, World]]:
        coordinator, sides, sent, copy, budget = world
        left = sent
        while left:
            bit = left & -left
            left ^= bit
            number = bit.bit_length() - 1
            node, message = self.messages.values[number]
            at = self.names.index(node)
            if self._to_node[number]:
                if not self.sides.values[sides[at]].cut:
                    side, more = self._taken(sides[at], node, number)
                    yield f"{node} gets {_short(message)}", (
                        coordinator, _with(sides, at, side), sent | more, copy, budget
                    )  # fmt: skip
            else:
                after, more = self._handled(coordinator, ("report", node, number))
                yield f"it hears {_short(message)} of {node}", (after, sides, sent | more, copy, budget)

    def _of_nodes(self, world: World) -> Iterator[tuple[str, World]]:
        coordinator, sides, sent, copy, budget = world
        state = self.coordinators.values[coordinator]
        for at, node in enumerate(self.names):
            side = self.sides.values[sides[at]]
            if side.off:
                on = self._side(replace(side, off=False))
                yield f"{node} is on again", (coordinator, _with(sides, at, on), sent, copy, budget)
                continue
            for key, record in sorted(side.log.live.items()):
                for what, number in self._goes_on(record):
                    after, more = self._changed(sides[at], node, key, number)
                    yield f"{node}: {key} {what}", (
                        coordinator, _with(sides, at, after), sent | more, copy, budget
                    )  # fmt: skip
            if side.cut or not state.members[node].connected:
                heard = self._heard(sides[at], state.epoch)
                met, more = self._handled(coordinator, ("hello", node, sides[at]))
                kept = sent & ~self._gone_with_connection(node, side) if side.cut else sent
                yield f"{node} says hello", (met, _with(sides, at, heard), kept | more, copy, budget)

    def _of_users(self, world: World) -> Iterator[tuple[str, World]]:
        coordinator, sides, sent, copy, budget = world
        state = self.coordinators.values[coordinator]
        if JOB not in state.jobs and JOB not in state.ended:
            after, more = self._handled(coordinator, ("submit", None, budget[3]))
            yield "it is submitted", (after, sides, sent | more, copy, budget)
        elif budget[0] and JOB in state.jobs:
            after, more = self._handled(coordinator, ("cancel", None, 0))
            yield "it is cancelled", (after, sides, sent | more, copy, _less(budget, 0))

    def _of_fate(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self._of_power(world)
        coordinator, sides, sent, copy, budget = world
        if budget[2]:
            after, more = self._handled(coordinator, ("restart", None, 0))
            yield "the coordinator restarts", (after, sides, sent | more, copy, _less(budget, 2))
        if budget[3] and copy < 0:
            yield "its store is copied", (coordinator, sides, sent, coordinator, budget)
        if budget[3] and copy >= 0:
            after, more = self._handled(copy, ("restore", None, 0))
            yield "the copy is put back", (after, sides, sent | more, copy, _less(budget, 3))
        if budget[5]:
            after, more = self._handled(coordinator, ("move", self.names[-1], 0))
            moved = (after, sides, sent | more, copy, _less(budget, 5))
            yield f"{self.names[-1]} is the best place now", moved
        yield from self.wrongs(world)

    def _of_power(self, world: World) -> Iterator[tuple[str, World]]:
        coordinator, sides, sent, copy, budget = world
        for at, node in enumerate(self.names):
            if self.sides.values[sides[at]].off:
                after, more = self._handled(coordinator, ("forget", node, 0))
                yield f"{node} is said to be off", (after, sides, sent | more, copy, budget)
                after, more = self._handled(coordinator, ("waive", node, 0))
                yield f"{node} is not waited for", (after, sides, sent | more, copy, budget)
                continue
            side, more = self._rebooted(sides[at], node)
            if budget[1]:
                up = (coordinator, _with(sides, at, side), sent | more, copy, _less(budget, 1))
                yield f"{node} reboots", up
            if budget[4]:
                off = self._side(replace(self.sides.values[side], off=True, cut=True))
                yield f"{node} goes off", (coordinator, _with(sides, at, off), sent, copy, _less(budget, 4))
            if budget[6]:
                new = self._side(NodeSide(AttemptLog(coordinator=POOL), cut=True))
                new_sides = _with(sides, at, new)
                yield f"{node} is reinstalled", (coordinator, new_sides, sent, copy, _less(budget, 6))

    def wrongs(self, world: World) -> Iterator[tuple[str, World]]:
        """What must not be done; some tests do it, to see that it is found."""
        del world
        yield from ()

    # --- the coordinator -------------------------------------------------------------------------------

    def _handled(self, coordinator: int, event: Event) -> Step:
        known = self._by_coordinator.get((coordinator, event))
        if known is None:
            known = self._by_coordinator[coordinator, event] = self.handled(coordinator, event)
        return known

    def handled(self, coordinator: int, event: Event) -> Step:
        """A step of the real machine."""
        state = self.coordinators.values[coordinator]
        what, node, number = event
        if what in ("restart", "restore"):
            written = self._written[coordinator]
            jobs = () if written is None else (written,)
            members = tuple(state.members.values())
            after = restore(
                self.rules(),
                epoch=state.epoch + 1,
                jobs=jobs,
                members=members,
                now=NOW,
                from_copy=what == "restore" or state.recovering_since is not None,
            )
            return self.settled(after, m.PoolTick(), written)
        return self.settled(state, self._event(what, node, number), self._written[coordinator])

    def settled(self, state: PoolState, event: m.PoolEvent, written: Job | None) -> Step:
        """The step of an event, and what follows by itself. ``written``: the job as the store has it."""
        sent = 0
        for one in (event, m.PoolTick()):
            step = handle(state, one, NOW, self._snapshot)
            state = step.state
            written = next((job for job in step.jobs if job.id == JOB), written)
            for instruction in step.instructions:
                if isinstance(instruction, m.Send):
                    sent |= self._message(instruction.node, instruction.order, to_node=True)
            if step.epoch is not None:
                for name in self.names:
                    state = handle(state, m.NodeDisconnected(name), NOW, self._snapshot).state
        return self._coordinator(state, written), sent

    def _event(self, what: str, node: NodeName | None, number: int) -> m.PoolEvent:
        match what:
            case "report":
                message = self.messages.values[number][1]
                assert node is not None
                assert isinstance(message, Report | StaleEpoch)
                return m.AttemptReported(node, message)
            case "hello":
                assert node is not None
                log = self.sides.values[number].log
                sent = attempt_log.reports(log)
                return m.NodeRegistered(node, inventory(node), HeartbeatReport(), sent, seen_epoch=log.epoch)
            case "submit":
                return m.JobSubmitted(JOB, self.scenario.spec, old=number < self.scenario.restores)
            case "cancel":
                return m.CancelAsked(JOB, ADA)
            case "enroll":
                assert node is not None
                return m.NodeEnrolled(node)
            case "forget":
                assert node is not None
                return m.NodeForgotten(node, ADA)
            case "waive":
                assert node is not None
                return m.NodeForgotten(node, ADA, only_waive=True)
            case "move":
                full = ((inventory(self.names[0]).gpus[0].id, "is busy"),)
                return m.NodeHeartbeat(self.names[0], free=HeartbeatReport(troubles=full))
        raise AssertionError(what)

    def _coordinator(self, state: PoolState, written: Job | None) -> int:
        # Where it never begins anew, what is written does not matter.
        stored = written if self.scenario.restarts or self.scenario.restores else None
        key = shape_of(state), None if stored is None else _job_shape(stored)
        number = self.coordinators.number(key, state)
        if number == len(self._written):
            self._written.append(stored)
        return number

    def _ended(self, coordinator: int) -> object:
        job = self.coordinators.values[coordinator].ended.get(JOB)
        return None if job is None or not isinstance(job.state, Ended) else job.state.outcome

    def _attempts(self, world: World) -> int:
        job = self.coordinators.values[world[0]].jobs.get(JOB)
        return 0 if job is None else job.attempts

    # --- nodes -----------------------------------------------------------------------------------------

    def _taken(self, side: int, node: NodeName, number: int) -> Step:
        key = (side, node, "take", number)
        if key not in self._by_node:
            self._by_node[key] = self.taken(side, node, number)
        return self._by_node[key]

    def taken(self, side: int, node: NodeName, number: int) -> Step:
        """What the real log makes of an order."""
        before = self.sides.values[side]
        order = self.messages.values[number][1]
        assert not isinstance(order, Report | StaleEpoch)
        taken = self.take(before.log, order)
        if self.scenario.quick and taken.work is attempt_log.OrderWork.PREPARE:
            return self._changed(
                self._side(replace(before, log=taken.attempt_log)), node, order.key, RESERVES
            )
        sent = self._message(node, taken.report, to_node=False)
        return self._side(replace(before, log=taken.attempt_log)), sent

    def take(self, log: AttemptLog, order: Order) -> attempt_log.OrderAnswer:
        return attempt_log.take(log, order, ACCOUNT, None, NOW, boot_id=BOOT)

    def _goes_on(self, record: Attempt) -> Iterator[tuple[str, int]]:
        """What may become of an attempt by itself; the number says which of ``CHANGES``."""
        failures = self.scenario.failures
        match record.state:
            case AttemptState.PREPARING:
                yield "gets its lease", RESERVES if record.gang else RUNS
                if failures:
                    yield "finds no room", HAS_NO_ROOM
            case AttemptState.RESERVED if record.cancelled_by:
                yield "is ended", STOPS
            case AttemptState.RESERVED if record.facts is not None or not record.gang:
                yield "runs", RUNS
            case AttemptState.RESERVED:
                yield "loses its reservation", RUNS_OUT
            case AttemptState.RUNNING:
                yield "ends well", ENDS_WELL
                if failures:
                    yield "ends badly", ENDS_BADLY
                if record.cancelled_by:
                    yield "is ended", STOPS

    def _changed(self, side: int, node: NodeName, key: AttemptKey, number: int) -> Step:
        known = (side, node, str(key), number)
        if known not in self._by_node:
            before = self.sides.values[side]
            state, ending = CHANGES[number]
            log = attempt_log.changed(before.log, key, state, lease=LeaseId("l-1"), ending=ending, now=NOW)
            sent = self._message(node, attempt_log.report_of(log.records[key]), to_node=False)
            self._by_node[known] = self._side(replace(before, log=log)), sent
        return self._by_node[known]

    def _rebooted(self, side: int, node: NodeName) -> Step:
        """Its containers are gone; its log is not, and says so."""
        before, sent = self.sides.values[side], 0
        log = self.after_reboot(before.log)
        over = self.over_with_boot(log)
        for key, record in sorted(before.log.live.items()):
            if key in log.records and (key in over or record.state is AttemptState.RUNNING):
                log = attempt_log.changed(log, key, AttemptState.ENDED, ending=LOST, now=NOW)
                sent |= self._message(node, attempt_log.report_of(log.records[key]), to_node=False)
        return self._side(replace(before, log=log)), sent

    def over_with_boot(self, log: AttemptLog) -> tuple[AttemptKey, ...]:
        """What must not begin any more."""
        return attempt_log.of_earlier_boots(log, NEXT_BOOT)

    def after_reboot(self, log: AttemptLog) -> AttemptLog:
        """A node forgets nothing."""
        return log

    def _heard(self, side: int, epoch: int) -> int:
        before = self.sides.values[side]
        return self._side(replace(before, log=attempt_log.heard(before.log, epoch), cut=False))

    def _side(self, side: NodeSide) -> int:
        log = side.log
        records = tuple(
            (key, one.state, one.revision, one.lease, one.ending, one.facts is not None, one.cancelled_by)
            for key, one in sorted(log.records.items())
        )
        return self.sides.number((records, log.epoch, log.next_revision, side.off, side.cut), side)

    def _runs(self, side: int) -> tuple[AttemptKey, ...]:
        while len(self._running) <= side:
            one = self.sides.values[len(self._running)]
            live = () if one.off else one.log.live.items()
            self._running.append(tuple(key for key, record in live if record.state is AttemptState.RUNNING))
        return self._running[side]

    def _gone_with_connection(self, node: NodeName, side: NodeSide) -> int:
        """The orders that go with its connection when it loses power, and what an earlier log had said."""
        bits = (1 << at for at, (name, _) in enumerate(self.messages.values) if name == node)
        reinstalled = not side.log.records
        return sum(bit for bit in bits if reinstalled or self._to_node[bit.bit_length() - 1])

    def _message(self, node: NodeName, message: Order | Report | StaleEpoch, *, to_node: bool) -> int:
        number = self.messages.number((node, message), (node, message))
        if number == len(self._to_node):
            self._to_node.append(to_node)
        return 1 << number


RUNS, RESERVES, HAS_NO_ROOM, STOPS, RUNS_OUT, ENDS_WELL, ENDS_BADLY = range(7)
CHANGES = {
    RUNS: (AttemptState.RUNNING, None),
    RESERVES: (AttemptState.RESERVED, None),
    HAS_NO_ROOM: (AttemptState.REFUSED, NO_ROOM),
    STOPS: (AttemptState.ENDED, STOPPED),
    RUNS_OUT: (AttemptState.ENDED, RAN_OUT),
    ENDS_WELL: (AttemptState.ENDED, EXITED_WELL),
    ENDS_BADLY: (AttemptState.ENDED, EXITED_BADLY),
}


@cache
def inventory(node: NodeName) -> Inventory:
    """One GPU; those of earlier nodes are the better places."""
    gpu = Gpu(GpuId(f"GPU-{node}"), 0, "H100", 80 * GIB, 80 * GIB)
    return Inventory((gpu,), address=node)


def shape_of(state: PoolState) -> Hashable:
    """All of a coordinator's state that decides what it does next; no time passes here."""
    members = tuple(
        (name, one.connected, one.forgotten_at, one.excused, bool(one.free.troubles))
        for name, one in sorted(state.members.items())
    )
    jobs = tuple(_job_shape(job) for job in (state.jobs.get(JOB), state.ended.get(JOB)) if job is not None)
    return (
        state.epoch,
        state.settled,
        state.recovering_since,
        tuple(sorted(state.reported)),
        tuple(sorted(state.waived)),
        tuple(sorted(state.claimants)),
        members,
        jobs,
        tuple(sorted(state.old)),
        tuple(sorted(state.numbers.items())),
        state.stale,
    )


def _under_way(job: Job) -> int:
    """The attempt that counts; numbers above it may be used up by ones that do not."""
    return job.attempts if isinstance(job.state, Queued | Ended) else job.state.attempt


def _job_shape(job: Job) -> Hashable:
    return job.state, job.attempts, job.failures, job.refused_by


def _with(sides: tuple[int, ...], at: int, side: int) -> tuple[int, ...]:
    return (*sides[:at], side, *sides[at + 1 :])


def _less(budget: tuple[int, ...], at: int) -> tuple[int, ...]:
    return (*budget[:at], budget[at] - 1, *budget[at + 1 :])


def _short(message: object) -> str:
    match message:
        case Report():
            how = f" ({message.ending.kind})" if message.ending is not None else ""
            return f"{message.key} {message.state}{how}"
        case StaleEpoch():
            return f"that epoch {message.epoch} was seen"
        case _:
            return f"{type(message).__name__} {getattr(message, 'key', '')}"
