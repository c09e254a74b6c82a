"""Keep the fleet: hosts with GPUs, the best place for a request, and decisions that can be taken back.

One decision changes one host. Each kind of request keeps the hosts in its order and asks again only those
that have changed since it last asked, so a decision does not look through the fleet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy as shallow_copy
from dataclasses import dataclass, field

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import Grant, LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.placement.demand_profile import DemandProfile
from gpushared.domain.scheduling.placement.free_capacity import (
    FreeCapacities,
    FreeCapacity,
    Reason,
    free_capacities,
    grant_on,
    refuse,
)
from gpushared.domain.scheduling.placement.gpu_choice import (
    HostReason,
    Score,
    choose,
    rate,
)
from gpushared.domain.scheduling.placement.hosts import (
    Host,
    HostFree,
    after_grants,
    features_of,
    free_of,
)
from gpushared.domain.scheduling.placement.policies import (
    PlacementPolicy,
    PolicyName,
    Together,
    policy_for,
)
from gpushared.domain.scheduling.placement.project_affinity import ProjectAffinity, worth_rating
from gpushared.domain.scheduling.placement.ranking import Entry, Ranking
from gpushared.domain.scheduling.placement.request_shape import (
    Kind,
    Need,
    kind_of,
    size_of,
)

MAX_RANKINGS = 1024
"""So many kinds keep their order of the hosts; beyond, the kind that was not asked for longest is dropped."""
CHANGES_PER_HOST = 8
"""If the changes are more than so many per host, rankings that have not read them start anew."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Name the place of a request: a host, and parts of its GPUs (none for a request without GPUs)."""

    host: str
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class NoPlace:
    """Tell that no host can take the request, and how many hosts refused for which reason."""

    refusals: Mapping[HostReason, int]


@dataclass(frozen=True, slots=True)
class _Booking:
    host: int
    request: Request
    grants: tuple[Grant, ...]


@dataclass(slots=True)
class _Log:
    """Record in order which hosts changed; ``start``: how many older entries were dropped."""

    start: int = 0
    hosts: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.hosts)


class Fleet:
    """Keep hosts, their free capacity, and their leases; ``policy`` decides among the hosts that fit."""

    def __init__(
        self,
        hosts: Iterable[Host],
        policy: PolicyName | PlacementPolicy = PolicyName.FRAGMENTATION,
        *,
        capacities: FreeCapacities | None = None,
        demand_profile: DemandProfile | None = None,
        together: Together = Together.OFF,
    ) -> None:
        """Make a fleet of these hosts.

        ``capacities``: the free capacity of GPUs that something uses already; all other GPUs are untouched.
        ``demand_profile``: the demand that was learned elsewhere, which the fleet goes on learning. ``together``:
        a request goes where leases with the same ``project`` are, if that costs little.
        """
        self.hosts = tuple(hosts)
        self.policy = policy
        self.demand_profile = demand_profile or DemandProfile()
        self._at = {host.name: at for at, host in enumerate(self.hosts)}
        self._home = {
            gpu.id: (at, position)
            for at, host in enumerate(self.hosts)
            for position, gpu in enumerate(host.gpus)
        }
        known_features: dict[tuple[object, ...], int] = {}
        self._free = [_free_at_start(host, capacities or {}, known_features) for host in self.hosts]
        self._leases: dict[LeaseId, _Booking] = {}
        self._affinity = ProjectAffinity() if together is Together.PROJECT else None
        self._undo: list[tuple[int, HostFree, LeaseId, _Booking | None]] = []
        self._log = _Log()
        self._rankings: dict[Kind, Ranking] = {}
        self._supply = _supply(self.hosts)
        self._policies = (self.demand_profile.lessons, self._new_policy())

    def copy(self) -> Fleet:
        """Return the same fleet, to try decisions on.

        The copy's lessons and decisions do not come back here.
        """
        twin = shallow_copy(self)
        twin._detach()  # noqa: SLF001 - of the same class
        return twin

    def _detach(self) -> None:
        self.demand_profile = self.demand_profile.copy()
        self._free, self._leases = list(self._free), dict(self._leases)
        self._affinity = None if self._affinity is None else self._affinity.copy()
        self._undo, self._log, self._rankings = [], _Log(), {}

    # --- asking ------------------------------------------------------------------------------------------

    def see(self, request: Request) -> None:
        """Let the policy learn that such a request came.

        Callers call this once for each request, not at each try.
        """
        size = size_of(request)
        if size is not None:
            self.demand_profile.see(size)

    def place(
        self, request: Request, *, closed: Collection[GpuId] = (), host: str | None = None
    ) -> Placement | NoPlace:
        """Return the best place, or why there is none. Nothing is booked; see ``take``.

        ``closed``: GPUs that the request must not get. ``host``: the only host that will do.
        """
        closed = self._closed_to(request, closed)
        only = self._only_hosts(request, host)
        if only is not None:
            return self._place_on(request, only, closed)
        ranking = self._ranking(request)
        touched = {self._home[gpu][0] for gpu in closed if gpu in self._home}
        best = ranking.best(touched)
        refused: list[HostReason] = []
        for at in touched:
            answer = rate(ranking.need, self._free[at], ranking.policy, closed)
            if isinstance(answer, HostReason):
                refused += [answer] * ranking.could_take(at)
            elif best is None or (answer, at) < best:
                best = answer, at
        if best is None:
            return NoPlace(ranking.refusals + Counter(refused))
        project_affinity = self._affinity_of(request)
        at = self._nearest_affinity(ranking, best, closed, project_affinity) if project_affinity else best[1]
        return self._placement(ranking.need, at, ranking.policy, closed, project_affinity)

    def refusals(self, request: Request) -> Counter[Reason]:
        """Count the GPUs that refuse their part, by reason; this looks at each GPU, for answers to people."""
        refusals = (refuse(request, capacity) for free in self._free for capacity in free.capacities)
        return Counter(refusal.reason for refusal in refusals if refusal is not None)

    def free(self, host: str) -> HostFree:
        """Return the free capacity of a host."""
        return self._free[self._at[host]]

    def capacity(self, gpu: GpuId) -> FreeCapacity:
        """Return the free capacity of a GPU; KeyError if the fleet does not have the GPU."""
        at, position = self._home[gpu]
        return self._free[at].capacities[position]

    def host_of(self, gpu: GpuId) -> str:
        """Return the host of a GPU; KeyError if the fleet does not have the GPU."""
        return self.hosts[self._home[gpu][0]].name

    def holder(self, lease: LeaseId) -> Placement | None:
        """Return the place of a lease, or None."""
        booking = self._leases.get(lease)
        return None if booking is None else Placement(self.hosts[booking.host].name, booking.grants)

    # --- deciding ----------------------------------------------------------------------------------------

    def take(self, lease: LeaseId, request: Request, placement: Placement) -> None:
        """Book a placement that fits: the caller passes the answer of ``place``, or a fact."""
        assert lease not in self._leases, f"{lease} holds something already"
        at = self._at[placement.host]
        self._book(lease, None, _Booking(at, request, placement.grants))

    def book_existing(self, leases: Iterable[tuple[LeaseId, Request, tuple[Grant, ...]]]) -> None:
        """Book many leases that exist already, each on one host; this cannot be undone."""
        by_host: dict[int, list[_Booking]] = {}
        for lease, request, grants in leases:
            at = self._home[grants[0].gpu][0]
            self._leases[lease] = _Booking(at, request, grants)
            if self._affinity is not None:
                self._affinity.change(None, self._leases[lease])
            by_host.setdefault(at, []).append(self._leases[lease])
        for at, bookings in by_host.items():
            self._free[at] = self._changed(at, bookings, 1)
            self._log.hosts.append(at)

    def give(self, lease: LeaseId) -> None:
        """Free the grants of a lease that has ended; KeyError if the lease holds nothing."""
        self._book(lease, self._leases[lease], None)

    def give_all(self, leases: Iterable[LeaseId]) -> None:
        """Free the grants of these leases, without those that hold nothing, at the price of one ``give``."""
        by_host: dict[int, dict[LeaseId, _Booking]] = {}
        for lease in leases:
            if (booking := self._leases.get(lease)) is not None:
                by_host.setdefault(booking.host, {})[lease] = booking
        for at, bookings in by_host.items():
            before, after = self._free[at], self._changed(at, bookings.values(), -1)
            for lease, booking in bookings.items():
                self._undo.append((at, before, lease, booking))
                self._set(at, after, lease, None)

    def renew(self, host: Host, capacities: FreeCapacities) -> None:
        """Replace a host on which nobody holds anything, with the same GPUs; this cannot be undone.

        ``capacities`` has an entry for each of the host's GPUs.
        """
        at = self._at[host.name]
        self.hosts = (*self.hosts[:at], host, *self.hosts[at + 1 :])
        self._free[at] = free_of(host, [capacities[gpu.id] for gpu in host.gpus])
        self._log.hosts.append(at)

    def mark(self) -> int:
        """Return a point to which ``undo`` comes back."""
        return len(self._undo)

    def undo(self, mark: int) -> None:
        """Take back all that was taken and given since the mark."""
        while len(self._undo) > mark:
            at, free, lease, booking = self._undo.pop()
            self._set(at, free, lease, booking)

    def commit(self) -> None:
        """Forget how to take back the decisions so far."""
        self._undo.clear()

    def _book(self, lease: LeaseId, before: _Booking | None, after: _Booking | None) -> None:
        booking, sign = (after, 1) if after is not None else (before, -1)
        assert booking is not None, "either it takes or it gives"
        self._undo.append((booking.host, self._free[booking.host], lease, before))
        self._set(booking.host, self._changed(booking.host, (booking,), sign), lease, after)

    def _changed(self, at: int, bookings: Collection[_Booking], sign: int) -> HostFree:
        grants = [
            (self._home[grant.gpu][1], grant, booking.request.wants_whole_gpus)
            for booking in bookings
            for grant in booking.grants
        ]
        cpu = sum(booking.request.host_cpu_milli or 0 for booking in bookings)
        memory = sum(booking.request.host_memory_bytes or 0 for booking in bookings)
        return after_grants(self._free[at], grants, cpu, memory, sign)

    def _set(self, at: int, free: HostFree, lease: LeaseId, booking: _Booking | None) -> None:
        self._free[at] = free
        before = self._leases.pop(lease, None)
        if booking is not None:
            self._leases[lease] = booking
        if self._affinity is not None:
            self._affinity.change(before, booking)
        self._log.hosts.append(at)
        if len(self._log.hosts) > CHANGES_PER_HOST * max(64, len(self.hosts)):
            self._log = _Log(self._log.end)

    # --- helpers of place --------------------------------------------------------------------------------

    def _closed_to(self, request: Request, closed: Collection[GpuId]) -> Collection[GpuId]:
        if not request.away_from:
            return closed
        bookings = (self._leases.get(LeaseId(lease)) for lease in request.away_from)
        return {grant.gpu for booking in bookings if booking is not None for grant in booking.grants}.union(
            closed
        )

    def _only_hosts(self, request: Request, host: str | None) -> set[int] | None:
        """Return the only hosts that will do, or None for all. Leases that are over do not count."""
        only = None if host is None else {self._at[host]}
        near = {booking.host for lease in request.near if (booking := self._leases.get(LeaseId(lease)))}
        if near:
            here = near if len(near) == 1 else set()
            only = here if only is None else only & here
        if request.gpus and only is None:
            only = {self._home[gpu][0] for gpu in request.gpus if gpu in self._home}
        return only

    def _place_on(
        self, request: Request, only: Collection[int], closed: Collection[GpuId]
    ) -> Placement | NoPlace:
        need, policy, project_affinity = Need.of(request), self._policy(), self._affinity_of(request)
        refusals = Counter({HostReason.OTHER_HOST: len(self.hosts) - len(only)})
        options: list[tuple[Score, int]] = []
        for at in only:
            answer = rate(need, self._free[at], policy, closed, project_affinity)
            if isinstance(answer, tuple):
                options.append((answer, at))
            else:
                refusals[answer] += 1
        if not options:
            return NoPlace(+refusals)
        return self._placement(need, min(options)[1], policy, closed, project_affinity)

    def _affinity_of(self, request: Request) -> Collection[GpuId]:
        return () if self._affinity is None else self._affinity.gpus(request.project)

    def _nearest_affinity(
        self, ranking: Ranking, best: Entry, closed: Collection[GpuId], project_affinity: Collection[GpuId]
    ) -> int:
        """Return the host of the best place when nearness to the request's project counts."""
        need, policy = ranking.need, ranking.policy
        hosts = {self._home[gpu][0] for gpu in project_affinity}
        costs = {at: cost for at in hosts if (cost := ranking.cost(at)) is not None}
        options = [(best[0], best[1] not in hosts, best[1])]
        for at in worth_rating(costs, best[0], need.count * policy.affinity_worth):
            answer = rate(need, self._free[at], policy, closed, project_affinity)
            if isinstance(answer, tuple):
                options.append((answer, False, at))
        return min(options)[2]

    def _placement(
        self,
        need: Need,
        at: int,
        policy: PlacementPolicy,
        closed: Collection[GpuId],
        project_affinity: Collection[GpuId],
    ) -> Placement:
        free = self._free[at]
        chosen = choose(need, free, policy, closed, project_affinity)
        grants = tuple(grant_on(need.request, free.capacities[position]) for position in chosen)
        return Placement(self.hosts[at].name, grants)

    def _policy(self) -> PlacementPolicy:
        if self._policies[0] != self.demand_profile.lessons:
            self._policies = (self.demand_profile.lessons, self._new_policy())
        return self._policies[1]

    def _new_policy(self) -> PlacementPolicy:
        if not isinstance(self.policy, PolicyName):
            return self.policy
        return policy_for(self.policy, self.demand_profile, self._supply)

    def _ranking(self, request: Request) -> Ranking:
        kind = kind_of(request)
        ranking = self._rankings.pop(kind, None)
        policy = self._policy()
        stale = ranking is None or ranking.policy is not policy or ranking.seen < self._log.start
        if ranking is None or stale:
            ranking = Ranking(Need.of(request), policy, self._free)
        elif ranking.seen < self._log.end:
            fresh = set(self._log.hosts[ranking.seen - self._log.start :])
            ranking.refresh(fresh, self._free)
        ranking.seen = self._log.end
        self._rankings[kind] = ranking
        if len(self._rankings) > MAX_RANKINGS:
            del self._rankings[next(iter(self._rankings))]
        return ranking


def _supply(hosts: Iterable[Host]) -> Mapping[str, float]:
    """Return the part of all GPUs that each model makes."""
    counts = Counter(gpu.name for host in hosts for gpu in host.gpus)
    return {model: count / counts.total() for model, count in counts.items()}


def _free_at_start(
    host: Host, capacities: FreeCapacities, known_features: dict[tuple[object, ...], int]
) -> HostFree:
    empty = free_capacities(host.gpus, (), {})
    present: Sequence[FreeCapacity] = [capacities.get(gpu, capacity) for gpu, capacity in empty.items()]
    return free_of(host, present, known_features.setdefault(features_of(host, present), len(known_features)))
