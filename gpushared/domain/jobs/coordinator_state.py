"""Hold a coordinator's knowledge, and the draft in which one event changes it.

The state is a value: a step whose write fails is dropped, and nothing has to be undone. The large parts
(jobs, queues, indexes) share nearly all of their data with the state before. So the cost of an event depends
on its changes, not on the number of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from heapq import merge
from itertools import chain, islice, takewhile
from operator import attrgetter
from typing import Any, TypeVar

from gpushared.domain.jobs.coordinator_events import PoolInstruction, Send, TellOrigin
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import (
    HERE,
    Ended,
    Job,
    JobSpec,
    NodeName,
    Owner,
    Part,
    Placing,
    Queued,
    Running,
)
from gpushared.domain.jobs.member import Member, RefusalPause
from gpushared.domain.jobs.pending_jobs import ArrayThrottle, JobShape, PendingJobs
from gpushared.domain.model.errors import NotFound
from gpushared.domain.model.gpu import WHOLE_PERMILLE
from gpushared.domain.model.lease import Grant, JobId, LeaseId
from gpushared.domain.model.persistent_map import PersistentMap
from gpushared.domain.model.persistent_sorted_list import PersistentSortedList
from gpushared.domain.model.units import shown
from gpushared.domain.scheduling.gpu_amounts import permille_of
from gpushared.domain.scheduling.pass_records import NEVER, PassDecision, Preemption
from gpushared.domain.scheduling.project_accounts import AccountsChange, UsageRow
from gpushared.domain.scheduling.projects import DAY, Policy, Project
from gpushared.domain.scheduling.use_over_time import Interval, Usage


class Wake(StrEnum):
    """Name the work to do when an alarm is due."""

    READY = "ready"
    """Place the job, whose time has come."""
    RESEND = "resend"
    """Check a job whose nodes may not have answered."""
    AFTER = "after"
    """Check the jobs that waited for a finished job."""
    SILENCE = "silence"
    """Check a node that may have been silent for too long."""
    SETTLE = "settle"


Alarm = tuple[float, str, str]
"""The time of the alarm, its ``Wake``, and the name of the job or node."""
GrantsByNode = Mapping[NodeName, tuple[Grant, ...]]
IdKey = tuple[str, bool, JobId]
"""The job's person, whether the job is over, and its id."""
NameKey = tuple[str, str, bool, int, JobId]
"""The job's person, its name, whether the job is over, its sequence (the newest first), and its id."""
ArrayKey = tuple[str, JobId]
"""The array's owner, a principal, and its id."""
FEW_NAMED = 5
"""At most this many of one person's jobs of a name are found."""
MANY_NAMED = 1000
"""At most this many of the jobs whose names begin with the name of an array are searched."""
_Key = TypeVar("_Key", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True)
class Total:
    """Count the jobs of a group, and the bytes of their descriptions at their submission."""

    jobs: int = 0
    spec_bytes: int = 0

    def changed(self, spec: JobSpec, by: int) -> Total:
        """Return the total with this job (1), or without it (-1)."""
        return Total(self.jobs + by, self.spec_bytes + by * spec.size_bytes)


NOTHING = Total()


@dataclass(slots=True)
class PoolState:
    """Hold all facts that a coordinator's rules know. ``jobs`` holds the unfinished jobs.

    Only the draft that makes the next state fills in its own copy; for all other code the state is an
    immutable value.
    """

    rules: PoolRules = field(default_factory=PoolRules)
    epoch: int = 0
    revision: int = 0
    """The revision of the newest write to the store. Its writer sets it; 0 means that nobody writes."""
    started_at: float = 0.0
    ahead_seconds: float = 0.0
    """The time of day, which people set, is ahead of the clock that counts time by this much."""
    jobs: PersistentMap[JobId, Job] = field(default_factory=PersistentMap)
    ended: PersistentMap[JobId, Job] = field(default_factory=PersistentMap)
    """The newest jobs that are over."""
    ended_bytes: int = 0
    """The size of the descriptions of the jobs in ``ended``."""
    members: PersistentMap[NodeName, Member] = field(default_factory=PersistentMap)
    usage: Usage = field(default_factory=lambda: Usage(DAY))
    turns: Mapping[str, float] = field(default_factory=dict)
    projects: Mapping[str, Project] = field(default_factory=dict)
    next_sequence: int = 1
    settled: bool = True
    """False from a start until all members have reported, or have had their time."""
    recovering_since: float | None = None
    """Since this time we know that our memory is older than the memory of our nodes."""
    reported: frozenset[NodeName] = frozenset()
    waived: frozenset[NodeName] = frozenset()
    claimants: frozenset[NodeName] = frozenset()
    """The nodes that claimed to have seen more of the pool; a node's claim counts once."""
    by_node: PersistentMap[NodeName, Mapping[JobId, None]] = field(default_factory=PersistentMap)
    """The jobs with an unfinished part on a node."""
    ids: PersistentSortedList[IdKey] = field(default_factory=PersistentSortedList)
    """All jobs, finished or not, in an order in which a person's jobs whose ids begin alike stand
    together."""
    names: PersistentSortedList[NameKey] = field(default_factory=PersistentSortedList)
    """The jobs whose containers have a name of their own."""
    dependents: PersistentMap[JobId, tuple[JobId, ...]] = field(default_factory=PersistentMap)
    ended_order: PersistentSortedList[tuple[float, int, JobId]] = field(default_factory=PersistentSortedList)
    numbers: PersistentMap[JobId, int] = field(default_factory=PersistentMap)
    """The highest reported attempt number of jobs that are not known (yet)."""
    reported_jobs: PersistentMap[NodeName, Total] = field(default_factory=PersistentMap)
    """The jobs that this coordinator learned from each node, in its whole life."""
    reported_numbers: PersistentMap[NodeName, int] = field(default_factory=PersistentMap)
    """Each node was the first to report this many entries of ``numbers``."""
    old: PersistentMap[JobId, None] = field(default_factory=PersistentMap)
    """Jobs that may run somewhere without our knowing; empty once the state is settled."""
    waiting: PendingJobs = field(default_factory=PendingJobs)
    gangs: PendingJobs = field(default_factory=PendingJobs)
    throttles: PersistentMap[ArrayKey, ArrayThrottle] = field(default_factory=PersistentMap)
    """Arrays that may run only a certain number of their jobs at once."""
    queued: PersistentMap[str, Total] = field(default_factory=PersistentMap)
    """The waiting jobs of each person."""
    realms: PersistentMap[str, Total] = field(default_factory=PersistentMap)
    """The unfinished jobs of each realm's users."""
    spec_bytes: int = 0
    """The size of the descriptions of all unfinished jobs."""
    booked: PersistentMap[JobId, GrantsByNode] = field(default_factory=PersistentMap)
    """The plan for an attempt; the plan counts until the attempt's node reports its holdings."""
    alarms: PersistentSortedList[Alarm] = field(default_factory=PersistentSortedList)
    decisions: Mapping[LeaseId | JobShape, PassDecision] = field(default_factory=dict)
    """The reasons why jobs wait, by the last pass. A job that the pass did not reach has the decision on its
    shape."""
    under_way: Mapping[LeaseId, Preemption] = field(default_factory=dict)
    """Jobs for which others give way at the moment."""
    stale: bool = False
    """Something changed since the last pass that could let a job start."""
    planned_at: float = 0.0
    plan_again_at: float = NEVER
    """Time alone may let a job start at this moment, by the last pass."""
    resting: Mapping[NodeName, RefusalPause] = field(default_factory=dict)
    """Nodes that refused several jobs in a row and took no job since."""
    ruling: tuple[PoolRules, Mapping[str, Project], Policy] | None = field(
        default=None, compare=False, repr=False
    )
    """The policy with its inputs: each event needs the policy, which stays the same as long as the inputs
    do."""

    @property
    def policy(self) -> Policy:
        ruling = self.ruling
        if ruling is None or ruling[0] is not self.rules or ruling[1] is not self.projects:
            ruling = self.ruling = (self.rules, self.projects, self.rules.policy_with(self.projects))
        return ruling[2]

    @property
    def queued_count(self) -> int:
        """Return the number of waiting jobs."""
        return sum(queue.jobs for queue in self.queued.values())

    @property
    def look_again_at(self) -> float:
        """Return the time at which time alone may change something; infinite if only an event can."""
        first = self.alarms.first()
        alarm = NEVER if first is None else first[0]
        return min(alarm, self.plan_at if self.stale else max(self.plan_at, self.plan_again_at))

    @property
    def plan_at(self) -> float:
        """Return the time of the next pass. Passes of large pools cost more and are rarer."""
        if self.rules.here:
            return self.planned_at
        return self.planned_at + self.rules.plan_seconds * max(1.0, len(self.members) / 500)

    def day(self, at: float) -> float:
        """Return a moment as the time of day that people see."""
        return at + self.ahead_seconds

    def moment(self, day: float) -> float:
        """Return a time of day on the clock that counts time."""
        return day - self.ahead_seconds

    def ready_at(self, job: Job) -> float:
        """Return the earliest time at which a waiting job may be placed."""
        assert isinstance(job.state, Queued)
        begin_at = job.spec.request.begin_at
        return max(job.state.not_before, self.moment(begin_at) if begin_at is not None else 0.0)

    def find(self, name: JobId, by: Owner | None = None) -> Job:
        """Return a job, finished or not. Raises NotFound, also if ``by`` may not see the job."""
        job = self.jobs.get(name) or self.ended.get(name)
        if job is None or (by is not None and not by.may_see_jobs_of(job.spec.owner)):
            raise NotFound(f"there is no job {shown(name)}", hint="`gpushare jobs` lists them")
        return job

    def named(self, name: str, by: Owner | None = None) -> list[Job]:
        """Return the jobs of a name that ``by`` may see (None: all jobs).

        For each person the result has a few jobs: first the unfinished ones, then the newest of the others.
        """
        return [
            self.find(key[-1])
            for person in self._people(by)
            for key in islice(self.names.since((person, name)), FEW_NAMED)
            if key[:2] == (person, name)
        ]

    def named_in_array(self, name: str, by: Owner) -> list[Job]:
        """Return the jobs of arrays of a name, up to ``MANY_NAMED`` for each person.

        The jobs of an array are called ``name-0``, ``name-1`` and so on.
        """

        def of(person: str) -> Iterator[Job]:
            keys = self.names.since((person, f"{name}-"))
            alike = takewhile(lambda key: key[0] == person and key[1].startswith(f"{name}-"), keys)
            return (self.find(key[-1]) for key in islice(alike, MANY_NAMED))

        jobs = chain.from_iterable(map(of, self._people(by)))
        return [job for job in jobs if job.spec.array and job.spec.name == f"{name}-{job.spec.index}"]

    def beginning(self, text: str, by: Owner, *, over: bool, after: str = "") -> Iterator[Job]:
        """Yield the jobs with ids that begin with ``text``, in the order of the ids, after ``after``.

        Jobs that ``by`` may not see are left out.
        """

        def of(person: str) -> Iterator[JobId]:
            keys = self.ids.since((person, over, max(text, after)))
            alike = takewhile(lambda key: key[:2] == (person, over) and key[2].startswith(text), keys)
            return (job for _, _, job in alike if job != after)

        return map(self.find, merge(*map(of, self._people(by))))

    def _people(self, by: Owner | None) -> Iterator[str]:
        """Yield the people with jobs that ``by`` may see."""
        if by is not None and not by.admin:
            yield by.person
            return
        first = next(self.ids.since(()), None)
        while first is not None:
            yield first[0]
            first = next(self.ids.since((first[0] + "\0",)), None)

    def missing(self) -> tuple[NodeName, ...]:
        """Return the members that have not reported since the start, and that nobody waived.

        A forgotten member may have come back after an old copy of the store was made.
        """
        doubtful = self.recovering_since is not None
        return tuple(
            sorted(
                name
                for name, member in self.members.items()
                if (doubtful or member.forgotten_at is None)
                and name not in self.reported
                and name not in self.waived
            )
        )


_all_fields = attrgetter(*(f.name for f in fields(PoolState)))
"""Each event copies the state; ``copy.copy`` takes three times as long."""


@dataclass(frozen=True, slots=True)
class PoolStep:
    """Hold the results of one event. None is true before the store has ``jobs``, ``members`` and the rest.

    Attributes:
        jobs: The jobs to be written.
        shown: The jobs with only such changes as their nodes report again anyhow: shown, not written.
        gone: The finished jobs that are no longer kept.
        members: The members that changed in more than the time of their last message.
        epoch: The new epoch, if nodes have seen higher ones than ours. It is to be written, and the
            streams of all nodes are to be ended, so that each node receives the new epoch.
        job: The job that the event named.
    """

    state: PoolState
    instructions: tuple[PoolInstruction, ...] = ()
    jobs: tuple[Job, ...] = ()
    shown: tuple[Job, ...] = ()
    gone: tuple[Job, ...] = ()
    members: tuple[Member, ...] = ()
    accounts: AccountsChange | None = None
    epoch: int | None = None
    job: Job | None = None

    @property
    def look_again_at(self) -> float:
        return self.state.look_again_at


class PoolDraft:
    """Collect one event's changes to a state; ``finish`` makes the step."""

    def __init__(self, state: PoolState, now: float) -> None:
        self.base = state
        self.state = PoolState(*_all_fields(state))
        self.now = now
        self.rules = state.rules
        self.answer: JobId | None = None
        self._instructions: dict[Hashable, PoolInstruction] = {}
        self._changed: dict[JobId, bool] = {}
        self._members: dict[NodeName, None] = {}
        self._gone: list[Job] = []

    # --- jobs ------------------------------------------------------------------------------------------

    def job(self, job: JobId) -> Job | None:
        """Return an unfinished job, or None."""
        return self.state.jobs.get(job)

    def is_old(self, job: JobId) -> bool:
        """Return True if the job may run somewhere without our knowing."""
        return job in self.state.old

    def is_in_doubt(self, job: JobId) -> bool:
        """Return True if the job may have had newer attempts than we remember."""
        return self.state.recovering_since is not None and job in self.state.old

    def put(self, job: Job, *, durable: bool = True) -> Job:
        """Keep a job as it is now. ``durable`` is False if the job's nodes would report the change again."""
        state, before = self.state, self.state.jobs.get(job.id)
        self._index(before, job)
        self._call(before, job)
        self._charge(before, job)
        if isinstance(job.state, Ended):
            state.jobs = state.jobs.drop(job.id)
            self._remember_ended(job)
        else:
            state.jobs = state.jobs.put(job.id, job)
        self.line_up(job)
        self._changed[job.id] = durable or self._changed.get(job.id, False)
        # The node through which the job came must not trust another node's report of the end.
        if durable and job.spec.origin != HERE and job.told_by == HERE:
            self.do(TellOrigin(job.id))
        return job

    def line_up(self, job: Job) -> None:
        """Bring the job's place in the queue up to date: add the job, move it, or remove it."""
        ready = self._is_ready(job)
        array = array_key(job.spec)
        if array is None or job.spec.array_limit is None:
            self._line_up(job, ready=ready)
            return
        state = self.state
        throttle, let_in = (state.throttles.get(array) or ArrayThrottle()).changed(job, ready=ready)
        state.throttles = state.throttles.put(array, throttle) if throttle else state.throttles.drop(array)
        self._line_up(job, ready=ready and job.id in throttle.admitted)
        for name in let_in:
            self._line_up(state.jobs[name], ready=True)

    def _is_ready(self, job: Job) -> bool:
        """Return True if the job itself may be placed now; other jobs may still prevent that."""
        if not _may_be_placed(job) or job.id in self.state.old:
            return False
        at = self.state.ready_at(job)
        if at > self.now:
            self.wake(at, Wake.READY, job.id)
        return at <= self.now

    def _line_up(self, job: Job, *, ready: bool) -> None:
        state = self.state
        waiting = state.gangs if is_gang(job.spec) else state.waiting
        shape = shape_of(job, state.policy) if ready else None
        entry = waiting.where.get(job.id)
        if shape != (entry and entry[1]):
            waiting = waiting.drop(job.id)
            if shape is not None:
                # A job behind refused jobs with the same request needs no new pass.
                state.stale = state.stale or shape not in waiting.shapes
                waiting = waiting.put(job.id, job.sequence, shape)
        if is_gang(job.spec):
            state.gangs = waiting
        else:
            state.waiting = waiting

    def _index(self, before: Job | None, job: Job) -> None:
        """Update the indexes with the job's change."""
        state = self.state
        was, now = nodes_of(before), nodes_of(job)
        if state.rules.here and before is not None and isinstance(before.state, Placing):
            state.stale = True  # the job may have left the node's queue, and so made room for the next
        for node in was - now:
            rest = {name: None for name in state.by_node[node] if name != job.id}
            state.by_node = state.by_node.put(node, rest)
            state.stale = True
        for node in now:
            # This includes nodes that had the job before: the changed entry shows readers of a node that the
            # job changed.
            jobs = state.by_node.get(node) or {}
            state.by_node = state.by_node.put(node, {**jobs, job.id: None})
        if not now:
            state.booked = state.booked.drop(job.id)
        self._recount(before, job)

    def _recount(self, before: Job | None, job: Job) -> None:
        """Count an unfinished job, and count a waiting job for its person."""
        same = before is not None and before.spec is job.spec
        for counts, change in ((_is_going, count), (_waits, count_waiting)):
            was, now = before is not None and counts(before), counts(job)
            if same and was is now:
                continue
            if before is not None and was:
                change(self.state, before, -1)
            if now:
                change(self.state, job, 1)

    def _call(self, before: Job | None, now: Job | None) -> None:
        """Make a job findable by its current id and name only (None: the job is forgotten)."""
        state = self.state
        state.ids = _moved(state.ids, id_key, before, now)
        state.names = _moved(state.names, name_key, before, now)

    def _charge(self, before: Job | None, job: Job) -> None:
        """Charge an attempt's use to its project, once the attempt holds nothing any more."""
        if before is None or not isinstance(before.state, Running) or self.rules.here:
            return
        if before.told_by != HERE:
            return  # the job's owner did not vouch for the job
        same = isinstance(job.state, Running) and job.state.attempt == before.state.attempt
        if not same:
            used = Interval(before.project, self._permille(before), before.state.since, self.now)
            self.state.usage = with_interval(self.state.usage, used)

    def _permille(self, job: Job) -> int:
        """Return the permille of GPUs that a running job holds."""
        booked, total = self.base.booked.get(job.id, {}), 0
        for part in job.parts:
            member = self.state.members.get(part.node)
            gpus = {gpu.id: gpu for gpu in member.inventory.gpus} if member and member.inventory else {}
            grants = booked.get(part.node, ())
            request = part.request
            alone = request.gpu_count * (
                request.compute_permille or request.memory_permille or WHOLE_PERMILLE
            )
            total += permille_of(grants, gpus) if grants else alone
        return total

    def _remember_ended(self, job: Job) -> None:
        """Remember a finished job, forget the oldest ones, and wake the jobs that waited for this one."""
        state = self.state
        assert isinstance(job.state, Ended)
        if (earlier := state.ended.get(job.id)) is not None:
            state.ended_bytes -= earlier.spec.size_bytes
        state.ended = state.ended.put(job.id, job)
        state.ended_order = state.ended_order.put((job.state.at, job.sequence, job.id))
        state.ended_bytes += job.spec.size_bytes
        rules = self.rules
        while len(state.ended) > rules.ended_kept or state.ended_bytes > rules.ended_bytes_kept:
            oldest = state.ended_order.first()
            assert oldest is not None, "it orders all of them"
            self._drop_ended(state.ended[oldest[2]])
        if job.id in state.dependents:
            self.wake(self.now, Wake.AFTER, job.id)

    def forget(self, job: Job) -> None:
        """Remove a finished job, also from the store, because another job has its id now."""
        self._drop_ended(job)
        self._gone.append(job)

    def _drop_ended(self, job: Job) -> None:
        assert isinstance(job.state, Ended)
        self.state.ended_order = self.state.ended_order.drop((job.state.at, job.sequence, job.id))
        self.state.ended = self.state.ended.drop(job.id)
        self.state.ended_bytes -= job.spec.size_bytes
        self._call(job, None)

    # --- members ---------------------------------------------------------------------------------------

    def put_member(self, member: Member, *, durable: bool = True) -> Member:
        """Keep a member as it is now.

        Only the member's own data and people's decisions about it are durable.
        """
        if bool(member.free.waiting) != (member.queue_since is not None):
            member = replace(member, queue_since=self.now if member.free.waiting else None)
        self.state.members = self.state.members.put(member.name, member)
        if durable:
            self._members[member.name] = None
        return member

    def address_of(self, node: NodeName) -> str:
        """Return the address at which the other nodes of a gang reach this node.

        Return "" if the address is unknown.
        """
        member = self.state.members.get(node)
        return member.inventory.address if member is not None and member.inventory is not None else ""

    # --- the rest --------------------------------------------------------------------------------------

    def do(self, instruction: PoolInstruction) -> None:
        """Perform the instruction once.

        For one node and attempt, only the last order of each type is sent.
        """
        key: Hashable = instruction
        if isinstance(instruction, Send):
            key = (instruction.node, type(instruction.order), instruction.order.key)
        self._instructions[key] = instruction

    def wake(self, at: float, kind: Wake, name: str = "") -> None:
        """Set an alarm."""
        self.state.alarms = self.state.alarms.put((at, kind.value, name))

    def finish(self) -> PoolStep:
        """Return the step: the new state, the writes and the instructions."""
        state = self.state
        changed = {job: state.jobs.get(job) or state.ended.get(job) for job in self._changed}
        return PoolStep(
            state=state,
            instructions=tuple(self._instructions.values()),
            jobs=tuple(job for name, job in changed.items() if job is not None and self._changed[name]),
            shown=tuple(job for name, job in changed.items() if job is not None and not self._changed[name]),
            gone=tuple(self._gone),
            members=tuple(state.members[name] for name in self._members),
            accounts=self._accounts(),
            epoch=None if state.epoch == self.base.epoch else state.epoch,
            job=None if self.answer is None else state.find(self.answer),
        )

    def _accounts(self) -> AccountsChange | None:
        base, state = self.base, self.state
        change = AccountsChange(
            _changed_rows(base.usage, state.usage),
            None if state.turns == base.turns else state.turns,
            None if state.projects == base.projects else state.projects,
        )
        return None if change.is_empty else change


# --- facts read from a job -----------------------------------------------------------------------------


def is_tried_last(node: NodeName, state: PoolState, now: float) -> bool:
    """Return True if the node refused so much that other nodes are asked first."""
    rest, member = state.resting.get(node), state.members.get(node)
    return rest is not None and member is not None and (now < rest.until or member.free.waiting > 0)


def is_gang(spec: JobSpec) -> bool:
    """Return True if the job's parts start together or not at all."""
    return spec.nodes > 1 or spec.span


def is_incomplete(job: Job) -> bool:
    """Return True if the job is an adopted gang and nodes did not report some of its parts."""
    if not is_gang(job.spec):
        return False
    if job.spec.span:
        return sum(part.request.gpu_count for part in job.parts) < job.spec.request.gpu_count
    return len(job.parts) < job.spec.nodes


def nodes_of(job: Job | None) -> frozenset[NodeName]:
    """Return the nodes with an unfinished part of the job's attempt, as far as is known."""
    if job is None or isinstance(job.state, Queued | Ended):
        return frozenset()
    return frozenset(part.node for part in job.state.parts if not is_over(part))


def is_over(part: Part) -> bool:
    return part.state is not None and part.state.is_final


def _may_be_placed(job: Job) -> bool:
    return isinstance(job.state, Queued) and not job.held_by and not job.awaits


def shape_of(job: Job, policy: Policy) -> JobShape:
    """Return the key that the job shares with the jobs that are decided alike."""
    request = job.spec.request
    rules = policy.classes[request.lease_class]
    return JobShape(
        job.project,
        rules.priority + job.priority,
        rules.order,
        request,
        job.spec.target,
        job.not_on,
    )


def array_key(spec: JobSpec) -> ArrayKey | None:
    return None if spec.array is None else (spec.owner.principal, spec.array)


def count(state: PoolState, job: Job, by: int) -> None:
    """Add an unfinished job to the totals (1) or remove it (-1), in a state that is being made."""
    state.realms = _changed(state.realms, job.spec.owner.realm, job.spec, by)
    state.spec_bytes += by * job.spec.size_bytes


def count_waiting(state: PoolState, job: Job, by: int) -> None:
    """Add a waiting job to its person's total (1) or remove it (-1)."""
    state.queued = _changed(state.queued, job.spec.owner.person, job.spec, by)


def _is_going(job: Job) -> bool:
    return not isinstance(job.state, Ended)


def _waits(job: Job) -> bool:
    return isinstance(job.state, Queued)


def _changed(
    totals: PersistentMap[str, Total], key: str, spec: JobSpec, by: int
) -> PersistentMap[str, Total]:
    total = totals.get(key, NOTHING).changed(spec, by)
    return totals.put(key, total) if total.jobs else totals.drop(key)


def id_key(job: Job) -> IdKey:
    return job.spec.owner.person, isinstance(job.state, Ended), job.id


def name_key(job: Job) -> NameKey | None:
    """Return the key of the job's name, or None if its container has no name of its own."""
    person, name = job.spec.owner.person, job.spec.name
    return (person, name, isinstance(job.state, Ended), -job.sequence, job.id) if name else None


def _moved(
    index: PersistentSortedList[_Key], key: Callable[[Job], _Key | None], before: Job | None, now: Job | None
) -> PersistentSortedList[_Key]:
    was, to = None if before is None else key(before), None if now is None else key(now)
    if was == to:
        return index
    index = index if was is None else index.drop(was)
    return index if to is None else index.put(to)


def with_interval(usage: Usage, interval: Interval) -> Usage:
    """Return the usage with one more interval; the books of other projects are the same objects as before."""
    changed = Usage(usage.half_life_seconds, {interval.project: usage.books.get(interval.project, {})})
    return replace(usage, books={**usage.books, **changed.record([interval]).books})


def _changed_rows(before: Usage, after: Usage) -> tuple[UsageRow, ...]:
    if before.books is after.books:
        return ()
    return tuple(
        (project, bucket, amount)
        for project, buckets in after.books.items()
        if buckets is not before.books.get(project)
        for bucket, amount in buckets.items()
        if before.books.get(project, {}).get(bucket) != amount
    )
