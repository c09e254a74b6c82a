"""Hold the state of one pass: the bookings so far, and the tries for one request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gpushared.domain.model.elastic import is_elastic, largest
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import Grant, LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.capacity_port import NOTHING, CapacityPort
from gpushared.domain.scheduling.fixed_quota import (
    FixedParts,
    Parts,
    UnreleasedCapacity,
    arranged,
    request_for,
)
from gpushared.domain.scheduling.fixed_quota_gpus import Arrangement
from gpushared.domain.scheduling.holder_index import FIXED_CLASS, HolderIndex
from gpushared.domain.scheduling.outcome import granted
from gpushared.domain.scheduling.pass_records import (
    NEVER,
    PassDecision,
    PendingRequest,
    Preemption,
    Reservation,
    RunningLease,
    WaitReason,
)
from gpushared.domain.scheduling.preemption import (
    PreemptionReason,
    PreemptionRules,
    Victims,
    cheapest,
    memory_left,
    victim,
)
from gpushared.domain.scheduling.projects import GivesWay
from gpushared.domain.scheduling.queue_order import RequestLine
from gpushared.domain.scheduling.quota_usage import QuotaUsage
from gpushared.domain.scheduling.reservation import HostIndex, soonest
from gpushared.domain.scheduling.use_over_time import Usage

_Kind = tuple[str, Request]
"""A request, and its project if the parts that are fixed for the project are open to it."""
TRIES = 4
"""The pass looks for victims this many times if the victims found are build work that has no other place."""


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """Hold grants for a request, and the leases that must go first."""

    grants: tuple[Grant, ...]
    victims: Victims | None = None
    behind: tuple[LeaseId, ...] = ()
    """The waiting leases for which these GPUs are kept: the new lease leaves when one of them can start."""


class SchedulingPass:
    """Book grants and victims, and remember why other requests wait."""

    def __init__(
        self,
        holder_index: HolderIndex,
        usage: Usage,
        capacity: CapacityPort,
        turns: Mapping[str, float],
        now: float,
    ) -> None:
        """Begin a pass. ``holder_index`` has the holders; it stays as it is."""
        policy = holder_index.policy
        self.policy = policy
        self.capacity = capacity
        self.now = now
        self.quota_usage = QuotaUsage(holder_index, usage, now)
        self.index = HostIndex(self.quota_usage.holder_index, policy.notice_seconds + policy.grace_seconds)
        self.grants: dict[LeaseId, tuple[Grant, ...]] = {}
        self.preemptions: list[Preemption] = []
        self.verdicts: dict[LeaseId, PassDecision] = {}
        self.reservations: list[Reservation] = []
        self.turns = dict(turns)
        self.behind: dict[LeaseId, tuple[LeaseId, ...]] = {}
        self.look_again_at = NEVER
        self._preemption_rules = PreemptionRules(policy, self.quota_usage, self.turns, now)
        self._fixed = FixedParts(capacity)
        self._unreleased = UnreleasedCapacity()
        self._head_waits = False
        self._leaving: dict[LeaseId, RunningLease] = {}
        self._vacating: frozenset[GpuId] = NOTHING
        self._anywhere: dict[_Kind, tuple[int, tuple[Grant, ...]]] = {}
        """By kind of request, the version of the holder index, and the grants if no GPUs were kept."""
        self._refused: set[tuple[_Kind, frozenset[GpuId]]] = set()
        """The kinds that do not fit, each with the closed GPUs: nothing becomes free in a pass."""
        self._drained_for: LeaseId | None = None
        self._unmet: set[LeaseId] = set()
        """Requests within their project's guarantee that no host can serve."""

    # --- bookings ------------------------------------------------------------------------------------------

    def keep_fixed(self) -> None:
        """Keep the unused part of the fixed quotas.

        A quota that finds no place has GPUs reserved too, until the leases there end.
        """
        if not any(project.has_fixed for project in self.policy.projects.values()):
            return
        arrangement = self._arranged()
        self._fixed.keep(arrangement.parts)
        for need, permille in arrangement.lacking:
            self._reserve(LeaseId(""), need.project, request_for(need, permille))
        self._fixed.keep(arrangement.pieces)

    def _arranged(self) -> Arrangement:
        return arranged(self.policy, self.quota_usage, self.capacity, self._unreleased)

    def fixed(self) -> Mapping[str, tuple[Grant, ...]]:
        """Return the grants that are kept for the fixed quotas, by project."""
        return self._fixed.grants()

    def book_out(self, holder: RunningLease) -> None:
        """Book a lease out."""
        lease, left_bytes = holder.lease, memory_left([holder])
        self.capacity.give(lease.id, lease.request, lease.grants, left_bytes=left_bytes)
        self.quota_usage.remove(holder)

    def book_back(self, holder: RunningLease) -> None:
        """Undo ``book_out``."""
        self.capacity.take(holder.lease.id, holder.lease.request, holder.lease.grants)
        self.quota_usage.add(holder)

    def book_in(
        self, candidate: PendingRequest, grants: tuple[Grant, ...], behind: tuple[LeaseId, ...] = ()
    ) -> RunningLease:
        """Book grants; their lease is safe from the rest of this pass."""
        lease = granted(candidate.lease, grants, self.now)
        self.capacity.take(lease.id, lease.request, grants)
        holder = RunningLease(lease, candidate.project, candidate.priority, self.now, behind=behind)
        if behind:
            self.behind[candidate.lease.id] = behind
        self.quota_usage.add(holder)
        return holder

    def book(self, candidate: PendingRequest, placement: PlacementPlan, *, turn: bool) -> None:
        """Book the placement of a request: now, or for the time when the victims have left."""
        if placement.victims is None:
            placement = self._grown(candidate, placement)
            self.grants[candidate.lease.id] = placement.grants
        else:
            self._book_out_victims(candidate, placement.victims)
            self._vacate(placement.victims.holders)
            victims = tuple(victim(holder, self.now) for holder in placement.victims.holders)
            preemption = Preemption(
                candidate.lease.id, placement.grants, victims, placement.victims.why, turn
            )
            self.preemptions.append(preemption)
            self.verdicts[candidate.lease.id] = preempting(preemption)
        self.release(candidate.lease.id)
        if candidate.lease.request.lease_class is FIXED_CLASS:
            self._fixed.use(candidate.project, placement.grants)
        self.book_in(candidate, placement.grants, placement.behind)
        if turn:
            self.turns[candidate.project] = self.now

    def _grown(self, candidate: PendingRequest, placement: PlacementPlan) -> PlacementPlan:
        """Return as much of an elastic request as is free, kept for nobody, and in the project's quota."""
        if not is_elastic(candidate.lease.request):
            return placement
        grants = largest(candidate.lease.request, lambda size: self._free_now(candidate, size))
        return PlacementPlan(grants) if grants else placement

    def _free_now(self, candidate: PendingRequest, size: Request) -> tuple[Grant, ...]:
        allowed = self._allowed(replace(candidate, lease=replace(candidate.lease, request=size)))
        if isinstance(allowed, PassDecision):
            return ()
        return self.capacity.place(allowed, closed=self._closed(candidate, allowed))

    def finish(self, winner: PendingRequest, preemption: Preemption, staying: Sequence[RunningLease]) -> None:
        """Grant the winner of an earlier preemption, or keep its place until the last victim has left.

        If the GPUs were lost meanwhile, the pass looks at the winner like at every other request.
        """
        newly_leaving = [holder for holder in staying if holder.lease.id not in self._leaving]
        for holder in newly_leaving:
            self.book_out(holder)
        if not self._has(winner, preemption.grants):
            for holder in newly_leaving:
                self.book_back(holder)
            return
        if staying:
            self.verdicts[winner.lease.id] = preempting(preemption)
            self._vacate(staying)
            self._unreleased.leave(newly_leaving)
            self._unreleased.promise(winner, preemption.grants)
        else:
            self.grants[winner.lease.id] = preemption.grants
            if preemption.turn:
                self.turns[winner.project] = self.now
        self.book_in(winner, preemption.grants)

    def _has(self, winner: PendingRequest, grants: tuple[Grant, ...]) -> bool:
        """Return True if the request still fits on exactly these GPUs."""
        gpus = tuple(grant.gpu for grant in grants)
        try:
            return bool(self.capacity.place(replace(winner.lease.request, gpus=gpus)))
        except KeyError:
            return False

    def _book_out_victims(self, candidate: PendingRequest, victims: Victims) -> list[RunningLease]:
        """Book out the victims that no other winner has, and return them."""
        newly_leaving = [holder for holder in victims.holders if holder.lease.id not in self._leaving]
        for holder in newly_leaving:
            self.book_out(holder)
        self._unreleased.leave(newly_leaving)
        self._unreleased.promise(candidate, victims.grants)
        return newly_leaving

    def _vacate(self, holders: Iterable[RunningLease]) -> None:
        """Close the GPUs of leases that give way.

        The part beside the winner's stays closed until the leases have left.
        """
        for holder in holders:
            self._leaving[holder.lease.id] = holder
            self._vacating |= {grant.gpu for grant in holder.lease.grants}

    def is_done(self, lease: LeaseId) -> bool:
        """Return True if the pass is done with the request."""
        return lease in self.grants or lease in self.verdicts

    def wake(self, at: float) -> None:
        """Note that time alone may change the answer at this moment."""
        if self.now < at < self.look_again_at:
            self.look_again_at = at

    # --- placements ----------------------------------------------------------------------------------------

    def place_claim(self, candidate: PendingRequest, models: tuple[str, ...]) -> PlacementPlan | None:
        """Return a placement for a request within its project's guarantee.

        The GPUs are free, else taken back, else kept for others. Where fixed quotas stand in the way, they
        are kept on other GPUs from now on.
        """
        request = self._on(models, candidate.lease.request)
        with self._own_parts(candidate) as own_parts:
            grants = self._fixed.room_for(request, own_parts)
            placement = PlacementPlan(grants) if grants else self._taken_back(candidate, request)
        if (
            placement is None
            and self._fixed.owners()
            and candidate.lease.request.lease_class is not FIXED_CLASS
        ):
            return self._among_moved_parts(candidate, request)
        return placement

    def _taken_back(self, candidate: PendingRequest, request: Request) -> PlacementPlan | None:
        owed = self._closed(candidate, request, firm_only=True)
        for closed in dict.fromkeys((self._closed(candidate, request), owed)):
            placement = self._free(request, closed) or self._by_preemption(
                candidate, request, closed, claim=True
            )
            if placement is not None:
                return placement
        return None

    def _among_moved_parts(self, candidate: PendingRequest, request: Request) -> PlacementPlan | None:
        """Return a placement beside which the fixed quotas lack no more than now, and move their parts."""
        with self._fixed.lifted():
            lacking = self._arranged().lacking_permille
            placement = self._taken_back(candidate, request)
            arrangement = None if placement is None else self._arranged_beside(candidate, placement)
        if arrangement is None or arrangement.lacking_permille > lacking:
            return None
        self._fixed.rearrange((*arrangement.parts, *arrangement.pieces))
        return placement

    def place_at_once(self, candidate: PendingRequest) -> PlacementPlan | None:
        """Return a placement on GPUs that are free and kept for no other request."""
        allowed = self._allowed(candidate)
        if not isinstance(allowed, Request) or not self._room_anywhere(("", allowed)):
            return None
        return self._free(allowed, self._closed(candidate, allowed))

    @contextmanager
    def _own_parts(self, candidate: PendingRequest) -> Iterator[Parts]:
        """Free the parts that are fixed for the project's build work, while such work is being placed."""
        if candidate.lease.request.lease_class is not FIXED_CLASS:
            yield {}
            return
        with self._fixed.lifted(candidate.project) as own_parts:
            yield own_parts

    def place_ordinary(self, candidate: PendingRequest, *, turn: bool) -> PlacementPlan | PassDecision:
        """Return a placement for a request beyond its project's guarantee, or why there is none."""
        allowed = self._allowed(candidate)
        if isinstance(allowed, PassDecision):
            return allowed
        with self._own_parts(candidate) as own_parts:
            grants = self._fixed.room_for(allowed, own_parts)
            return (
                PlacementPlan(grants)
                if grants
                else self._beyond_fixed(candidate, allowed, turn=turn, owner=bool(own_parts))
            )

    def _beyond_fixed(
        self, candidate: PendingRequest, allowed: Request, *, turn: bool, owner: bool
    ) -> PlacementPlan | PassDecision:
        closed = self._closed(candidate, allowed)
        kind = (candidate.project if owner else "", allowed)
        anywhere = self._room_anywhere(kind)
        kept_gpus = frozenset(grant.gpu for grant in anywhere) & closed
        if anywhere and not kept_gpus:
            return PlacementPlan(anywhere)
        placement = self._off_kept_gpus(candidate, kind, closed) if kept_gpus else None
        if placement is not None:
            return placement
        placement = self._by_preemption(candidate, allowed, closed, turn=turn)
        if placement is not None:
            return placement
        return self._wait(candidate, allowed, kept_gpus, turn=turn)

    def _allowed(self, candidate: PendingRequest) -> Request | PassDecision:
        """Return the request on the models on which its project may have it."""
        request = candidate.lease.request
        if request.models and self.capacity.models().keys().isdisjoint(request.models):
            return request  # its models are gone, which no quota can explain
        if self.policy.classes[request.lease_class].gives_way is GivesWay.NEVER:
            models = self.quota_usage.claims(candidate, self.capacity)
            if not models:
                text = f"{request.lease_class} never gives way, and project {candidate.project} is guaranteed no more"
                return PassDecision(WaitReason.PROJECT_QUOTA, text)
            return self._on(models, request)
        models = self.quota_usage.within_limit(candidate, self.capacity)
        if not models and self.capacity.models():
            all_models = self.capacity.models().values()
            wanted = [gpu for gpu in all_models if not request.models or gpu.name in request.models]
            return self.quota_usage.beyond_limit(candidate.project, request, wanted)
        return self._on(models, request)

    def _on(self, models: tuple[str, ...], request: Request) -> Request:
        """Return the request on these models only."""
        return request if len(models) == len(self.capacity.models()) else replace(request, models=models)

    def _room_anywhere(self, kind: _Kind) -> tuple[Grant, ...]:
        """Return the grants for a kind of request if no GPUs were kept; a refusal stays for the pass."""
        version, answer = self.quota_usage.holder_index.version, self._anywhere.get(kind)
        if answer is None or (answer[1] and answer[0] != version):
            answer = self._anywhere[kind] = version, self.capacity.place(kind[1])
        return answer[1]

    def _off_kept_gpus(
        self, candidate: PendingRequest, kind: _Kind, closed: frozenset[GpuId]
    ) -> PlacementPlan | None:
        """Return a placement on GPUs that are kept for no other request.

        A request that yields may have kept GPUs until the other request can start.
        """
        _, request = kind
        placement = None if (kind, closed) in self._refused else self._free(request, closed)
        if placement is None:
            self._refused.add((kind, closed))
        if placement is not None or not candidate.yields:
            return placement
        firm = self._closed(candidate, request, firm_only=True)
        grants = self.capacity.place(request, closed=firm)
        gpus = {grant.gpu for grant in grants}
        behind = tuple(reservation.lease for reservation in self.reservations if reservation.gpus & gpus)
        return PlacementPlan(grants, behind=behind) if grants else None

    def _free(self, request: Request, closed: frozenset[GpuId]) -> PlacementPlan | None:
        grants = self.capacity.place(request, closed=closed)
        return PlacementPlan(grants) if grants else None

    def _by_preemption(
        self,
        candidate: PendingRequest,
        request: Request,
        closed: frozenset[GpuId],
        *,
        claim: bool = False,
        turn: bool = False,
    ) -> PlacementPlan | None:
        """Return a placement for which other leases give way."""
        if not (claim or turn or self._preemption_rules.may_preempt(candidate)):
            return None
        if claim or turn:
            victims = self._on_vacated_gpus(request, closed)
            if victims is not None and not self._fixed_at_stake(candidate, victims):
                return PlacementPlan(victims.grants, victims)
        may_go, next_at = self._preemption_rules.eligible(candidate, claim=claim, turn=turn)
        may_go = {lease: holder for lease, holder in may_go.items() if not self.is_done(lease)}
        for _ in range(TRIES if may_go else 0):
            victims = cheapest(request, may_go, self.index, self.capacity, closed, self._preemption_rules)
            at_stake = NOTHING if victims is None else self._fixed_at_stake(candidate, victims)
            if victims is not None and not at_stake:
                return PlacementPlan(victims.grants, victims)
            closed |= at_stake
            if victims is None:
                break
        self.wake(next_at)
        return None

    def _fixed_at_stake(self, candidate: PendingRequest, victims: Victims) -> frozenset[GpuId]:
        """Return the GPUs of victims that are build work, if the winner would get their fixed parts there."""
        builds = [holder for holder in victims.holders if self._is_fixed_for(holder, candidate)]
        if not builds:
            return NOTHING
        with self._fixed.lifted():
            lacking = self._arranged().lacking_permille
            if (
                self._arranged_beside(candidate, PlacementPlan(victims.grants, victims)).lacking_permille
                <= lacking
            ):
                return NOTHING
        return frozenset(grant.gpu for holder in builds for grant in holder.lease.grants)

    def _arranged_beside(self, candidate: PendingRequest, placement: PlacementPlan) -> Arrangement:
        """Return how fixed quotas would be kept if the placement were booked. Their parts must be lifted."""
        unreleased, self._unreleased = self._unreleased, self._unreleased.copy()
        victims = placement.victims
        newly_leaving = [] if victims is None else self._book_out_victims(candidate, victims)
        winner = self.book_in(candidate, placement.grants)
        arrangement = self._arranged()
        self.book_out(winner)
        for holder in newly_leaving:
            self.book_back(holder)
        self._unreleased = unreleased
        return arrangement

    def _is_fixed_for(self, holder: RunningLease, winner: PendingRequest) -> bool:
        """Return True if a victim is build work of a project with fixed quotas, and the winner is not."""
        if holder.lease.request.lease_class is not FIXED_CLASS:
            return False
        is_own_build = winner.project == holder.project and winner.lease.request.lease_class is FIXED_CLASS
        return self.policy.project(holder.project).has_fixed and not is_own_build

    def _on_vacated_gpus(self, request: Request, closed: frozenset[GpuId]) -> Victims | None:
        """Return a placement beside another winner's part, on GPUs that other leases are leaving already."""
        grants = self.capacity.place(request, closed=closed - self._vacating) if self._leaving else ()
        gpus = {grant.gpu for grant in grants}
        leaving = tuple(
            holder
            for holder in self._leaving.values()
            if any(grant.gpu in gpus for grant in holder.lease.grants)
        )
        return Victims(leaving, grants, frozenset({PreemptionReason.CLAIM})) if leaving else None

    # --- reservations --------------------------------------------------------------------------------------

    def reserve_turn(self, candidate: PendingRequest) -> None:
        """Keep GPUs for a project's next turn, before the pass looks at any other request."""
        allowed = self._allowed(candidate)
        if isinstance(allowed, Request):
            self._reserve(candidate.lease.id, candidate.project, allowed, turn=True)

    def reserve_drain(self, candidate: PendingRequest) -> bool:
        """Keep GPUs free for a request though nobody can foresee its start; return True if that helps it."""
        allowed = self._allowed(candidate)
        if not isinstance(allowed, Request):
            return False
        self._drained_for = candidate.lease.id
        if self._reserve(candidate.lease.id, candidate.project, allowed, turn=True):
            return True
        self._drained_for = None
        return False

    def release(self, lease: LeaseId) -> None:
        """Keep no GPUs for a request any more."""
        self.reservations = [reservation for reservation in self.reservations if reservation.lease != lease]

    def _reserve(
        self,
        lease: LeaseId,
        project: str,
        request: Request,
        *,
        turn: bool = False,
        rank: tuple[int, str] | None = None,
    ) -> bool:
        if lease:
            self.release(lease)
            if sum(bool(other.lease) for other in self.reservations) >= self.policy.reservations:
                return False
        closed = frozenset(gpu for reservation in self.reservations for gpu in reservation.gpus)
        fit = soonest(lease, request, self.index, self.capacity, closed, self.now)
        if fit is None:
            return False
        drains = lease == self._drained_for
        self.reservations.append(Reservation(lease, project, *fit, turn=turn, rank=rank, drains=drains))
        return True

    def _closed(
        self, candidate: PendingRequest, request: Request, *, firm_only: bool = False
    ) -> frozenset[GpuId]:
        """Return the GPUs that leases are leaving, or that are kept for others in the request's time.

        Where nobody can foresee the start of those others, only a request that yields makes room for them.
        """
        limit = request.time_limit_seconds
        ends_at = NEVER if limit is None else self.now + limit
        is_build = request.lease_class is FIXED_CLASS
        return self._vacating.union(
            gpu
            for reservation in self.reservations
            if reservation.lease != candidate.lease.id
            and (reservation.is_firm or candidate.yields)
            and not (firm_only and reservation.lease)
            and not (not reservation.lease and is_build and reservation.project == candidate.project)
            and not ends_at <= reservation.start_at < NEVER
            for gpu in reservation.gpus
        )

    def _wait(
        self, candidate: PendingRequest, request: Request, kept_gpus: frozenset[GpuId], *, turn: bool
    ) -> PassDecision:
        """Return why the request waits.

        The first request that waits for leases, and each turn, have GPUs kept for them.
        """
        behind = next((other for other in self.reservations if other.gpus & kept_gpus), None)
        if turn or not self._head_waits:
            rank = _rank(candidate)
            reserved = self._reserve(candidate.lease.id, candidate.project, request, turn=turn, rank=rank)
            self._head_waits = self._head_waits or reserved
        if behind is not None:
            return _behind(candidate, behind)
        owners = ", ".join(self._fixed.owners())
        if owners and self._fits_without_fixed(request):
            return PassDecision(WaitReason.FIXED_QUOTA, f"the free room is fixed for build work of {owners}")
        if candidate.lease.id in self._unmet and request.gpu_count > 1:
            return _unmet(candidate, request)
        return NO_ROOM

    def note_unmet(self, line: RequestLine, *, guaranteed: bool) -> None:
        """Note requests that were refused, and if they are within their project's guarantee."""
        if guaranteed:
            self._unmet.update(candidate.lease.id for candidate in line.candidates)

    def _fits_without_fixed(self, request: Request) -> bool:
        with self._fixed.lifted():
            return bool(self.capacity.place(request))


NO_ROOM = PassDecision(WaitReason.RESOURCES, "waits for room")


def _unmet(candidate: PendingRequest, request: Request) -> PassDecision:
    """Return the decision on a request that its project is guaranteed, and that no host has room for."""
    text = (
        f"project {candidate.project} is guaranteed the {request.gpu_count} GPUs, but no host can give so many now: "
        "a guarantee counts GPUs, not hosts"
    )
    return PassDecision(WaitReason.RESOURCES, text)


def preempting(preemption: Preemption) -> PassDecision:
    """Return the winner's decision while its victims leave."""
    names = ", ".join(victim.lease for victim in preemption.victims)
    verb = "gives" if len(preemption.victims) == 1 else "give"
    text = f"{names} {verb} way to it, because {preemption.why}"
    return PassDecision(WaitReason.PREEMPTING, text, preemption.victims[0].lease)


def _rank(candidate: PendingRequest) -> tuple[int, str]:
    """Return what goes before age in a project: the priority and the class."""
    return candidate.priority, candidate.lease.request.lease_class


def _behind(candidate: PendingRequest, reservation: Reservation) -> PassDecision:
    """Return the decision on a request that fits, but not on the kept GPUs."""
    if not reservation.lease:
        text = f"fits, but the room is fixed for build work of {reservation.project}"
        return PassDecision(WaitReason.FIXED_QUOTA, text)
    same = reservation.project == candidate.project
    if reservation.turn or (same and reservation.rank == _rank(candidate)):
        text = f"fits, but the room is kept for {reservation.lease}, which waits longer"
        return PassDecision(WaitReason.QUEUE_ORDER, text, reservation.lease)
    if same:
        text = f"fits, but the room is kept for {reservation.lease}, which goes first in project {reservation.project}"
        return PassDecision(WaitReason.CLASS_ORDER, text, reservation.lease)
    text = f"fits, but the room is kept for {reservation.lease} of project {reservation.project}, which used less"
    return PassDecision(WaitReason.FAIR_SHARE, text, reservation.lease)
