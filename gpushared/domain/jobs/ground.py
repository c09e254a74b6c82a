"""The pool's GPUs as the queue's policy sees them: a picture that is kept from pass to pass.

To draw all of it anew takes a tenth of a second with a thousand nodes. So the picture remembers of which
facts it was drawn, and draws again only the nodes where they are others. It decides nothing and forgets
nothing that matters: whatever state it is shown, it comes out as if it had been drawn for that one alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from gpushared.domain.fleet.fleet import Fleet, Placement
from gpushared.domain.fleet.hosts import Host, link_groups
from gpushared.domain.fleet.policies import PolicyName
from gpushared.domain.gpu import Gpu, GpuId
from gpushared.domain.jobs.member import Free, Holding, Inventory, Member
from gpushared.domain.jobs.model import AttemptKey, Cancelling, Job, NodeName, Part, Placing, Running
from gpushared.domain.jobs.silence import takes_work
from gpushared.domain.jobs.state import PoolState, is_over
from gpushared.domain.lease import Active, ContainerId, Grant, Lease, LeaseId, Reserved
from gpushared.domain.placement import Room, rooms_of
from gpushared.domain.policy.ledger import sizes_of
from gpushared.domain.policy.passes import Holder
from gpushared.domain.policy.places import NOTHING
from gpushared.domain.policy.projects import Policy
from gpushared.domain.request import Isolation, Request
from gpushared.domain.surroundings import is_called, models_named

NODE_MARK = "@"
"""Before a node's name, where a request is to be near it or away from it as a whole."""

Taken = tuple[Request, tuple[Grant, ...]]


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a node's part of the picture was drawn of."""

    inventory: Inventory
    free: Free
    jobs: object
    works: bool

    def same(self, other: _Facts | None) -> bool:
        return (
            other is not None
            and self.inventory is other.inventory
            and self.free is other.free
            and self.jobs is other.jobs
            and self.works == other.works
        )

    def same_ground(self, other: _Facts | None) -> bool:
        """Whether only who is on its GPUs has changed."""
        return (
            other is not None
            and self.inventory is other.inventory
            and self.works == other.works
            and self.free.stray_bytes == other.free.stray_bytes
            and self.free.troubles == other.free.troubles
        )


class Ground:
    """A picture of the members' GPUs and of who holds them."""

    def __init__(self) -> None:
        self._fleet = Fleet(())
        self._policy: PolicyName | None = None
        self._facts: dict[NodeName, _Facts] = {}
        self._touched: set[NodeName] = set()
        """Nodes on which something was booked since, which may never come true."""
        self._taken: dict[NodeName, dict[LeaseId, Taken]] = {}
        self._holders: dict[NodeName, tuple[Holder, ...]] = {}
        self._models: Mapping[str, Gpu] = {}
        self._gpus: dict[GpuId, Gpu] = {}
        self._by_node: dict[str, tuple[GpuId, ...]] = {}

    def drawn(self, state: PoolState, policy: Policy, now: float) -> GroundPlaces:
        """The picture of this state, to place on; what is booked on it is gone when it is drawn next."""
        facts = {
            name: _Facts(member.inventory, member.free, state.by_node.get(name), works)
            for name, member in state.members.items()
            if member.inventory is not None
            for works in (takes_work(member, state, now),)
        }
        if self._policy is not state.rules.placement or self._other_gpus(facts):
            self._begin_anew(facts, state)
        for name, fact in facts.items():
            before = self._facts.get(name)
            if name in self._touched or not fact.same(before):
                self._draw(name, fact, state, policy, ground=not fact.same_ground(before))
        self._facts = facts
        self._touched.clear()
        return GroundPlaces(self, self._fleet, _resting(state, now, self._by_node))

    def holders(self) -> list[Holder]:
        """All who hold something."""
        return list(chain.from_iterable(self._holders.values()))

    def _other_gpus(self, facts: Mapping[NodeName, _Facts]) -> bool:
        return facts.keys() != self._facts.keys() or any(
            fact.inventory is not self._facts[name].inventory
            and fact.inventory.gpus != self._facts[name].inventory.gpus
            for name, fact in facts.items()
        )

    def _begin_anew(self, facts: Mapping[NodeName, _Facts], state: PoolState) -> None:
        hosts = [_host(name, facts[name], state) for name in sorted(facts)]
        self._policy = state.rules.placement
        self._fleet = Fleet(hosts, self._policy, mix=self._fleet.mix)
        self._by_node = {host.name: tuple(gpu.id for gpu in host.gpus) for host in hosts}
        self._facts, self._taken, self._holders = {}, {name: {} for name in facts}, {}
        self._gpus = {gpu.id: gpu for host in hosts for gpu in host.gpus}
        models: dict[str, Gpu] = {}
        for gpu in self._gpus.values():
            known = models.get(gpu.name)
            if known is None or gpu.leasable_bytes < known.leasable_bytes:
                models[gpu.name] = gpu
        self._models = models

    def _draw(self, name: NodeName, fact: _Facts, state: PoolState, policy: Policy, *, ground: bool) -> None:
        holders = _holders(name, fact, state, policy)
        wanted: dict[LeaseId, Taken] = {}
        for one in holders:
            grants = tuple(grant for grant in one.lease.grants if self._on(grant, name))
            if grants:
                wanted[one.lease.id] = one.lease.request, grants
        have = self._taken[name]
        for lease in [lease for lease, taken in have.items() if ground or wanted.get(lease) != taken]:
            self._fleet.give(lease)
            del have[lease]
        if ground:
            host = _host(name, fact, state)
            self._fleet.renew(host, rooms_of(host.gpus, (), dict(fact.free.stray_bytes)))
        for lease, taken in wanted.items():
            if lease not in have:
                self._fleet.take(lease, taken[0], Placement(name, taken[1]))
                have[lease] = taken
        self._fleet.commit()
        self._holders[name] = tuple(
            replace(one, sizes=sizes_of(one.lease.grants, self)) for one in holders if one.lease.id in wanted
        )

    def _on(self, grant: Grant, name: NodeName) -> bool:
        return grant.gpu in self._gpus and self._fleet.host_of(grant.gpu) == name

    # --- what the places below need --------------------------------------------------------------------

    def take(self, lease: LeaseId, request: Request, grants: Sequence[Grant]) -> None:
        node = NodeName(self._fleet.host_of(grants[0].gpu))
        self._fleet.take(lease, request, Placement(node, tuple(grants)))
        self._fleet.commit()
        self._taken[node][lease] = request, tuple(grants)
        self._touched.add(node)

    def give(self, lease: LeaseId) -> None:
        held = self._fleet.holder(lease)
        if held is None:
            return
        node = NodeName(held.host)
        self._fleet.give(lease)
        self._fleet.commit()
        self._taken[node].pop(lease, None)
        self._touched.add(node)

    def gpu(self, gpu: GpuId) -> Gpu:
        return self._gpus[gpu]

    def gpus_of(self, host: str) -> Sequence[GpuId]:
        return self._by_node.get(host, ())

    def models(self) -> Mapping[str, Gpu]:
        return self._models


class GroundPlaces:
    """The picture behind the narrow questions of the queue, which may name nodes to be on or to keep off.

    ``kept``: GPUs that are for nobody at the moment. Nodes that rest are tried last.
    """

    def __init__(self, ground: Ground, fleet: Fleet, resting: frozenset[GpuId]) -> None:
        self.kept: frozenset[GpuId] = frozenset()
        self._ground = ground
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
        if host is not None and not self._ground.gpus_of(host):
            return ()
        if away or self.kept:
            closed = self.kept.union(closed, *(self._ground.gpus_of(node) for node in away))
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
        self._ground.take(lease, _unmarked(request)[0], grants)

    def give(self, lease: LeaseId, request: Request, grants: Sequence[Grant]) -> None:  # noqa: ARG002 - known here
        self._ground.give(lease)

    def gpu(self, gpu: GpuId) -> Gpu:
        return self._ground.gpu(gpu)

    def host_of(self, gpu: GpuId) -> str:
        return self._fleet.host_of(gpu)

    def gpus_of(self, host: str) -> Sequence[GpuId]:
        return self._ground.gpus_of(host)

    def rooms(self) -> Mapping[str, Sequence[Room]]:
        return {host.name: self._fleet.free(host.name).rooms for host in self._fleet.hosts}

    def rooms_on(self, host: str) -> Sequence[Room]:
        return self._fleet.free(host).rooms

    def models(self) -> Mapping[str, Gpu]:
        return self._ground.models()

    def hosts(self) -> Iterable[str]:
        return [host.name for host in self._fleet.hosts]


def in_full(request: Request, models: Mapping[str, Gpu]) -> Request:
    """The request with its models by their full names, as far as the pool has such now.

    Nodes come and go, so that what people call a model is found anew for each pass.
    """
    known = [word for word in request.models if any(is_called(name, word) for name in models)]
    full = models_named(known, models.values()) if known else request.models
    return request if full == request.models else replace(request, models=full)


def as_asked_of(host: str, request: Request, places: GroundPlaces) -> Request:
    """The request with those of its models that the node has: it refuses a name that it does not know."""
    if not request.models:
        return request
    return in_full(request, {gpu.name: gpu for gpu in map(places.gpu, places.gpus_of(host))})


def marked(request: Request, target: NodeName, refused_by: Iterable[NodeName]) -> Request:
    """A request that is to be on one node, or on none of some."""
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


def part_id(job: Job, part: Part) -> LeaseId:
    """By what name a part is booked here."""
    return LeaseId(job.id if part.rank == 0 else f"{job.id}#{part.rank}")


def _resting(state: PoolState, now: float, gpus: Mapping[str, tuple[GpuId, ...]]) -> frozenset[GpuId]:
    return frozenset(
        gpu for node, until in state.resting.items() if now < until for gpu in gpus.get(node, ())
    )


def _host(name: NodeName, fact: _Facts, state: PoolState) -> Host:
    inventory, troubles = fact.inventory, dict(fact.free.troubles)
    none = None if fact.works else _why_not(state.members[name])
    gpus = tuple(
        replace(gpu, trouble=none or troubles.get(gpu.id) or gpu.trouble)
        if none or gpu.id in troubles
        else gpu
        for gpu in inventory.gpus
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


def _holders(name: NodeName, fact: _Facts, state: PoolState, policy: Policy) -> list[Holder]:
    """Who holds something on a node: what it tells of, and what was placed there and is not told of yet."""
    told = {one.attempt: one for one in fact.free.holdings if one.attempt is not None}
    found = []
    for job_id in sorted(state.by_node.get(name) or ()):
        job = state.jobs[job_id]
        if not isinstance(job.state, Placing | Running | Cancelling):
            continue
        part = next(part for part in job.parts if part.node == name)
        holding = told.get(AttemptKey(job.id, job.state.attempt))
        grants = holding.grants if holding else state.booked.get(job.id, {}).get(name, ())
        if grants:
            found.append(_of_job(job, part, grants, policy))
    others = (one for one in fact.free.holdings if not _is_known(one, name, state))
    return [*found, *(_of_others(one, name, state.started_at) for one in others)]


def _is_known(holding: Holding, name: NodeName, state: PoolState) -> bool:
    """Whether it is an attempt of ours: one that is there, or one that is over already."""
    if holding.attempt is None:
        return False
    job = state.jobs.get(holding.attempt.job)
    if job is None:
        return holding.attempt.job in state.ended
    if not isinstance(job.state, Placing | Running | Cancelling):
        return holding.attempt.number <= job.attempts
    if job.state.attempt != holding.attempt.number:
        return holding.attempt.number < job.attempts
    return any(part.node == name for part in job.parts)


def _of_job(job: Job, part: Part, grants: tuple[Grant, ...], policy: Policy) -> Holder:
    assert isinstance(job.state, Placing | Running | Cancelling)
    request, since = job.spec.request, job.state.since
    limit = request.time_limit_seconds
    running = isinstance(job.state, Running)
    lease = Lease(
        id=part_id(job, part),
        sequence=job.sequence,
        request=part.request,
        owner_uid=0,
        owner_name=job.spec.owner.person,
        created_at=job.submitted_at,
        state=Active(grants, ContainerId(""), since) if running else Reserved(grants, since, since),
        device_name="",
        expires_at=since + limit if running and limit is not None else None,
        project=job.project,
    )
    priority = policy.classes[request.lease_class].priority + request.priority + job.priority
    leaving = isinstance(job.state, Cancelling) or is_over(part)
    # A turn is known by the time at which it was granted, not by that at which the container was up.
    granted_at = job.state.granted_at if isinstance(job.state, Running) else 0.0
    return Holder(lease, job.project, priority, granted_at or since, leaving=leaving)


def _of_others(holding: Holding, name: NodeName, since: float) -> Holder:
    """Since when it holds that is not told: it counts from our start."""
    isolation = Isolation.EXCLUSIVE if holding.exclusive else Isolation.SHARED
    request = Request(gpu_count=len(holding.grants), isolation=isolation)
    lease = Lease(
        id=LeaseId(f"{name}/{holding.lease}"),
        sequence=0,
        request=request,
        owner_uid=0,
        owner_name=holding.owner,
        created_at=since,
        state=Active(holding.grants, ContainerId(""), since),
        device_name="",
        project=holding.project,
    )
    return Holder(lease, holding.project, 0, since, stays=True)
