"""Watch leases that use more GPU memory than they hold, or a GPU without the MPS that limits them.

The watchdog sees memory after it is taken, so it is the last wall and not the first: it stands behind every
slice, whatever else limits the slice. A whole GPU needs no watchdog, since its memory ends by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpushared.domain.leases.events import GpusSampled
from gpushared.domain.leases.lifecycle import drain
from gpushared.domain.leases.node_rules import Action
from gpushared.domain.leases.node_state import Draft
from gpushared.domain.model.gpu import GpuId, describe_gpu
from gpushared.domain.model.lease import (
    Active,
    Lease,
    LeaseId,
    OutsideMps,
    OverLimit,
    Paused,
    Starting,
)
from gpushared.domain.model.units import format_memory

UNSEEN = "unseen-memory-"
"""The names of troubles begin with this prefix, before the GPU index, if the watchdog does not see some of
the memory."""
CALM_SECONDS = 10.0
"""A lease must stay within its limits for this long, and for the length of the patience, before the trouble
counts as over. Otherwise a program that frees its memory for a moment now and again would never be ended, and
would fill the journal."""
_VERBS = {Action.STOP: "stopped", Action.KILL: "killed"}


def watch(sample: GpusSampled, draft: Draft) -> None:
    """Check the processes of every slice; note, stop or kill as the policy of its class says."""
    draft.calm = {of: since for of, since in draft.calm.items() if of[0] in draft.leases}
    for lease in draft.view().holders():
        if _is_watched(lease):
            used = sample.used_bytes.get(lease.id, {})
            _watch_memory(lease, _worst(lease, used, draft), draft)
        if _is_watched(draft.find(lease.id)):
            _watch_mps(draft.find(lease.id), sample, draft)


def _is_watched(lease: Lease) -> bool:
    return isinstance(lease.state, Starting | Active | Paused) and not lease.request.wants_whole_gpus


def _worst(lease: Lease, used: Mapping[GpuId, int], draft: Draft) -> OverLimit | None:
    """Return the GPU on which the lease is furthest over its limit."""
    tolerance = draft.rules.watchdog[lease.request.lease_class].tolerance_bytes
    over = [
        OverLimit(grant.gpu, used[grant.gpu], grant.memory_bytes)
        for grant in lease.grants
        if used.get(grant.gpu, 0) > grant.memory_bytes + tolerance
    ]
    return max(over, key=lambda overuse: overuse.used_bytes - overuse.limit_bytes, default=None)


def _watch_memory(lease: Lease, over: OverLimit | None, draft: Draft) -> None:
    if over is None:
        if lease.health.over_since is not None and _is_calm(lease, "memory", draft):
            inside = replace(lease, health=replace(lease.health, over_since=None))
            draft.put(inside.note(draft.now, "is inside its memory again"))
        return
    draft.calm.pop((lease.id, "memory"), None)
    if lease.health.over_since is None:
        lease = replace(lease, health=replace(lease.health, over_since=draft.now))
        lease = draft.put(lease.note(draft.now, describe(over, draft)))
    assert lease.health.over_since is not None
    _act(lease, over, "of its memory", lease.health.over_since, draft)


def _watch_mps(lease: Lease, sample: GpusSampled, draft: Draft) -> None:
    """Name a process that left MPS after one sample, and end its lease from the next sample on."""
    outside = sample.outside_mps.get(lease.id)
    if outside is None:
        seen = all(grant.gpu in sample.readable for grant in lease.grants)
        if lease.health.outside_since is not None and seen and _is_calm(lease, "mps", draft):
            back = "none of its processes uses a GPU without MPS any more"
            inside = replace(lease, health=replace(lease.health, outside_since=None))
            draft.put(inside.note(draft.now, back))
        return
    draft.calm.pop((lease.id, "mps"), None)
    gpu, pid = outside
    if lease.health.outside_since is None:
        name = describe_gpu(gpu, draft.gpus)
        why = f"its process {pid} uses {name} without MPS, where nothing holds it to its part"
        lease = replace(lease, health=replace(lease.health, outside_since=draft.now))
        draft.put(lease.note(draft.now, why))
        return
    _act(lease, OutsideMps(gpu, pid), f"its process {pid} left MPS", lease.health.outside_since, draft)


def _is_calm(lease: Lease, about: str, draft: Draft) -> bool:
    """Return True if the lease has stayed within its limits for long enough."""
    policy = draft.rules.watchdog[lease.request.lease_class]
    since = draft.calm.setdefault((lease.id, about), draft.now)
    return draft.now - since >= max(CALM_SECONDS, policy.patience_seconds)


def _act(lease: Lease, outcome: OverLimit | OutsideMps, why: str, since: float, draft: Draft) -> None:
    """End the lease if its class's policy says so, and patience is over."""
    policy = draft.rules.watchdog[lease.request.lease_class]
    if policy.action is Action.WARN or draft.now - since < policy.patience_seconds:
        return
    grace = 0 if policy.action is Action.KILL else draft.rules.stop_grace_seconds
    drain(lease, outcome, f"{_VERBS[policy.action]} because {why}", draft, grace_seconds=grace)


def describe(over: OverLimit, draft: Draft) -> str:
    """Write ``uses 30 GiB of its 20 GiB on GPU 0``."""
    used, limit = format_memory(over.used_bytes), format_memory(over.limit_bytes)
    return f"uses {used} of its {limit} on {describe_gpu(over.gpu, draft.gpus)}"


def overlap(leases: Mapping[LeaseId, Lease], gpu: GpuId, leasable_bytes: int, stray_bytes: int) -> int:
    """Return how many leased bytes of a GPU are held by processes without a lease; 0 if there are none."""
    grants = [grant for lease in leases.values() for grant in lease.grants if grant.gpu == gpu]
    booked = sum(grant.memory_bytes for grant in grants)
    return max(0, booked + stray_bytes - leasable_bytes) if booked else 0
