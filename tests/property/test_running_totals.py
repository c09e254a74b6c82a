"""What is counted on from pass to pass is what counting anew gives, whatever happened in between."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.cluster_snapshot import ClusterSnapshot
from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import (
    AttemptState,
    Ending,
    EndKind,
    NodeName,
)
from gpushared.domain.jobs.member import HeartbeatReport
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import (
    Grant,
    JobId,
    Lease,
    LeaseId,
    Reserved,
)
from gpushared.domain.model.request import LeaseClass, Request
from gpushared.domain.scheduling.holder_index import HolderIndex
from gpushared.domain.scheduling.pass_records import RunningLease
from gpushared.domain.scheduling.projects import Policy, Project, Quota
from gpushared.domain.scheduling.use_over_time import (
    BUCKET_MS,
    KEPT_HALF_LIVES,
    Interval,
    RunningUse,
    Usage,
)
from tests.domain.jobs.pool_world import ADA, BOB, GIB, HALF, RULES, WHOLE, Pool, exited, held
from tests.property.queue_world import request_of

POLICY = Policy(
    projects={
        "lab": Project("lab", users=frozenset({"ada"}), quota=Quota(guaranteed=2000, fixed=1000)),
        "guests": Project("guests", users=frozenset({"bob"}), models={"H100": Quota(limit=3000)}),
    }
)
NODES = ("a", "b", "c")
HOUR = BUCKET_MS / 1000


class TwoHosts:
    """Two GPUs on each of two hosts; a fifth is nowhere any more."""

    def gpu(self, gpu: GpuId) -> Gpu:
        return Gpu(gpu, 0, "H100" if self.host_of(gpu) == "h0" else "A100", 80 * GIB, 80 * GIB)

    def host_of(self, gpu: GpuId) -> str:
        return {"0": "h0", "1": "h0", "2": "h1", "3": "h1"}[gpu]


def told(holder_index: HolderIndex, now: float) -> dict[str, Any]:
    """All that an index knows, in no order."""
    names, pools = {"lab", "guests", "eve", *holder_index.projects()}, ("", "H100", "A100")
    holders = holder_index.holders()
    return {
        "holders": {one.lease.id: one for one in holders},
        "sizes": {one.lease.id: dict(holder_index.sizes(one.lease.id)) for one in holders},
        "where": {one.lease.id: dict(holder_index.hosts_of(one.lease.id)) for one in holders},
        "projects": {
            name: {one.lease.id for one in holder_index.of(name)} for name in holder_index.projects()
        },
        "all": {name: holder_index.all(name) for name in names},
        "held": {(name, pool): holder_index.held(name, pool) for name in names for pool in pools},
        "fixed": {(name, pool): holder_index.fixed(name, pool) for name in names for pool in pools},
        "lowest": {name: holder_index.lowest_priority(name, 99) for name in names},
        "hosts": holder_index.hosts(),
        "on": {
            host: ({one.lease.id for one in holder_index.on(host)}, holder_index.load(host))
            for host in holder_index.hosts()
        },
        "best effort": set(holder_index.best_effort),
        "leaving": set(holder_index.leaving),
        "behind": {name: set(holder_index.behind(LeaseId(name))) for name in ("w0", "w1")},
    }


HOLDERS = st.builds(
    lambda number, gpus, permille, project, lease_class, **others: RunningLease(
        Lease(
            LeaseId(f"l{number}"),
            number,
            request_of(permille, len(gpus), lease_class),
            0,
            project,
            0.0,
            Reserved(tuple(Grant(GpuId(gpu), 80 * GIB * permille // 1000, permille) for gpu in gpus), 0, 0),
            "",
        ),
        project,
        **others,
    ),
    number=st.integers(0, 30),
    gpus=st.lists(st.sampled_from("01234"), min_size=1, max_size=2, unique=True),
    permille=st.sampled_from((100, 500, 1000)),
    project=st.sampled_from(("lab", "guests", "eve")),
    lease_class=st.sampled_from(list(LeaseClass)),
    priority=st.integers(-1, 1),
    started_at=st.floats(0, 9 * HOUR),
    leaving=st.booleans(),
    behind=st.sampled_from(((), (LeaseId("w0"),), (LeaseId("w0"), LeaseId("w1")))),
)


@given(
    changes=st.lists(HOLDERS, max_size=40),
    tried=st.lists(HOLDERS, max_size=10),
    now=st.floats(0, 10 * HOUR),
)
def test_a_holder_index_tells_what_one_of_those_who_are_left_tells(
    changes: list[RunningLease], tried: list[RunningLease], now: float
) -> None:
    """Who is there already leaves; what is tried on a copy is not seen."""
    hosts, kept, left = TwoHosts(), HolderIndex(POLICY, TwoHosts()), dict[LeaseId, RunningLease]()
    for one in changes:
        _toggle(kept, left, one)
    before, copy, tried_left = told(kept, now), kept.copy(), dict(left)
    for one in tried:
        _toggle(copy, tried_left, one)
    assert told(copy, now) == told(HolderIndex(POLICY, hosts, tried_left.values()), now)
    assert told(kept, now) == before == told(HolderIndex(POLICY, hosts, left.values()), now)
    assert kept.running.books(now) == HolderIndex(POLICY, hosts, left.values()).running.books(now)


def _toggle(holder_index: HolderIndex, left: dict[LeaseId, RunningLease], one: RunningLease) -> None:
    if one.lease.id in left:
        del left[one.lease.id]
        holder_index.remove(one.lease.id)
    else:
        left[one.lease.id] = one
        holder_index.add(one)


INTERVALS = st.lists(
    st.builds(
        Interval,
        st.sampled_from(("lab", "eve")),
        st.integers(0, 4000),
        st.floats(0, 9 * HOUR),
        st.just(0.0),
    ),
    max_size=20,
)


@given(begun=INTERVALS, ended=st.sets(st.integers(0, 19)), now=st.floats(0, 40 * HOUR))
def test_what_runs_counts_as_the_intervals_of_those_that_have_not_ended(
    begun: list[Interval], ended: set[int], now: float
) -> None:
    """Also where the clock was set back, and some began later than it is now, or too long ago to count."""
    running = RunningUse()
    for one in begun:
        running.begin(one.project, one.permille, one.start)
    for number in ended:
        if number < len(begun):
            running.end(begun[number].project, begun[number].permille, begun[number].start)
    left = [one._replace(end=now) for number, one in enumerate(begun) if number not in ended]
    assert Usage(HOUR).decayed(now, running) == Usage(HOUR).record(left).decayed(now)


def test_what_runs_for_a_thousand_years_takes_no_more_than_what_counts() -> None:
    """A forecast asks for such a day where somebody wants to begin then; the node is one thread."""
    running = RunningUse()
    running.begin("lab", 1000, 0.0)
    now, kept = 1000 * 365 * 24 * HOUR, 24 * KEPT_HALF_LIVES
    first = int(now / HOUR) - kept
    assert len(running.books(now, first)["lab"]) == kept + 1
    day = Usage(24 * HOUR)
    assert day.decayed(now, running)["lab"] == day.decayed(now + 24 * HOUR, running)["lab"]


# --- a whole pool --------------------------------------------------------------------------------------


@given(seed=st.integers(0, 1_000_000))
def test_a_kept_snapshot_of_a_pool_is_one_that_is_taken_anew(seed: int) -> None:
    """Its free capacities and its sums, after any events, and after passes whose steps were never written."""
    chance = random.Random(seed)
    pool = Pool(*NODES, gpus=2, rules=replace(RULES, policy=POLICY))
    kept = pool.snapshot
    for number in range(30):
        before = pool.state
        _something(pool, number, chance)
        if chance.random() < 0.15:
            pool.state = before
        assert _drawn(kept, pool) == _drawn(ClusterSnapshot(), pool)


def _drawn(snapshot: ClusterSnapshot, pool: Pool) -> tuple[Any, ...]:
    state: PoolState = pool.state
    places = snapshot.refresh(state, state.policy, pool.now)
    snapshot.holder_index.sink(pool.now)
    books = [
        snapshot.holder_index.running.books(now) for now in (pool.now, pool.now - HOUR, pool.now + 3 * HOUR)
    ]
    troubles = {
        host: [capacity.gpu.trouble for capacity in capacities]
        for host, capacities in places.capacities().items()
    }
    return places.capacities(), troubles, told(snapshot.holder_index, pool.now), books


def _something(pool: Pool, number: int, chance: random.Random) -> None:
    """One thing that happens to a pool."""
    node = NodeName(chance.choice(NODES))
    live = sorted(pool.state.jobs)
    job = JobId(chance.choice(live)) if live else JobId("none")
    part = chance.choice(pool.where(job) or [""]) if live else ""
    match chance.randrange(12):
        case 0 | 1 | 2:
            _submit(pool, number, chance)
        case 3 | 4 if part:
            pool.says(part, AttemptState.RUNNING, job)
        case 5 if part:
            pool.says(part, AttemptState.ENDED, job, ending=exited(chance.randrange(2)))
        case 6 if part:
            ending = Ending(chance.choice((EndKind.NO_ROOM, EndKind.FAILED)), "no")
            pool.says(part, AttemptState.REFUSED, job, ending=ending)
        case 7:
            _tell_of_holdings(pool, node, job, chance)
        case 8 if live:
            pool.do(m.CancelAsked(job, pool.job(job).spec.owner, 10))
        case 9:
            pool.do(m.NodeDrainAsked(node, ADA, chance.choice(("x", None))))
        case 10:
            free = HeartbeatReport(stray_bytes=((held(node, 1).grants[0].gpu, chance.randrange(3) << 30),))
            pool.register(node, gpus=chance.choice((2, 2, 2, 3)), free=free)
        case 11:
            pool.do(m.NodeDisconnected(node))
        case _:
            pool.wait(chance.choice((0.1, 5.0, 60.0, HOUR)))


def _submit(pool: Pool, number: int, chance: random.Random) -> None:
    nodes = chance.choice((1, 1, 1, 2))
    request: Request = replace(chance.choice((WHOLE, HALF)), lease_class=chance.choice(list(LeaseClass)))
    pool.submit(f"j{number}", request, chance.choice((ADA, BOB)), nodes=nodes, retries=chance.randrange(2))


def _tell_of_holdings(pool: Pool, node: NodeName, job: JobId, chance: random.Random) -> None:
    """A local user's, or what a job of the pool has there."""
    holdings: Iterable[Any] = ()
    if chance.random() < 0.7:
        one = held(node, chance.randrange(2), permille=chance.choice((250, 500)))
        mine = job in pool.state.jobs and node in pool.where(job)
        holdings = (replace(one, attempt=pool.report(node, AttemptState.RUNNING, job).key) if mine else one,)
    pool.heartbeat(node, holdings=holdings)
