"""Keep a snapshot of the pool's GPUs and of their holders from scheduling pass to scheduling pass.

A new snapshot of a thousand nodes takes a tenth of a second. So a snapshot remembers the facts that it was made
of, and reads again only the nodes whose facts have changed; the sums of the holders change with the holders.
For any state the result is the same as that of a new snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.coordinator_state import PoolState, is_tried_last
from gpushared.domain.jobs.job import Job, NodeName
from gpushared.domain.jobs.liveness import takes_work_until
from gpushared.domain.jobs.member import HeartbeatReport, Inventory, Member
from gpushared.domain.jobs.node_holdings import PlacedHolder, holders_on
from gpushared.domain.jobs.quota_owners import QuotaOwners
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.gpu_names import is_called, models_named
from gpushared.domain.model.lease import Grant, JobId, Lease, LeaseId
from gpushared.domain.model.persistent_map import PersistentMap
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.capacity_port import NOTHING
from gpushared.domain.scheduling.holder_index import HolderIndex
from gpushared.domain.scheduling.pass_records import NEVER, PendingRequest
from gpushared.domain.scheduling.placement.fleet import Fleet, Placement
from gpushared.domain.scheduling.placement.fleet_capacity import smallest_of_each_model
from gpushared.domain.scheduling.placement.free_capacity import FreeCapacity, free_capacities
from gpushared.domain.scheduling.placement.hosts import Host, link_groups
from gpushared.domain.scheduling.projects import Policy

NODE_MARK = "@"
"""This mark stands before a node's name where a request is to be near a whole node or away from one."""

Booking = tuple[Request, tuple[Grant, ...]]
HoldersOnNode = dict[LeaseId, tuple[PlacedHolder, Booking]]
"""The leases to count on a node, each with the request and the grants to book."""


@dataclass(frozen=True, slots=True)
class _NodeFacts:
    """Hold the facts from which a node's part of the snapshot is made."""

    member: Member
    inventory: Inventory
    jobs: object
    away: str
    """The reason why no job may go to the node; empty if jobs may."""

    @property
    def free(self) -> HeartbeatReport:
        return self.member.free

    def same(self, other: _NodeFacts | None) -> bool:
        return (
            other is not None
            and self.inventory is other.inventory
            and self.free is other.free
            and self.member.realms == other.member.realms
            and self.jobs is other.jobs
            and self.away == other.away
        )

    def same_gpus(self, other: _NodeFacts | None) -> bool:
        """Return True if at most the holders of the node's GPUs have changed."""
        return (
            other is not None
            and self.inventory is other.inventory
            and self.away == other.away
            and self.free.stray_bytes == other.free.stray_bytes
            and self.free.troubles == other.free.troubles
        )


class ClusterSnapshot:
    """Hold the members' GPUs, and the leases and jobs that hold parts of the GPUs."""

    def __init__(self) -> None:
        self.candidates: dict[JobId, tuple[Job, PendingRequest]] = {}
        """The candidates of the last pass, kept for the next; they depend on the models and on the policy."""
        self._fleet = Fleet(())
        self._policy: Policy | None = None
        self._rules: PoolRules | None = None
        self._quota_owners = QuotaOwners(Policy(), PoolRules())
        self._members: PersistentMap[NodeName, Member] = PersistentMap()
        self._jobs: PersistentMap[NodeName, Mapping[JobId, None]] = PersistentMap()
        self._liveness_from: object = None
        self._refreshed_at = NEVER
        self._silent_at = -NEVER
        """Until this time, no node stops taking work merely because it is silent."""
        self._facts: dict[NodeName, _NodeFacts] = {}
        self._touched: set[NodeName] = set()
        """Nodes with a booking since the last pass; the booking may never come true."""
        self._bookings: dict[NodeName, dict[LeaseId, Booking]] = {}
        self._holders: dict[NodeName, HoldersOnNode] = {}
        self._holder_index: HolderIndex | None = None
        self._models: Mapping[str, Gpu] = {}
        self._gpus: dict[GpuId, Gpu] = {}
        self._by_node: dict[str, tuple[GpuId, ...]] = {}

    def refresh(self, state: PoolState, policy: Policy, now: float) -> ClusterCapacity:
        """Bring the snapshot up to this state, and return its capacity, to place jobs on.

        The next call forgets the bookings made on the capacity.
        """
        news = self._changed_facts(state, now)
        if self._has_new_rules(state, policy) or self._is_another_pool(news):
            all_facts = {name: self._read_facts(name, state, now) for name in state.members}
            facts = {name: fact for name, fact in all_facts.items() if fact is not None}
            self._rebuild(facts, state, policy)
        else:
            facts = {
                name: fact
                for name, fact in news.items()
                if fact is not None and (name in self._touched or not fact.same(self._facts.get(name)))
            }
        self._update(facts, state, policy)
        self._members, self._jobs = state.members, state.by_node
        self._touched.clear()
        return ClusterCapacity(self, self._fleet, _resting(state, now, self._by_node))

    def _has_new_rules(self, state: PoolState, policy: Policy) -> bool:
        another = self._policy is not policy and self._policy != policy
        return self._holder_index is None or another or self._rules != state.rules

    @property
    def holder_index(self) -> HolderIndex:
        """Return the index of all holders, as of the last pass; callers must not change the index."""
        assert self._holder_index is not None, "refresh comes first"
        return self._holder_index

    def _changed_facts(self, state: PoolState, now: float) -> dict[NodeName, _NodeFacts | None]:
        """Return the current facts of the nodes that may have changed since the last pass.

        The facts are None for a node that is gone, or has sent no inventory.
        """
        names = self._touched | state.by_node.changed_since(self._jobs)
        names |= state.members.changed_since(self._members)
        if not self._refreshed_at <= now < self._silent_at or self._liveness_from != _liveness_facts(state):
            self._silent_at = NEVER
            names |= state.members.keys()
        self._refreshed_at, self._liveness_from = now, _liveness_facts(state)
        return {name: self._read_facts(name, state, now) for name in names}

    def _read_facts(self, name: NodeName, state: PoolState, now: float) -> _NodeFacts | None:
        member = state.members.get(name)
        if member is None or member.inventory is None:
            return None
        until = takes_work_until(member, state)
        if now <= until:
            self._silent_at = min(self._silent_at, until)
        away = "" if now <= until else _why_not(member)
        return _NodeFacts(member, member.inventory, state.by_node.get(name), away)

    def _is_another_pool(self, news: Mapping[NodeName, _NodeFacts | None]) -> bool:
        """Return True if nodes came or went, or have other GPUs."""
        for name, fact in news.items():
            before = self._facts.get(name)
            if fact is None or before is None:
                if fact is not before:
                    return True
            elif fact.inventory is not before.inventory and fact.inventory.gpus != before.inventory.gpus:
                return True
        return False

    def _rebuild(self, facts: Mapping[NodeName, _NodeFacts], state: PoolState, policy: Policy) -> None:
        self._by_node = _owned(facts)
        hosts = [_host(name, facts[name], state, self._by_node[name]) for name in sorted(facts)]
        self._rules, self._policy = state.rules, policy
        self._quota_owners = QuotaOwners(policy, state.rules)
        self._fleet = Fleet(hosts, state.rules.placement, demand_profile=self._fleet.demand_profile)
        self._facts = {}
        self._bookings, self._holders = {name: {} for name in facts}, {name: {} for name in facts}
        self._holder_index, self.candidates = HolderIndex(policy, self), {}
        self._gpus = {gpu.id: gpu for host in hosts for gpu in host.gpus}
        self._models = smallest_of_each_model(self._gpus.values())

    def _update(self, facts: Mapping[NodeName, _NodeFacts], state: PoolState, policy: Policy) -> None:
        """Bring the snapshot up to date with these facts.

        Holders that are gone are removed first, because a holder that was on one node may be on another one
        now.
        """
        current = {name: self._read_holders(name, fact, state, policy) for name, fact in facts.items()}
        snapshot = {
            name
            for name, fact in facts.items()
            if not fact.same_gpus(self._facts.get(name)) or _is_contradictory(self._bookings[name].values())
        }
        for name, holders in current.items():
            self._remove_holders(name, holders, everybody=name in snapshot)
        for name in snapshot:
            host = _host(name, facts[name], state, self._by_node[name])
            self._fleet.renew(host, free_capacities(host.gpus, (), dict(facts[name].free.stray_bytes)))
        for name, holders in current.items():
            self._add_holders(name, holders)
        self._fleet.commit()
        self._facts.update(facts)

    def _read_holders(
        self, name: NodeName, fact: _NodeFacts, state: PoolState, policy: Policy
    ) -> HoldersOnNode:
        holders: HoldersOnNode = {}
        previous, gpus = self._holders[name], frozenset(self._by_node[name])
        for placed in holders_on(fact.member, gpus, previous, state, policy, self._quota_owners):
            lease = placed.holder.lease
            before = previous.get(lease.id)
            same = before is not None and before[0].holder is placed.holder
            holders[lease.id] = placed, before[1] if same and before else (lease.request, lease.grants)
        return holders

    def _remove_holders(self, name: NodeName, current: HoldersOnNode, *, everybody: bool) -> None:
        bookings, holders = self._bookings[name], self._holders[name]
        for lease in list(bookings):
            if everybody or lease not in current or current[lease][1] != bookings[lease]:
                self._fleet.give(lease)
                del bookings[lease]
        for lease in list(holders):
            if lease not in current or current[lease][0].holder is not holders[lease][0].holder:
                self.holder_index.remove(lease)
                del holders[lease]

    def _add_holders(self, name: NodeName, current: HoldersOnNode) -> None:
        bookings, holders = self._bookings[name], self._holders[name]
        for lease, (placed, booking) in current.items():
            if lease not in bookings:
                self._fleet.take(lease, booking[0], Placement(name, booking[1]))
                bookings[lease] = booking
            if lease not in holders:
                self.holder_index.add(placed.holder)
            holders[lease] = placed, booking

    # --- methods that ClusterCapacity uses -----------------------------------------------------------------

    def take(self, lease: LeaseId, request: Request, grants: Sequence[Grant]) -> None:
        node = NodeName(self._fleet.host_of(grants[0].gpu))
        self._fleet.take(lease, request, Placement(node, tuple(grants)))
        self._fleet.commit()
        self._bookings[node][lease] = request, tuple(grants)
        self._touched.add(node)

    def give(self, lease: LeaseId) -> None:
        placement = self._fleet.holder(lease)
        if placement is None:
            return
        node = NodeName(placement.host)
        self._fleet.give(lease)
        self._fleet.commit()
        self._bookings[node].pop(lease, None)
        self._touched.add(node)

    def gpu(self, gpu: GpuId) -> Gpu:
        return self._gpus[gpu]

    def host_of(self, gpu: GpuId) -> str:
        return self._fleet.host_of(gpu)

    def gpus_of(self, host: str) -> Sequence[GpuId]:
        return self._by_node.get(host, ())

    def models(self) -> Mapping[str, Gpu]:
        return self._models


class ClusterCapacity:
    """Answer the queue's questions about a snapshot; a request may name nodes to be on or to keep off.

    ``reserved_gpus`` holds GPUs that no job may use at the moment. Nodes that rest are tried last.
    """

    def __init__(self, snapshot: ClusterSnapshot, fleet: Fleet, resting: frozenset[GpuId]) -> None:
        self.reserved_gpus: frozenset[GpuId] = frozenset()
        self._snapshot = snapshot
        self._fleet = fleet
        self._resting = resting

    def place(
        self,
        request: Request,
        *,
        gone: Sequence[Lease] = (),
        closed: Collection[GpuId] = NOTHING,
        host: str | None = None,
    ) -> tuple[Grant, ...]:
        request, target, away = _unmarked(in_full(request, self.models()))
        if target is not None and host not in (None, target):
            return ()
        host = host if target is None else target
        if host is not None and not self._snapshot.gpus_of(host):
            return ()
        if away or self.reserved_gpus:
            closed = self.reserved_gpus.union(closed, *(self._snapshot.gpus_of(node) for node in away))
        if self._resting:
            grants = self._placed(request, gone, self._resting.union(closed), host)
            if grants:
                return grants
        return self._placed(request, gone, closed, host)

    def _placed(
        self, request: Request, gone: Sequence[Lease], closed: Collection[GpuId], host: str | None
    ) -> tuple[Grant, ...]:
        if not gone:
            answer = self._fleet.place(request, closed=closed, host=host)
        else:
            mark = self._fleet.mark()
            self._fleet.give_all(lease.id for lease in gone)
            answer = self._fleet.place(request, closed=closed, host=host)
            self._fleet.undo(mark)
        return answer.grants if isinstance(answer, Placement) else ()

    def take(self, lease: LeaseId, request: Request, grants: Sequence[Grant]) -> None:
        self._snapshot.take(lease, _unmarked(request)[0], grants)

    def give(
        self,
        lease: LeaseId,
        request: Request,  # noqa: ARG002 - known here
        grants: Sequence[Grant],  # noqa: ARG002 - known here
        *,
        left_bytes: int = 0,  # noqa: ARG002 - no job can be paused
    ) -> None:
        self._snapshot.give(lease)

    def holder(self, lease: LeaseId) -> Placement | None:
        """Return the place of a lease or job, or None if it holds nothing."""
        return self._fleet.holder(lease)

    def gpu(self, gpu: GpuId) -> Gpu:
        return self._snapshot.gpu(gpu)

    def host_of(self, gpu: GpuId) -> str:
        return self._fleet.host_of(gpu)

    def gpus_of(self, host: str) -> Sequence[GpuId]:
        return self._snapshot.gpus_of(host)

    def capacities(self) -> Mapping[str, Sequence[FreeCapacity]]:
        return {host.name: self._fleet.free(host.name).capacities for host in self._fleet.hosts}

    def capacities_on(self, host: str) -> Sequence[FreeCapacity]:
        return self._fleet.free(host).capacities

    def models(self) -> Mapping[str, Gpu]:
        return self._snapshot.models()

    def hosts(self) -> Iterable[str]:
        return [host.name for host in self._fleet.hosts]


def in_full(request: Request, models: Mapping[str, Gpu]) -> Request:
    """Return the request with the full names of its models, as far as the pool has these models now.

    Nodes come and go, so the full names are found anew for each pass.
    """
    present = [model for model in request.models if any(is_called(name, model) for name in models)]
    full = models_named(present, models.values()) if present else request.models
    return request if full == request.models else replace(request, models=full)


def with_models_of(host: str, request: Request, cluster: ClusterCapacity) -> Request:
    """Return the request with only the models that the node has.

    A node refuses an unknown model name.
    """
    if not request.models:
        return request
    return in_full(request, {gpu.name: gpu for gpu in map(cluster.gpu, cluster.gpus_of(host))})


def marked(request: Request, target: NodeName, refused_by: Iterable[NodeName]) -> Request:
    """Return the request bound to the target node, or kept off the nodes that refused it."""
    near = (*request.near, NODE_MARK + target) if target else request.near
    away = (*request.away_from, *(NODE_MARK + node for node in refused_by))
    if near == request.near and away == request.away_from:
        return request
    return replace(request, near=near, away_from=away)


def _unmarked(request: Request) -> tuple[Request, str | None, tuple[str, ...]]:
    if not request.near and not request.away_from:
        return request, None, ()
    near = tuple(name for name in request.near if not name.startswith(NODE_MARK))
    away = tuple(name for name in request.away_from if not name.startswith(NODE_MARK))
    targets = [name[1:] for name in request.near if name.startswith(NODE_MARK)]
    refusers = tuple(name[1:] for name in request.away_from if name.startswith(NODE_MARK))
    plain = replace(request, near=near, away_from=away)
    return plain, targets[0] if targets else None, refusers


def _resting(state: PoolState, now: float, gpus: Mapping[str, tuple[GpuId, ...]]) -> frozenset[GpuId]:
    return frozenset(
        gpu for node in state.resting if is_tried_last(node, state, now) for gpu in gpus.get(node, ())
    )


def _is_contradictory(bookings: Collection[Booking]) -> bool:
    """Return True if the holdings, reported at different times, show a GPU shared that one lease has alone.

    If such a lease has left a GPU's free capacity, that capacity does not count the other leases any more.
    """
    alone = {grant.gpu for request, grants in bookings if request.wants_whole_gpus for grant in grants}
    holders = Counter(grant.gpu for _, grants in bookings for grant in grants) if alone else Counter()
    return any(holders[gpu] > 1 for gpu in alone)


def _liveness_facts(state: PoolState) -> object:
    """Return the facts that decide if a member takes work, besides the member's own facts."""
    rules = state.rules
    return (
        state.reported,
        len(state.members),
        rules.here,
        rules.counts_host,
        rules.beat_seconds,
        rules.beats_per_second,
    )


def _owned(facts: Mapping[NodeName, _NodeFacts]) -> dict[str, tuple[GpuId, ...]]:
    """Return the GPUs of each node. A GPU that several nodes name belongs to the node that joined first.

    Otherwise a grant meant for one node could be placed on another node.
    """
    owned: dict[str, tuple[GpuId, ...]] = {}
    owned_ids: set[GpuId] = set()
    for name, fact in sorted(facts.items(), key=lambda item: (item[1].member.enrolled_at, item[0])):
        owned[name] = tuple(gpu.id for gpu in fact.inventory.gpus if gpu.id not in owned_ids)
        owned_ids.update(owned[name])
    return owned


def _host(name: NodeName, fact: _NodeFacts, state: PoolState, owned: Collection[GpuId]) -> Host:
    inventory, troubles = fact.inventory, dict(fact.free.troubles)
    owned_ids = frozenset(owned)
    gpus = tuple(
        replace(gpu, trouble=fact.away or troubles.get(gpu.id) or gpu.trouble)
        if fact.away or gpu.id in troubles
        else gpu
        for gpu in inventory.gpus
        if gpu.id in owned_ids
    )
    counts = state.rules.counts_host
    return Host(
        name,
        gpus,
        inventory.cpu_milli if counts and inventory.cpu_milli else None,
        inventory.memory_bytes if counts and inventory.memory_bytes else None,
        link_groups(gpus),
    )


def _why_not(member: Member) -> str:
    if member.drained_by:
        return f"its node is drained by {member.drained_by}: {member.drain_reason}"
    return "its node is silent"
