"""The fleet under random requests: never oversold, never refused what fits, and exact when taken back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from gpushared.domain.model.gpu import (
    MIB,
    WHOLE_PERMILLE,
    Gpu,
    GpuId,
    MigInstance,
)
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.request import Isolation, Request
from gpushared.domain.scheduling.placement.demand_profile import Scarcity, expected_leftover
from gpushared.domain.scheduling.placement.fleet import Fleet, NoPlace, Placement
from gpushared.domain.scheduling.placement.free_capacity import refuse
from gpushared.domain.scheduling.placement.gpu_choice import HostReason, rate
from gpushared.domain.scheduling.placement.hosts import Host
from gpushared.domain.scheduling.placement.policies import PolicyName
from gpushared.domain.scheduling.placement.request_shape import Need, kind_of

MODELS = ("H100", "T4")
GIB = 1024 * MIB


@st.composite
def hosts(draw: st.DrawFn) -> tuple[Host, ...]:
    return tuple(draw(_host(f"h{number}")) for number in range(draw(st.integers(1, 5))))


@st.composite
def _host(draw: st.DrawFn, name: str) -> Host:
    model = draw(st.sampled_from(MODELS))
    memory = draw(st.sampled_from([50 * MIB, 16 * GIB, 80 * GIB]))
    gpus = [
        Gpu(
            GpuId(f"{name}/{index}"),
            index,
            model,
            memory,
            memory,
            trouble=draw(st.sampled_from([None, None, None, "is lost"])),
            exclusive_process=draw(st.sampled_from([False, False, False, True])),
        )
        for index in range(draw(st.integers(1, 4)))
    ]
    if draw(st.integers(0, 4)) == 0:
        mig = MigInstance(0, "1g", 125, 143)
        gpus.append(Gpu(GpuId(f"{name}/mig"), 0, model, 10 * GIB, 10 * GIB, parent=GpuId("x"), mig=mig))
    links = tuple(draw(st.integers(0, 1)) for _ in gpus) if draw(st.booleans()) else ()
    cpu = draw(st.sampled_from([None, 4000, 16000]))
    return Host(name, tuple(gpus), cpu, draw(st.sampled_from([None, 32 * GIB])), links)


SHARES = (None, 1, 100, 250, 333, 500, 667, 750, 1000)
FIELDS: dict[str, Sequence[Any]] = {
    "gpu_count": (1, 1, 1, 1, 0, 2, 3),
    "compute_permille": SHARES,
    "memory": (
        *({"memory_permille": share} for share in SHARES),
        *({"memory_bytes": size} for size in (1 * MIB, 8 * GIB, 40 * GIB) * 3),
    ),
    "isolation": (Isolation.SHARED, Isolation.SHARED, *Isolation),
    "models": ((), (), ("T4",)),
    "host_cpu_milli": (None, 1000, 3000),
    "host_memory_bytes": (None, 8 * GIB),
    "gpus": ((), (), (), (GpuId("h0/0"),)),
}


def _request(number: int) -> Request:
    chosen = {}
    for name, choices in FIELDS.items():
        number, at = divmod(number, len(choices))
        chosen[name] = choices[at]
    return Request(**chosen.pop("memory"), **chosen)


def requests() -> st.SearchStrategy[Request]:
    """By number: to draw each field by itself would take most of the time of the tests."""
    return st.integers(0, math.prod(map(len, FIELDS.values())) - 1).map(_request)


def fits_somewhere(fleet: Fleet, request: Request, closed: Collection[GpuId], only: Collection[str]) -> bool:
    """Brute force, by the node's own rule for each GPU."""
    count = len(request.gpus) or request.gpu_count
    for host in fleet.hosts:
        free = fleet.free(host.name)
        able = [
            capacity
            for capacity in free.capacities
            if refuse(request, capacity) is None
            and capacity.gpu.id not in closed
            and (not request.models or capacity.gpu.name in request.models)
        ]
        if (
            host.name in only
            and len(able) >= count
            and (request.host_cpu_milli or 0) <= free.cpu_milli
            and (request.host_memory_bytes or 0) <= free.memory_bytes
        ):
            return True
    return False


class FleetMachine(RuleBasedStateMachine):
    """Requests come, leases end, tries are made and taken back."""

    leases: Bundle[LeaseId] = Bundle("leases")

    @initialize(hosts=hosts(), policy=st.sampled_from(PolicyName))
    def build(self, hosts, policy):
        self.fleet = Fleet(hosts, policy)
        self.requests: dict[LeaseId, Request] = {}
        self.number = 0

    @rule(target=leases, request=requests(), near=leases | st.none(), away=leases | st.none())
    def ask(self, request, near, away):
        request = self._social(request, near, away)
        self.fleet.see(request)
        closed = self._gpus_of(request.away_from)
        only = [placed.host for lease in request.near if (placed := self.fleet.holder(LeaseId(lease)))]
        answer = self.fleet.place(request)
        lease = LeaseId(f"l-{self.number}")
        self.number += 1
        if isinstance(answer, NoPlace):
            everywhere = [host.name for host in self.fleet.hosts]
            assert not fits_somewhere(self.fleet, request, closed, only or everywhere)
            assert sum(answer.refusals.values()) == len(everywhere)
            return lease
        self._check(request, answer, closed, only)
        self.fleet.take(lease, request, answer)
        self.requests[lease] = request
        return lease

    def _social(self, request: Request, near: LeaseId | None, away: LeaseId | None) -> Request:
        changes = {"near": (near,) if near else (), "away_from": (away,) if away else ()}
        return Request(**{name: getattr(request, name) for name in request.__slots__} | changes)

    def _gpus_of(self, leases: Collection[str]) -> set[GpuId]:
        placed = (self.fleet.holder(LeaseId(lease)) for lease in leases)
        return {grant.gpu for one in placed if one for grant in one.grants}

    def _check(self, request: Request, placed: Placement, closed: set[GpuId], only: list[str]) -> None:
        gpus = {grant.gpu for grant in placed.grants}
        assert len(gpus) == len(placed.grants) == (len(request.gpus) or request.gpu_count)
        assert all(self.fleet.host_of(gpu) == placed.host for gpu in gpus), "one host for all its GPUs"
        assert not gpus & closed, "away from what it is to be away from"
        assert not only or placed.host in only, "near what it is to be near"
        assert not request.gpus or gpus == set(request.gpus)
        for gpu in gpus:
            capacity = self.fleet.capacity(gpu)
            assert refuse(request, capacity) is None
            assert not request.models or capacity.gpu.name in request.models

    @rule(lease=consumes(leases))
    def end(self, lease):
        if self.requests.pop(lease, None) is not None:
            self.fleet.give(lease)

    @rule(asked=st.lists(requests(), max_size=4), ending=leases | st.none())
    def try_and_take_back(self, asked, ending):
        before = self._picture(self.fleet)
        mark = self.fleet.mark()
        if ending in self.requests:
            self.fleet.give(ending)
        for number, request in enumerate(asked):
            answer = self.fleet.place(request)
            if isinstance(answer, Placement):
                self.fleet.take(LeaseId(f"try-{number}"), request, answer)
        self.fleet.undo(mark)
        assert self._picture(self.fleet) == before

    @rule(data=st.data(), request=requests())
    def many_at_once_are_as_one_by_one(self, data, request):
        """Leases that were there, and leases that end together."""
        before, mark = self._picture(self.fleet), self.fleet.mark()
        twin = Fleet(self.fleet.hosts, self.fleet.policy, demand_profile=self.fleet.demand_profile.copy())
        held = {one: placed for one in self.requests if (placed := self.fleet.holder(one))}
        twin.book_existing(
            [(one, self.requests[one], placed.grants) for one, placed in held.items() if placed.grants]
        )
        ending = [one for one in held if data.draw(st.booleans())]
        self.fleet.give_all([*ending, LeaseId("nobody")])
        for one in ending:
            if held[one].grants:
                twin.give(one)
        hosts_with_gpus = [host.name for host in self.fleet.hosts if host.gpus]
        if all(placed.grants for placed in held.values()):
            for host in hosts_with_gpus:
                assert self.fleet.free(host).capacities == twin.free(host).capacities
                assert self.fleet.free(host).cpu_milli == twin.free(host).cpu_milli
            assert self.fleet.place(request) == twin.place(request)
        self.fleet.undo(mark)
        assert self._picture(self.fleet) == before

    @rule(asked=st.lists(requests(), max_size=4))
    def try_on_a_copy(self, asked):
        before = self._picture(self.fleet)
        copy = self.fleet.copy()
        assert self._picture(copy) == before
        for number, request in enumerate(asked):
            assert copy.place(request) == self.fleet.place(request) or number
            copy.see(request)
            answer = copy.place(request)
            if isinstance(answer, Placement):
                copy.take(LeaseId(f"try-{number}"), request, answer)
        assert self._picture(self.fleet) == before

    def _picture(self, fleet: Fleet) -> object:
        holders = {lease: fleet.holder(lease) for lease in self.requests}
        return [fleet.free(host.name) for host in fleet.hosts], holders

    @rule(request=requests())
    def kept_scores_equal_those_made_anew(self, request):
        self.fleet.place(request)
        ranking = self.fleet._rankings.get(kind_of(request))
        if ranking is None:
            return
        answers = [
            rate(Need.of(request), self.fleet.free(host.name), ranking.policy) for host in self.fleet.hosts
        ]
        scores = [(answer, at) for at, answer in enumerate(answers) if not isinstance(answer, HostReason)]
        assert ranking.best() == min(scores, default=None)
        assert self.fleet.place(request) == self.fleet.copy().place(request)

    @invariant()
    def never_oversold(self):
        for host in self.fleet.hosts:
            free = self.fleet.free(host.name)
            assert free.cpu_milli >= 0
            assert free.memory_bytes >= 0
            for capacity in free.capacities:
                assert capacity.free_bytes >= 0
                assert capacity.free_permille >= 0
                assert not capacity.exclusive or capacity.leases == 1

    @invariant()
    def all_that_was_given_is_accounted_for(self):
        held = [placed for lease in self.requests if (placed := self.fleet.holder(lease))]
        for host in self.fleet.hosts:
            for gpu in host.gpus:
                grants = [grant for placed in held for grant in placed.grants if grant.gpu == gpu.id]
                capacity = self.fleet.capacity(gpu.id)
                assert capacity.free_bytes == gpu.leasable_bytes - sum(grant.memory_bytes for grant in grants)
                taken = sum(grant.compute_permille for grant in grants)
                assert capacity.free_permille == WHOLE_PERMILLE - taken


TestFleet = FleetMachine.TestCase

SIZES = st.dictionaries(st.integers(1, WHOLE_PERMILLE), st.floats(0.1, 100), min_size=1, max_size=8)


@given(SIZES)
def test_what_stays_idle_is_never_less_than_nothing_nor_more_than_the_rest(sizes):
    for rest, leftover in enumerate(expected_leftover(sizes)):
        assert -1e-6 <= leftover <= rest + 1e-6
        assert rest >= min(sizes) or leftover == rest


@given(st.lists(st.tuples(st.floats(1, 1e5), st.floats(0.1, 10)), max_size=6), st.integers(1, 8000))
def test_more_cpu_beside_gpus_never_strands_more_of_them(demand, permille):
    scarcity = Scarcity(demand)
    stranded = [scarcity.stranded(amount, permille) for amount in range(0, 200_000, 5000)]
    assert all(more <= less + 1e-6 for less, more in itertools.pairwise(stranded))
    assert all(-1e-6 <= one <= permille + 1e-6 for one in stranded)
