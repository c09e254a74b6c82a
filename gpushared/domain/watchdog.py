"""Leases that use more GPU memory than they hold, and what becomes of them.

The watchdog sees memory after it is taken, so it is the last wall and not the first: it stands behind every
slice, whatever else holds it. A whole GPU needs none, its memory ends by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpushared.domain.gpu import GpuId
from gpushared.domain.lease import Active, Lease, LeaseId, OverLimit, Paused, Starting
from gpushared.domain.lifecycle import drain
from gpushared.domain.messages import GpusSampled
from gpushared.domain.rules import Action
from gpushared.domain.state import Draft
from gpushared.domain.units import format_memory

_DONE = {Action.STOP: "stopped", Action.KILL: "killed"}


def watch(sample: GpusSampled, draft: Draft) -> None:
    """Compare every slice with what its processes use; note, stop or kill as the policy of its class says."""
    for lease in list(draft.leases.values()):
        if isinstance(lease.state, Starting | Active | Paused) and not lease.request.wants_whole_gpus:
            used = sample.used_bytes.get(lease.id, {})
            _judge(lease, _worst(lease, used, draft), draft)


def _worst(lease: Lease, used: Mapping[GpuId, int], draft: Draft) -> OverLimit | None:
    """The GPU on which the lease is furthest over its limit."""
    tolerance = draft.rules.watchdog[lease.request.lease_class].tolerance_bytes
    over = [
        OverLimit(grant.gpu, used[grant.gpu], grant.memory_bytes)
        for grant in lease.grants
        if used.get(grant.gpu, 0) > grant.memory_bytes + tolerance
    ]
    return max(over, key=lambda one: one.used_bytes - one.limit_bytes, default=None)


def _judge(lease: Lease, over: OverLimit | None, draft: Draft) -> None:
    if over is None:
        if lease.over_since is not None:
            draft.put(replace(lease, over_since=None).note(draft.now, "is inside its memory again"))
        return
    if lease.over_since is None:
        lease = replace(lease, over_since=draft.now)
        lease = draft.put(lease.note(draft.now, describe(over, draft)))
    policy = draft.rules.watchdog[lease.request.lease_class]
    assert lease.over_since is not None
    if policy.action is Action.WARN or draft.now - lease.over_since < policy.patience_seconds:
        return
    grace = 0 if policy.action is Action.KILL else draft.rules.stop_grace_seconds
    drain(lease, over, f"{_DONE[policy.action]} because of its memory", draft, grace_seconds=grace)


def describe(over: OverLimit, draft: Draft) -> str:
    """``uses 30 GiB of its 20 GiB on GPU 0``."""
    gpu = draft.gpus.get(over.gpu)
    where = f"GPU {gpu.index}" if gpu else over.gpu
    return f"uses {format_memory(over.used_bytes)} of its {format_memory(over.limit_bytes)} on {where}"


def overlap(leases: Mapping[LeaseId, Lease], gpu: GpuId, leasable_bytes: int, stray_bytes: int) -> int:
    """How many leased bytes of a GPU processes without a lease hold; 0 when they keep out of them."""
    grants = [grant for lease in leases.values() for grant in lease.grants if grant.gpu == gpu]
    booked = sum(grant.memory_bytes for grant in grants)
    return max(0, booked + stray_bytes - leasable_bytes) if booked else 0
