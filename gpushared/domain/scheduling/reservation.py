"""GPUs kept for a request that waits, so that those behind it never delay it, and the bound that follows.

The first request of the order that waits for leases to end, and each project's next turn that does, have the
GPUs kept where they will fit soonest: by the time limits of the leases there, and where limits say nothing,
where least must end. A request behind them is granted on a kept GPU only if its own time limit ends first.
Where limits do not tell the start, others start on the GPUs too, unless a host is drained: for the request
that has waited longest, once it has waited for ``drain_seconds``.

The bound where all leases have time limits. Let every lease end within T seconds, and let a request fit its
host beside what is fixed for others, in a project that stays below its limit and makes no claim. With k older
requests in its project, n projects that ask without end, and g GPUs, it starts within

    (k + 1) * (patience_seconds + n * T) + 2 * D / g

seconds, where D is by how many GPU-seconds (decayed, by weight) its project is ahead of the others, which
grows by what its project is given meanwhile for smaller requests. For each project has a turn once a
patience, which goes to its oldest request, so k turns of its own project go before; GPUs that are kept for a
turn empty within T; turns of the other projects come before it only while those used less, and what a project
is given while another one waits puts it behind that one for good, because use decays in all alike. A claim
may go before it, each for at most T: what is guaranteed to one cannot be kept from them for another.

The bound without time limits. Let every lease end within T seconds nevertheless, let drain_seconds be D, and
let no host become emptier than the one that is drained. A request starts within D + D / 2 + T, and for each
request that has waited longer, within D / 2 + T more: half of D is the rest after the start of a request that
waited for D.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Sequence
from heapq import nsmallest

from gpushared.domain.model.gpu import WHOLE_PERMILLE, Gpu, GpuId
from gpushared.domain.model.lease import Grant, Lease, LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.capacity_port import CapacityPort
from gpushared.domain.scheduling.holder_index import HolderIndex
from gpushared.domain.scheduling.pass_records import NEVER, RunningLease
from gpushared.domain.scheduling.placement.free_capacity import need_on
from gpushared.domain.scheduling.quota_usage import size_on

HOSTS_RANKED = 64
HOSTS_LOOKED_AT = 16
"""Of many hosts, the emptiest are ranked by time limits, and the first of those are looked at closely."""


class HostIndex:
    """Find the holders on each host, and when each of them leaves."""

    def __init__(self, holder_index: HolderIndex, leaves_in_seconds: float) -> None:
        """Follow ``holder_index`` as it changes."""
        self._holder_index = holder_index
        self._leaves_in = leaves_in_seconds

    def load(self, host: str) -> int:
        """Return the permille of compute that is held there."""
        return self._holder_index.load(host)

    def hosts_of(self, holder: RunningLease) -> Collection[str]:
        """Return the hosts on which a lease holds parts of GPUs."""
        return self._holder_index.hosts_of(holder.lease.id)

    def on(self, host: str) -> Collection[RunningLease]:
        """Return the holders on a host."""
        return self._holder_index.on(host)

    def hosts(self) -> list[str]:
        """Return the hosts that somebody holds a part of, in order."""
        return self._holder_index.hosts()

    def end(self, holder: RunningLease, lease: LeaseId, now: float) -> float:
        """Return when the holder leaves at the latest, if ``lease`` needs its GPUs; infinite if unknown."""
        if lease in holder.behind:
            return now
        limit = NEVER if holder.lease.expires_at is None else holder.lease.expires_at
        return max(now, min(limit, now + self._leaves_in) if holder.leaving else limit)


def soonest(
    lease: LeaseId,
    request: Request,
    index: HostIndex,
    capacity: CapacityPort,
    closed: Collection[GpuId],
    now: float,
) -> tuple[frozenset[GpuId], float] | None:
    """Return the GPUs where a request fits soonest, and when.

    None if the request does not fit even when all leases have left.
    """
    best: tuple[float, int] | None = None
    gpus: frozenset[GpuId] = frozenset()
    need = min((_compute_on(request, gpu) for gpu in capacity.models().values()), default=0)
    for host, not_before in _promising(lease, request, index, capacity, now):
        if best is not None and best[0] < not_before:
            continue
        leaving = _in_order_of_end(index, host, lease, now)
        lacking = need - len(capacity.gpus_of(host)) * WHOLE_PERMILLE + index.load(host)
        least = _least_to_end(leaving, lacking)
        if best is not None and best <= (_end(leaving, least, now), lacking):
            continue  # the first host of those that are as good
        fit = _soonest_on(host, leaving, least, request, capacity, closed, now)
        if fit is not None and (best is None or fit[:2] < best):
            best, gpus = fit[:2], fit[2]
    return None if best is None else (gpus, best[0])


def _soonest_on(
    host: str,
    leaving: Sequence[tuple[float, Lease]],
    least: int,
    request: Request,
    capacity: CapacityPort,
    closed: Collection[GpuId],
    now: float,
) -> tuple[float, int, frozenset[GpuId]] | None:
    """Return when the request fits here, how much (permille) must end before, and where.

    ``least``: so many leases have to end at least.
    """
    leases = [lease for _, lease in leaving]
    placed: dict[int, tuple[Grant, ...]] = {}

    def fits(count: int) -> bool:
        placed[count] = capacity.place(request, gone=leases[:count], closed=closed, host=host)
        return bool(placed[count])

    if not fits(len(leases)):
        return None
    count = bisect_left(range(len(leases)), x=True, lo=least, key=fits)
    grants = placed[count]
    chosen = frozenset(grant.gpu for grant in grants)
    lacking = sum(
        grant.compute_permille for lease in leases[:count] for grant in lease.grants if grant.gpu in chosen
    )
    return _end(leaving, count, now), lacking, chosen


def _least_to_end(leaving: Sequence[tuple[float, Lease]], lacking: int) -> int:
    """Return how many of these leases have to end, in order, for so much compute (permille)."""
    count = 0
    while lacking > 0 and count < len(leaving):
        lacking -= sum(grant.compute_permille for grant in leaving[count][1].grants)
        count += 1
    return count


def _end(leaving: Sequence[tuple[float, Lease]], count: int, now: float) -> float:
    """Return when the first leases, so many of them, have ended."""
    return leaving[count - 1][0] if count else now


def _in_order_of_end(index: HostIndex, host: str, lease: LeaseId, now: float) -> list[tuple[float, Lease]]:
    """Return the leases of a host as they end; of those without an end, first those on the emptiest GPUs."""
    holders = index.on(host)
    load: dict[GpuId, int] = defaultdict(int)
    for holder in holders:
        for grant in holder.lease.grants:
            load[grant.gpu] += grant.compute_permille

    def order(entry: tuple[float, RunningLease]) -> tuple[float, int, int, str]:
        end, holder = entry
        fullest = max(load[grant.gpu] for grant in holder.lease.grants)
        return end, fullest, holder.lease.sequence, holder.lease.id

    ends = ((index.end(holder, lease, now), holder) for holder in holders)
    return [(end, holder.lease) for end, holder in sorted(ends, key=order)]


def _promising(
    lease: LeaseId, request: Request, index: HostIndex, capacity: CapacityPort, now: float
) -> Sequence[tuple[str, float]]:
    """Return the hosts to look at, and before when the request cannot fit there.

    Of a few hosts the result has all; of many, those where enough ends first.
    """
    hosts = index.hosts()
    if len(hosts) <= HOSTS_LOOKED_AT:
        return [(host, now) for host in hosts]
    models = capacity.models().values()
    need = min((size_on(request, gpu) for gpu in models), default=0)
    compute = min((_compute_on(request, gpu) for gpu in models), default=0)
    emptiest = nsmallest(HOSTS_RANKED, hosts, key=lambda host: (index.load(host), host))
    when = sorted(
        (_enough_at(host, need, lease, index, capacity, now), at) for at, host in enumerate(emptiest)
    )
    first = [(emptiest[at], enough_at) for enough_at, at in when[:HOSTS_LOOKED_AT]]
    if compute == need:
        return first
    return [(host, _enough_at(host, compute, lease, index, capacity, now)) for host, _ in first]


def _compute_on(request: Request, gpu: Gpu) -> int:
    """Return the compute (permille) that the request takes at least on GPUs like this one."""
    return need_on(request, gpu).compute_permille * (len(request.gpus) or request.gpu_count)


def _enough_at(
    host: str, need: int, lease: LeaseId, index: HostIndex, capacity: CapacityPort, now: float
) -> float:
    """Return when so much of a host's compute is free; the request may still not fit then."""
    free = len(capacity.gpus_of(host)) * WHOLE_PERMILLE - index.load(host)
    if free >= need:
        return now
    ends = ((index.end(holder, lease, now), _compute_of(holder)) for holder in index.on(host))
    for end, size in sorted(ends):
        free += size
        if free >= need:
            return end
    return NEVER


def _compute_of(holder: RunningLease) -> int:
    return sum(grant.compute_permille for grant in holder.lease.grants)
