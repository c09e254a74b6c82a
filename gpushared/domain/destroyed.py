"""End leases on MIG instances that are gone: the admin may destroy instances that no program uses now."""

from __future__ import annotations

from collections.abc import Iterable

from gpushared.domain.gpu import Gpu
from gpushared.domain.instances import wants_instances
from gpushared.domain.lease import Active, Failed, Lease, Paused, Reserved, Starting
from gpushared.domain.lifecycle import drain, end_early
from gpushared.domain.messages import GpusSurveyed
from gpushared.domain.state import Draft

FAILED = Failed(
    "its MIG instance was destroyed",
    "ask for another one; the admin should leave instances alone while `gpushare ps` shows leases on them",
)


def end_on_destroyed(event: GpusSurveyed, draft: Draft) -> None:
    """End leases whose instances a survey misses, unless a GPU that cannot be asked may still have them."""
    if not all(gpu.split or gpu.trouble is None for gpu in _whole(event.gpus)):
        return
    here = {gpu.id for gpu in event.gpus}
    for lease in list(draft.leases.values()):
        if wants_instances(lease.request) and any(grant.gpu not in here for grant in lease.grants):
            _end(lease, draft)


def _whole(gpus: Iterable[Gpu]) -> list[Gpu]:
    return [gpu for gpu in gpus if gpu.parent is None]


def _end(lease: Lease, draft: Draft) -> None:
    match lease.state:
        case Reserved() if draft.engine_surveyed:
            end_early(lease, FAILED, FAILED.reason, draft)
        case Starting() | Active() | Paused():
            drain(lease, FAILED, FAILED.reason, draft, grace_seconds=draft.rules.stop_grace_seconds)
        case _:
            pass
