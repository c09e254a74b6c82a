"""When those who wait may start, from time limits alone: the queue played forward.

Asked for on demand, never while deciding. The times are the latest ones for the head of the queue; behind
it they are estimates, because whoever asks later may be placed first where the head does not stand.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpushared.domain.eligible import not_yet
from gpushared.domain.lease import Lease, LeaseId
from gpushared.domain.placement import rooms_of
from gpushared.domain.queue import decide, granted
from gpushared.domain.state import NodeState

POSITIONS = 32
"""Further back, an estimate says nothing."""
STEPS = 64


def starts(state: NodeState, now: float) -> Mapping[LeaseId, float]:
    """When each waiting lease starts if every lease uses its whole time limit; those unknown are left out."""
    waiting = [lease for lease in state.waiting() if not_yet(lease, state.leases, now) is None][:POSITIONS]
    holders = state.holders()
    found: dict[LeaseId, float] = {}
    at = now
    for _ in range(STEPS):
        new = _grant(waiting, holders, state, at)
        found |= dict.fromkeys((lease.id for lease in new), at)
        waiting = [lease for lease in waiting if lease.id not in found]
        holders += new
        ends = [lease.expires_at for lease in holders if lease.expires_at is not None]
        if not waiting or not ends:
            break
        at = max(at, min(ends))
        holders = [lease for lease in holders if lease.expires_at is None or lease.expires_at > at]
    return found


def _grant(waiting: list[Lease], holders: list[Lease], state: NodeState, at: float) -> list[Lease]:
    rooms = rooms_of(state.judged_gpus(), holders, state.stray_bytes)
    by_id = {lease.id: lease for lease in waiting}
    decided = decide(waiting, rooms, holders, at)
    return [granted(by_id[one.lease], one.grants, at) for one in decided if one.grants]
