"""Hold the state of a node, and the draft in which one event changes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpushared.domain.jobs.attempt_log import Attempt, AttemptLog
from gpushared.domain.jobs.node_messages import Contact, TellCoordinator
from gpushared.domain.jobs.protocol import Report, StaleEpoch
from gpushared.domain.leases.events import Means
from gpushared.domain.leases.instructions import Instruction
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.model.errors import NotFound, PermissionRefused
from gpushared.domain.model.gpu import (
    Drained,
    Gpu,
    GpuId,
    drained_among,
)
from gpushared.domain.model.host import ContainerMemory, HostSize
from gpushared.domain.model.lease import (
    AttemptKey,
    ContainerId,
    Ended,
    Lease,
    LeaseId,
    LeaseState,
    Queued,
    Requeued,
    StoryEntry,
    Suspended,
)
from gpushared.domain.model.request import Caller, Request
from gpushared.domain.model.span import Span, milliseconds
from gpushared.domain.model.units import shown
from gpushared.domain.scheduling.gpu_amounts import permille_of
from gpushared.domain.scheduling.placement.demand_profile import DemandProfile
from gpushared.domain.scheduling.placement.free_capacity import FreeCapacity, free_capacities
from gpushared.domain.scheduling.project_accounts import AccountsChange, changed_rows
from gpushared.domain.scheduling.projects import DAY, Policy, Project
from gpushared.domain.scheduling.use_over_time import Interval, Usage

ENDED_KEPT_IN_MEMORY = 256
"""A client that asks again right after the end gets its answer; the journal has all ended leases."""

FAULT_SEEN_SECONDS = 3.0
"""A server whose fault no look has found for this long is well again; the GPUs are sampled more often."""

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_SCRAMBLE = 0x9E3779B1
"""The factor is odd, so multiplying by it modulo a power of two is one to one. Ids never repeat nor look
counted."""


def lease_id(sequence: int) -> LeaseId:
    """Return ``l-`` and four characters for the first million leases, five for the next 32 million, etc."""
    length = 4
    while sequence >= 32**length:
        length += 1
    number = sequence * _SCRAMBLE % 32**length
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return LeaseId("l-" + "".join(reversed(digits)))


@dataclass(frozen=True, slots=True)
class Use:
    """Record the newest sample: its time, the GPUs, and the memory of the leases with processes there."""

    at: float = 0.0
    readable: frozenset[GpuId] = frozenset()
    busy: frozenset[LeaseId] = frozenset()
    used_bytes: Mapping[LeaseId, Mapping[GpuId, int]] = field(default_factory=dict)
    lost: frozenset[GpuId] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeState:
    """Hold all facts that the rules know.

    ``leases`` holds the unfinished leases, in the order in which they were requested.
    """

    rules: Rules = field(default_factory=Rules)
    gpus: Mapping[GpuId, Gpu] = field(default_factory=dict)
    leases: Mapping[LeaseId, Lease] = field(default_factory=dict)
    ended: Mapping[LeaseId, Lease] = field(default_factory=dict)
    stray_bytes: Mapping[GpuId, int] = field(default_factory=dict)
    use: Use = field(default_factory=Use)
    drained: Mapping[GpuId, Drained] = field(default_factory=dict)
    """GPUs that get no new leases; a drain of a GPU holds for its parts."""
    faulted: Mapping[GpuId, float] = field(default_factory=dict)
    """When an MPS server on a GPU was last seen in a fault."""
    calm: Mapping[tuple[LeaseId, str], float] = field(default_factory=dict)
    """Since this time a lease is free of a trouble that the watchdog saw, until the calm has lasted long
    enough."""
    usage: Usage = field(default_factory=lambda: Usage(DAY))
    """The use of each project before now, by leases that hold nothing any more."""
    turns: Mapping[str, float] = field(default_factory=dict)
    """When each project last had its turn (see ``queue_order``)."""
    projects: Mapping[str, Project] = field(default_factory=dict)
    """The projects that were set at run time, which win over the configuration."""
    resting: Mapping[LeaseId, float] = field(default_factory=dict)
    """Since this time each running lease has done nothing on its GPUs."""
    container_memory: Mapping[LeaseId, ContainerMemory] = field(default_factory=dict)
    """The containers' limits and use of the host's memory, in the engine's last report."""
    quiet: bool = False
    """It is a quiet time by the configuration's calendar."""
    ahead_seconds: float = 0.0
    """The time of day, which people set, is this far ahead of the clock that counts time."""
    means: Means = field(default_factory=Means)
    host: HostSize = field(default_factory=HostSize)
    demand_profile: DemandProfile = field(default_factory=DemandProfile)
    """The requests so far, from which placement learns; a value, never changed in its place."""
    next_sequence: int = 1
    attempts: Mapping[str, AttemptLog] = field(default_factory=dict)
    """The log of each coordinator's orders."""
    contacts: Mapping[str, Contact] = field(default_factory=dict)
    """The contacts with each coordinator; ``contacts_written`` is the journal's copy, maybe older."""
    contacts_written: Mapping[str, Contact] = field(default_factory=dict)
    pruned_at: float = 0.0
    """The time of the last search for old final records."""
    boot_id: str = ""
    """The id distinguishes this boot of the machine from all others."""
    engine_surveyed: bool = True
    """False from a restart until the engine's first survey: a container may exist that no record has."""
    goes_down: bool = False
    """The machine is being shut down; the report of that comes before any container fails in the shutdown."""
    earlier_boots_over: bool = True
    """False from a restart until the attempts that may not begin in another boot than that of their order are
    ended."""

    def day(self, at: float) -> float:
        """Return a moment in the time of day, for people."""
        return at + self.ahead_seconds

    def begins_at(self, request: Request) -> float | None:
        """Return the earliest start of a request; people state it in the time of day."""
        return None if request.begin_at is None else request.begin_at - self.ahead_seconds

    def waiting(self) -> list[Lease]:
        """Return the queue in the order in which leases joined it; a lease that gave way joins it anew."""
        waiting = [lease for lease in self.leases.values() if waits(lease)]
        return sorted(waiting, key=_queue_key)

    def holders(self) -> list[Lease]:
        """Return the leases that hold a part of a GPU."""
        return [lease for lease in self.leases.values() if lease.grants]

    def capacities(self) -> dict[GpuId, FreeCapacity]:
        """Return the free capacity of each GPU."""
        return free_capacities(self.effective_gpus(), self.leases.values(), self.stray_bytes)

    def effective_gpus(self) -> list[Gpu]:
        """Return all GPUs; the drain of a GPU, or the fault of its MPS server, counts as its trouble."""
        return [self._effective(gpu) for gpu in self.gpus.values()]

    def _effective(self, gpu: Gpu) -> Gpu:
        if (drained := self.drain_of(gpu.id)) is not None:
            return replace(gpu, trouble=drained.trouble)
        if gpu.trouble is None and self.use.at - self.faulted.get(gpu.id, -math.inf) < FAULT_SEEN_SECONDS:
            return replace(gpu, trouble="waits for its MPS server to get over a fault")
        return gpu

    def drain_of(self, gpu_id: GpuId) -> Drained | None:
        """Return why the GPU gets no new leases, if it is drained."""
        gpu = self.gpus.get(gpu_id)
        return drained_among(self.drained, gpu_id, gpu.parent if gpu else None)

    @property
    def policy(self) -> Policy:
        """Return the policy of the configuration with the projects that were set since."""
        return self.rules.policy_with(self.projects)

    def with_rules(self, rules: Rules) -> NodeState:
        """Return the state under other rules; the recorded use stays, and decays as the new rules say."""
        usage = replace(self.usage, half_life_seconds=rules.policy.half_life_seconds)
        return replace(self, rules=rules, usage=usage)

    def find(self, name: LeaseId) -> Lease:
        """Return a lease, over or not; raises NotFound."""
        lease = self.leases.get(name) or self.ended.get(name)
        if lease is None:
            raise NotFound(
                f"there is no lease {shown(name)}", hint="`gpushare ps` and `gpushare queue` list them"
            )
        return lease

    def attempt_of(self, lease: Lease) -> Attempt | None:
        """Return the record of the attempt that a lease is for."""
        attempt_log = self.attempts.get(lease.coordinator)
        return None if attempt_log is None or lease.attempt is None else attempt_log.get(lease.attempt)

    def attempt_lease(self, attempt: Attempt) -> Lease | None:
        """Return the lease of an attempt, unless the lease is over."""
        return None if attempt.lease is None else self.leases.get(attempt.lease)

    def of_container(self, container: ContainerId) -> Lease | None:
        """Return the lease that is not over and has this container."""
        return next((lease for lease in self.leases.values() if lease.container == container), None)

    def of_device(self, device_name: str) -> Lease | None:
        """Return the lease that is not over and goes by this device name."""
        return next((lease for lease in self.leases.values() if lease.device_name == device_name), None)


def waits(lease: Lease) -> bool:
    """Return True if the lease is in the queue; a paused lease is in it only if it is to come back."""
    state = lease.state
    return isinstance(state, Queued | Requeued) or (isinstance(state, Suspended) and state.wanted)


def _queue_key(lease: Lease) -> tuple[int, bool]:
    """Return a sort key for the queue: numbers and not times, because clocks are set back."""
    state = lease.state
    return (state.place, False) if isinstance(state, Requeued | Suspended) else (lease.sequence, True)


@dataclass(frozen=True, slots=True)
class Step:
    """Hold the result of one event. Nothing of the result is true before the journal has it."""

    state: NodeState
    instructions: tuple[Instruction, ...] = ()
    changed: tuple[Lease, ...] = ()
    entries: tuple[tuple[LeaseId, StoryEntry], ...] = ()
    drained: Mapping[GpuId, Drained] | None = None
    """All drained GPUs, if that changed."""
    accounts: AccountsChange | None = None
    """The changes of the projects' standing."""
    lease: Lease | None = None
    """The lease that the event asked for or about, as it is now."""
    attempts: tuple[Attempt, ...] = ()
    """The records that changed."""
    contacts: Mapping[str, Contact] = field(default_factory=dict)
    """The contacts that are to be written."""
    forgotten_before: float | None = None
    """Older final records are not needed any more."""
    report: Report | StaleEpoch | None = None
    """The answer to an order."""
    spans: tuple[Span, ...] = ()
    """What leases held, and how long they waited, until their present change."""

    @property
    def is_to_write(self) -> bool:
        """Return True if the step has anything that must be durable."""
        changed = self.changed or self.entries or self.attempts or self.contacts
        optional = (self.drained, self.accounts, self.forgotten_before)
        return bool(changed) or any(value is not None for value in optional)


class Draft:
    """Collect one event's work on a state; ``finish`` makes the step. The state itself is never touched."""

    def __init__(self, state: NodeState, now: float) -> None:
        self.base = state
        self.now = now
        self.rules = state.rules
        self.gpus = dict(state.gpus)
        self.stray_bytes = dict(state.stray_bytes)
        self.use = state.use
        self.drained = dict(state.drained)
        self.faulted = dict(state.faulted)
        self.calm = dict(state.calm)
        self.means = state.means
        self.demand_profile = state.demand_profile
        self.resting = dict(state.resting)
        self.container_memory = state.container_memory
        self.quiet = state.quiet
        self.ahead_seconds = state.ahead_seconds
        self.usage = state.usage
        self.turns = state.turns
        self.projects = state.projects
        self.leases = dict(state.leases)
        self.next_sequence = state.next_sequence
        self.engine_surveyed = state.engine_surveyed
        self.earlier_boots_over = state.earlier_boots_over
        self.goes_down = state.goes_down
        self.attempts = dict(state.attempts)
        self.contacts = dict(state.contacts)
        self.pruned_at = state.pruned_at
        self.forgotten_before: float | None = None
        self.report: Report | StaleEpoch | None = None
        self.report_to = ""
        self._records: dict[tuple[str, AttemptKey], None] = {}
        self._contacts_to_write: dict[str, None] = {}
        self.instructions: list[Instruction] = []
        self._changed: dict[LeaseId, Lease] = {}
        self._entries: list[tuple[LeaseId, StoryEntry]] = []
        self._ended: dict[LeaseId, Lease] = {}
        self._spans: list[Span] = []
        self.answer: LeaseId | None = None

    def view(self) -> NodeState:
        """Return the state with the draft's changes so far."""
        return replace(
            self.base,
            gpus=self.gpus,
            leases=self.leases,
            stray_bytes=self.stray_bytes,
            use=self.use,
            drained=self.drained,
            faulted=self.faulted,
            calm=self.calm,
            means=self.means,
            demand_profile=self.demand_profile,
            resting=self.resting,
            container_memory=self.container_memory,
            quiet=self.quiet,
            ahead_seconds=self.ahead_seconds,
            usage=self.usage,
            turns=self.turns,
            projects=self.projects,
            next_sequence=self.next_sequence,
            engine_surveyed=self.engine_surveyed,
            earlier_boots_over=self.earlier_boots_over,
            goes_down=self.goes_down,
            attempts=self.attempts,
            contacts=self.contacts,
            pruned_at=self.pruned_at,
        )

    def keep_attempts(self, attempt_log: AttemptLog, key: AttemptKey | None = None) -> None:
        """Keep a coordinator's log as it is now; ``key`` names the record that may have changed."""
        self.attempts[attempt_log.coordinator] = attempt_log
        if key is not None:
            self._records[attempt_log.coordinator, key] = None

    def write_contact(self, coordinator: str) -> None:
        """Mark the contact with this coordinator, as it is at the end of the event, to be written."""
        self._contacts_to_write[coordinator] = None

    def changed_leases(self) -> list[Lease]:
        """Return the leases that the event changed, as they are now."""
        return list(self._changed.values())

    def put(self, lease: Lease) -> Lease:
        """Store a lease whose fields changed, with the newest line of its story."""
        before = self.leases.get(lease.id)
        lease = self._with_wait(before, self._booked(before, lease))
        if isinstance(lease.state, Ended):
            self.leases.pop(lease.id, None)
            self._ended[lease.id] = lease
        else:
            self.leases[lease.id] = lease
        self._changed[lease.id] = lease
        self._entries.append((lease.id, lease.story[-1]))
        return lease

    def _with_wait(self, before: Lease | None, lease: Lease) -> Lease:
        """Return the lease with the time since which it waits, and record the wait that is over."""
        waited = before is not None and waits(before)
        if waits(lease):
            since = before.waits_since if before is not None and waited else self.now
            return replace(lease, waiting_since=since)
        if before is not None and waited and before.waits_since is not None:
            self._record(
                Span(lease.id, before.payer, milliseconds(before.waits_since), milliseconds(self.now))
            )
        return replace(lease, waiting_since=None)

    def _record(self, span: Span) -> None:
        if span.end_ms > span.start_ms:
            self._spans.append(span)

    def _booked(self, before: Lease | None, lease: Lease) -> Lease:
        """Book the use of the grants that the lease held until now, if they changed."""
        grants = before.grants if before is not None else ()
        since = before.holds_since if before is not None else None
        if lease.grants == grants:
            return replace(lease, held_since=since)
        if before is not None and since is not None:
            used = Interval(before.payer, permille_of(grants, self.gpus), since, self.now)
            self.usage = self.usage.record([used]).prune(self.now)
            for span in held_spans(before, since, self.now, self.gpus):
                self._record(span)
            served = before.preemption.served_seconds + max(0.0, self.now - since)
            lease = replace(lease, preemption=replace(lease.preemption, served_seconds=served))
        return replace(lease, held_since=self.now if lease.grants else None)

    def move(self, lease: Lease, to: LeaseState, why: str) -> Lease:
        """Move a lease to its next state."""
        return self.put(lease.move(to, self.now, why))

    def do(self, instruction: Instruction) -> None:
        if instruction not in self.instructions:
            self.instructions.append(instruction)

    def find(self, name: LeaseId) -> Lease:
        """Return a lease as it is now in this draft; raises NotFound."""
        return self.leases.get(name) or self._ended.get(name) or self.base.find(name)

    def owned(self, name: LeaseId, caller: Caller) -> Lease:
        """Return a lease that this caller may change; raises NotFound or PermissionRefused."""
        lease = self.find(name)
        if not caller.trusted and lease.owner_uid != caller.uid:
            raise PermissionRefused(
                f"lease {lease.id} belongs to {lease.owner_name}",
                hint="ask its owner, or somebody who is root or in the docker group",
            )
        return lease

    def finish(self) -> Step:
        """Return the step: the new state, the writes and the instructions."""
        ended = _newest({**self.base.ended, **self._ended})
        state = replace(self.view(), ended=ended)
        lease = None if self.answer is None else self.find(self.answer)
        attempts = self._changed_attempts()
        contacts = {name: self.contacts[name] for name in self._contacts_to_write if name in self.contacts}
        if contacts:
            state = replace(state, contacts_written={**state.contacts_written, **contacts})
        return Step(
            state=state,
            instructions=(*self.instructions, *self._to_tell(attempts)),
            attempts=attempts,
            contacts=contacts,
            forgotten_before=self.forgotten_before,
            report=self.report,
            changed=tuple(self._changed.values()),
            entries=tuple(self._entries),
            drained=None if self.drained == self.base.drained else self.drained,
            accounts=self._accounts(),
            lease=lease,
            spans=tuple(self._spans),
        )

    def _changed_attempts(self) -> tuple[Attempt, ...]:
        records = [(self.attempts[name].get(key), name, key) for name, key in self._records]
        before = self.base.attempts
        return tuple(
            record
            for record, name, key in records
            if record is not None and (name not in before or before[name].get(key) != record)
        )

    def _to_tell(self, attempts: tuple[Attempt, ...]) -> list[TellCoordinator]:
        """Return the reports on the changed attempts, except the report that answers the event itself."""
        answer = self.report
        answered = (answer.key, answer.revision) if isinstance(answer, Report) else None
        return [
            TellCoordinator(attempt.key, attempt.coordinator)
            for attempt in attempts
            if (attempt.key, attempt.revision) != answered
        ]

    def _accounts(self) -> AccountsChange | None:
        base = self.base
        change = AccountsChange(
            changed_rows(base.usage, self.usage),
            None if self.turns == base.turns else self.turns,
            None if self.projects == base.projects else self.projects,
        )
        return None if change.is_empty else change


def held_spans(lease: Lease, since: float, until: float, gpus: Mapping[GpuId, Gpu]) -> list[Span]:
    """Return a span for each of the lease's present grants."""
    start, end = milliseconds(since), milliseconds(until)
    return [
        Span(lease.id, lease.payer, start, end, grant.gpu, permille_of([grant], gpus), grant.memory_bytes)
        for grant in lease.grants
    ]


def open_spans(state: NodeState, now: float) -> list[Span]:
    """Return the spans up to now of all leases that hold something or wait."""
    spans = []
    for lease in state.leases.values():
        if (since := lease.holds_since) is not None:
            spans += held_spans(lease, since, now, state.gpus)
        elif waits(lease) and (since := lease.waits_since) is not None:
            spans.append(Span(lease.id, lease.payer, milliseconds(since), milliseconds(now)))
    return [span for span in spans if span.end_ms > span.start_ms]


def _newest(ended: dict[LeaseId, Lease]) -> dict[LeaseId, Lease]:
    surplus: Iterable[LeaseId] = list(ended)[: max(0, len(ended) - ENDED_KEPT_IN_MEMORY)]
    for old in surplus:
        del ended[old]
    return ended
