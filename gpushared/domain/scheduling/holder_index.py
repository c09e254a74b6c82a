"""Keep the holders, and the sums over them that a pass asks for.

A change costs the same however many others hold something. So a caller with many passes over many holders
keeps an index from pass to pass, and each pass works on a copy of it: a few tables, and only the holders of the
projects and hosts where it changes something.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol, TypeVar

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.request import LeaseClass
from gpushared.domain.scheduling.gpu_amounts import GpuLookup, Sizes, sizes_of
from gpushared.domain.scheduling.long_runs import named_priority, sinks_at, sunk_holder
from gpushared.domain.scheduling.pass_records import NEVER, RunningLease
from gpushared.domain.scheduling.projects import GivesWay, Policy
from gpushared.domain.scheduling.use_over_time import RunningUse

FIXED_CLASS = LeaseClass.BUILD
"""Fixed quotas are kept for this class."""

Holders = Mapping[LeaseId, RunningLease]
NOBODY: Holders = {}
K = TypeVar("K")


class Whereabouts(GpuLookup, Protocol):
    """Know GPUs by their ids, and their hosts."""

    def host_of(self, gpu: GpuId) -> str:
        """Return the host of a GPU; KeyError if the GPU is unknown."""


@dataclass(frozen=True, slots=True)
class _Entry:
    holder: RunningLease
    sizes: Sizes
    hosts: Mapping[str, int]
    """The hosts where the lease holds something, and how much (permille) of the compute there."""


class _Tables:
    """Keep holders by a word. A copy shares each table until it changes it."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[LeaseId, RunningLease]] = {}
        self._shared: set[str] = set()

    def copy(self) -> _Tables:
        twin = _Tables()
        twin._tables, twin._shared = dict(self._tables), set(self._tables)
        return twin

    def put(self, name: str, holder: RunningLease) -> None:
        self._own(name)[holder.lease.id] = holder

    def drop(self, name: str, lease: LeaseId) -> None:
        table = self._own(name)
        del table[lease]
        if not table:
            del self._tables[name]

    def get(self, name: str) -> Holders:
        return self._tables.get(name, NOBODY)

    def names(self) -> Collection[str]:
        return self._tables.keys()

    def _own(self, name: str) -> dict[LeaseId, RunningLease]:
        table = self._tables.get(name)
        if table is None or name in self._shared:
            self._shared.discard(name)
            table = self._tables[name] = dict(table or NOBODY)
        return table


class HolderIndex:
    """Keep holders by project and by host. ``policy`` says what is counted of them."""

    def __init__(self, policy: Policy, lookup: Whereabouts, holders: Iterable[RunningLease] = ()) -> None:
        self.policy = policy
        self.version = 0
        """The number grows with every change, for callers that remember their results."""
        self.best_effort: dict[LeaseId, RunningLease] = {}
        self.leaving: dict[LeaseId, RunningLease] = {}
        self.lossless: dict[LeaseId, RunningLease] = {}
        """The leases that lose nothing by giving way."""
        self.unreported: Mapping[str, int] = {}
        """By project, the most permille that its jobs may hold on nodes that have not reported yet."""
        self._lookup = lookup
        self._yielding = {
            name for name, rules in policy.classes.items() if rules.gives_way is GivesWay.ALWAYS
        }
        self._entries: dict[LeaseId, _Entry] = {}
        self._projects, self._hosts = _Tables(), _Tables()
        self._all: dict[str, int] = {}
        self._held: dict[tuple[str, str], int] = {}
        self._fixed: dict[tuple[str, str], int] = {}
        self._limited: dict[tuple[str, str], int] = {}
        """The amounts that count towards limits; an empty model stands for all models together."""
        self._load: dict[str, int] = {}
        self._levels: dict[str, Mapping[int, int]] = {}
        """By project and priority, the number of leases that give way to the project's work of a higher priority."""
        self._behind: dict[LeaseId, Holders] = {}
        self._running: RunningUse | None = RunningUse()
        self._sinks: list[tuple[float, int, LeaseId]] = []
        """A heap of the times at which leases sink; the version tells a lease from its earlier entry."""
        for holder in holders:
            self.add(holder)

    def copy(self) -> HolderIndex:
        """Return a copy, to try changes on while this index stays as it is."""
        twin = copy(self)
        for name in ("best_effort", "leaving", "lossless", "_entries", "_projects", "_hosts"):
            setattr(twin, name, getattr(self, name).copy())
        for name in ("_all", "_held", "_fixed", "_limited", "_load", "_levels", "_behind"):
            setattr(twin, name, getattr(self, name).copy())
        twin._running = None  # noqa: SLF001 - of the same class
        return twin

    # --- changes ---------------------------------------------------------------------------------------

    def add(self, holder: RunningLease) -> None:
        """Count a holder in."""
        lease = holder.lease
        assert lease.id not in self._entries, f"{lease.id} is counted already"
        sizes = sizes_of(lease.grants, self._lookup)
        entry = self._entries[lease.id] = _Entry(holder, sizes, self._hosts_of(holder))
        self._projects.put(holder.project, holder)
        for host in entry.hosts:
            self._hosts.put(host, holder)
        if lease.idleness.is_preemptible or lease.request.lease_class in self._yielding:
            self.best_effort[lease.id] = holder
        if holder.leaving:
            self.leaving[lease.id] = holder
        if holder.step.loses_nothing:
            self.lossless[lease.id] = holder
        for other in holder.behind:
            self._behind[other] = {**self.behind(other), lease.id: holder}
        self._count(entry, 1)
        self._note_sinking(holder)

    def sink(self, now: float) -> float:
        """Lower the priorities of the runs that have become long; return when the next one sinks."""
        while self._sinks:
            at, _, lease = self._sinks[0]
            entry = self._entries.get(lease)
            is_held = entry is not None and at == sinks_at(entry.holder, self.policy)
            if is_held and at > now:
                return at
            heappop(self._sinks)
            if entry is not None and is_held:
                self.remove(lease)
                self.add(sunk_holder(entry.holder, self.policy, now))
        return NEVER

    def _note_sinking(self, holder: RunningLease) -> None:
        at = sinks_at(holder, self.policy)
        if self._running is not None and at < NEVER:
            heappush(self._sinks, (at, self.version, holder.lease.id))

    def remove(self, lease: LeaseId) -> None:
        """Count a holder out; KeyError if it is not counted in."""
        entry = self._entries.pop(lease)
        self._projects.drop(entry.holder.project, lease)
        for host in entry.hosts:
            self._hosts.drop(host, lease)
        self.best_effort.pop(lease, None)
        self.leaving.pop(lease, None)
        self.lossless.pop(lease, None)
        for other in entry.holder.behind:
            self._behind[other] = {
                name: holder for name, holder in self.behind(other).items() if name != lease
            }
        self._count(entry, -1)

    def _hosts_of(self, holder: RunningLease) -> Mapping[str, int]:
        permille_by_host: dict[str, int] = {}
        for grant in holder.lease.grants:
            try:
                host = self._lookup.host_of(grant.gpu)
            except KeyError:  # a GPU that is not here any more can be kept for nobody
                continue
            permille_by_host[host] = permille_by_host.get(host, 0) + grant.compute_permille
        return permille_by_host

    def _count(self, entry: _Entry, sign: int) -> None:
        holder, name = entry.holder, entry.holder.project
        self.version += 1
        priority = holder.priority if holder.step.loses_nothing else named_priority(holder)
        self._levels[name] = _counted(self._levels.get(name, {}), priority, sign)
        for host, size in entry.hosts.items():
            _add(self._load, host, sign * size)
        total, project = sum(entry.sizes.values()), self.policy.projects.get(name)
        _add(self._all, name, sign * total)
        if project is not None:  # only of configured projects more is asked than how much they hold
            for model, size in entry.sizes.items():
                key = (name, project.pool(model))
                _add(self._held, key, sign * size)
                if holder.lease.request.lease_class is FIXED_CLASS:
                    _add(self._fixed, key, sign * size)
                if not holder.stays and model in project.models:
                    _add(self._limited, (name, model), sign * size)
            if not holder.stays:
                _add(self._limited, (name, ""), sign * total)
        if self._running is not None:
            change = self._running.begin if sign > 0 else self._running.end
            change(name, total, holder.started_at)

    # --- questions -------------------------------------------------------------------------------------

    def __contains__(self, lease: LeaseId) -> bool:
        return lease in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def holders(self) -> list[RunningLease]:
        """Return all holders."""
        return [entry.holder for entry in self._entries.values()]

    @property
    def running(self) -> RunningUse:
        """Return the use of the holders that run on; a copy does not know it."""
        assert self._running is not None, "asked of a copy"
        return self._running

    def projects(self) -> Collection[str]:
        """Return the projects that hold something."""
        return self._projects.names()

    def of(self, project: str) -> Collection[RunningLease]:
        """Return a project's holders."""
        return self._projects.get(project).values()

    def lowest_priority(self, project: str, otherwise: int) -> int:
        """Return the lowest priority by which a lease of a project gives way to the project's own work.

        A lease that would lose its work does so only by the priority that it would have without a long run.
        """
        return min(self._levels.get(project, ()), default=otherwise)

    def all(self, project: str) -> int:
        """Return all that a project holds, in permille of a GPU."""
        return self._all.get(project, 0)

    def held(self, project: str, pool: str) -> int:
        """Return the amount that a configured project holds of a pool."""
        return self._held.get((project, pool), 0)

    def limited(self, project: str, model: str = "") -> int:
        """Return the amount that counts towards a configured project's limit; no model: of all together.

        A limit counts what is decided here: a lease of another queue counts towards the limits there.
        """
        return self._limited.get((project, model), 0) + self.unreported.get(project, 0)

    def fixed(self, project: str, pool: str) -> int:
        """Return the amount that a configured project's build work holds of a pool."""
        return self._fixed.get((project, pool), 0)

    def sizes(self, lease: LeaseId) -> Sizes:
        """Return the sizes of a holder's grants."""
        return self._entries[lease].sizes

    def behind(self, lease: LeaseId) -> Holders:
        """Return the holders on GPUs that are kept for a waiting lease."""
        return self._behind.get(lease, NOBODY)

    def hosts(self) -> list[str]:
        """Return the hosts that somebody holds a part of, in order."""
        return sorted(self._hosts.names())

    def on(self, host: str) -> Collection[RunningLease]:
        """Return the holders on a host."""
        return self._hosts.get(host).values()

    def load(self, host: str) -> int:
        """Return the permille of compute that leases hold on a host."""
        return self._load.get(host, 0)

    def hosts_of(self, lease: LeaseId) -> Mapping[str, int]:
        """Return the hosts where a lease holds something, and how much of their compute."""
        return self._entries[lease].hosts


def _counted(counts: Mapping[int, int], priority: int, sign: int) -> Mapping[int, int]:
    """Return a new mapping, because copies share the old one."""
    counts = {**counts, priority: counts.get(priority, 0) + sign}
    return {key: count for key, count in counts.items() if count}


def _add(sums: dict[K, int], key: K, amount: int) -> None:
    """Add to a sum, and drop a sum of zero, so that holders that came and went leave no trace."""
    after = sums.get(key, 0) + amount
    if after:
        sums[key] = after
    else:
        sums.pop(key, None)
