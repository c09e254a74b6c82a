"""Handle sick and drained GPUs, and MIG instances that the admin destroyed.

A lost GPU, or one with a driver error that no program made, is drained: it gets no new leases, and its leases
end, because no work on it can be trusted to go on. It stays drained, over restarts and reboots, until an
admin has checked and undrained it. People drain GPUs too; then leases run on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from gpushared.domain.leases.events import GpuDrainAsked, GpusSampled, GpusSurveyed
from gpushared.domain.leases.job_attempts import lose
from gpushared.domain.leases.lifecycle import drain, end_early
from gpushared.domain.leases.mps_containment import hit_by_another
from gpushared.domain.leases.node_state import Draft
from gpushared.domain.model import xid
from gpushared.domain.model.errors import (
    NotFound,
    PermissionRefused,
    RequestError,
    StateConflict,
)
from gpushared.domain.model.gpu import Drained, GpuId, gpu_label
from gpushared.domain.model.instances import wants_instances
from gpushared.domain.model.lease import (
    Active,
    ComputeCap,
    Draining,
    Ended,
    Failed,
    Finished,
    Lease,
    Paused,
    Queued,
    Requeued,
    Reserved,
    Resuming,
    Starting,
    Suspended,
    Suspending,
    WithContainer,
)
from gpushared.domain.model.request import Isolation
from gpushared.domain.model.units import shown

BY_NODE = "gpushared"
GRACE_SECONDS = 2
"""A container may save its files in this time; the GPU's memory can no longer be saved."""
MAX_REASON = 200


def sampled(event: GpusSampled, draft: Draft) -> None:
    """Drain sick GPUs, and note the errors of programs in the stories of the leases on their GPUs."""
    for gpu in sorted(event.xids.keys() | event.lost):
        drained = draft.view().drain_of(gpu)
        sickness = _sickness(gpu, event)
        if sickness and (drained is None or not drained.sick):
            draft.drained[gpu] = Drained(sickness, draft.now, BY_NODE, sick=True)
        for number in dict.fromkeys(event.xids.get(gpu, ())):
            if xid.kind(number) is not xid.XidKind.SICKNESS:
                _note_error(gpu, number, event, draft)


def end_on_sick_gpus(draft: Draft) -> None:
    """End every lease on a sick GPU, whatever the lease's state; its parts of other GPUs come free.

    The attempts of jobs are lost there, also one whose program met the GPU's error before a sample did.
    """
    for lease in list(draft.leases.values()):
        sick_gpu = _sick_gpu(lease, draft)
        if sick_gpu is None:
            continue
        failed = _failed(*sick_gpu, draft)
        match lease.state:
            case Reserved() if draft.engine_surveyed:
                lose(lease, failed, draft)
                end_early(lease, failed, failed.reason, draft)
            case Draining(outcome=Finished(exit_code=code, start_error="")) if code != 0:
                lose(lease, failed, draft)
            case Reserved() | Draining():
                pass
            case _:
                lose(lease, failed, draft)
                drain(lease, failed, failed.reason, draft, grace_seconds=GRACE_SECONDS)


def _sick_gpu(lease: Lease, draft: Draft) -> tuple[GpuId, Drained] | None:
    view = draft.view()
    for grant in lease.grants:
        drained = view.drain_of(grant.gpu)
        if drained is not None and drained.sick:
            return grant.gpu, drained
    return None


def _failed(gpu: GpuId, drained: Drained, draft: Draft) -> Failed:
    index = str(draft.gpus[gpu].index) if gpu in draft.gpus else gpu
    hint = f"reset it (`nvidia-smi -r -i {index}`) or reboot, then `gpushare undrain {index}`"
    return Failed(f"GPU {index} {drained.reason}", hint)


def _sickness(gpu: GpuId, event: GpusSampled) -> str:
    """Return how the GPU failed, or an empty text."""
    for number in event.xids.get(gpu, ()):
        if xid.kind(number) is xid.XidKind.SICKNESS:
            return xid.describe(number)
    return _loss(event.troubles.get(gpu, "")) if gpu in event.lost else ""


def _loss(trouble: str) -> str:
    """Shorten ``The GPU is lost: ... (see dmesg)`` to ``is lost: ...``."""
    problem = trouble.partition(" (")[0]
    loss = problem.removeprefix("The GPU ")
    if not loss:
        return "is lost"
    return loss if loss != problem else f"is lost: {loss}"


# --- errors of programs --------------------------------------------------------------------------------


def _note_error(gpu: GpuId, number: int, event: GpusSampled, draft: Draft) -> None:
    text = f"on GPU {gpu_label(gpu, draft.gpus)} {xid.describe(number)}"
    leases = [lease for lease in _leases_on(gpu, draft) if _was_there(lease, gpu, event, draft)]
    through_mps = [lease for lease in leases if _is_on_mps(lease)]
    if xid.hits_every_client(number) and len(through_mps) > 1:
        for lease in through_mps:
            hit_by_another(lease, f"{text}, which through MPS hits every lease there", draft)
        leases = [lease for lease in leases if lease not in through_mps]
    for lease in leases:
        # A program can repeat the same error many times a second.
        if all(entry.text != text for entry in lease.story):
            draft.put(lease.note(draft.now, text))


def _leases_on(gpu: GpuId, draft: Draft) -> Iterator[Lease]:
    parts = _parts(gpu, draft)
    for lease in list(draft.leases.values()):
        if isinstance(lease.state, WithContainer) and any(grant.gpu in parts for grant in lease.grants):
            yield lease


def _parts(gpu: GpuId, draft: Draft) -> set[GpuId]:
    """Return the GPU and its MIG instances."""
    return {part.id for part in draft.gpus.values() if part.parent == gpu} | {gpu}


def _was_there(lease: Lease, gpu: GpuId, event: GpusSampled, draft: Draft) -> bool:
    """Return True if the lease has processes on the GPU, or had some at the last look.

    The error may have ended the processes meanwhile.
    """
    seen = event.used_bytes.get(lease.id, {}).keys() | draft.use.used_bytes.get(lease.id, {}).keys()
    return not seen.isdisjoint(_parts(gpu, draft)) or isinstance(lease.state, Draining)


def _is_on_mps(lease: Lease) -> bool:
    shared = lease.request.isolation is Isolation.SHARED
    return shared and lease.walls is not None and lease.walls.compute_cap is ComputeCap.MPS_PERCENTAGE


# --- requests of people --------------------------------------------------------------------------------


def drain_asked(event: GpuDrainAsked, draft: Draft) -> None:
    """Drain or undrain a GPU; repeating either does no harm."""
    if not event.caller.trusted:
        raise PermissionRefused(
            f"only trusted callers may {'undrain' if event.reason is None else 'drain'} GPUs",
            hint="be root, or in the docker group",
        )
    if event.gpu not in draft.gpus and event.gpu not in draft.drained:
        raise NotFound(f"there is no GPU {shown(event.gpu)}", hint="`gpushare gpus` lists them")
    if event.reason is None:
        _undrain(event, draft)
    else:
        _drain(event, event.reason.strip(), draft)


def _drain(event: GpuDrainAsked, reason: str, draft: Draft) -> None:
    if not reason or not reason.isprintable() or len(reason) > MAX_REASON:
        raise RequestError(
            f"a drain needs a reason of one line and at most {MAX_REASON} characters",
            hint="people who wait are shown it: --reason 'new fan, back at 3 pm'",
        )
    name, drained = f"GPU {gpu_label(event.gpu, draft.gpus)}", draft.drained.get(event.gpu)
    if drained is not None and drained.sick:
        raise StateConflict(
            f"{name} is drained already: it {drained.reason}", hint="`gpushare gpus` shows it"
        )
    since = drained.since if drained else draft.now
    draft.drained[event.gpu] = Drained(reason, since, event.caller.name)
    if drained is None:
        for lease in _leases_on(event.gpu, draft):
            draft.put(lease.note(draft.now, f"{event.caller.name} drained {name} ({reason}); it runs on"))


def _undrain(event: GpuDrainAsked, draft: Draft) -> None:
    gpu = draft.gpus.get(event.gpu)
    if event.gpu in draft.use.lost and event.gpu in draft.drained:
        trouble = (gpu.trouble if gpu else None) or "it does not answer"
        label = gpu_label(event.gpu, draft.gpus)
        raise StateConflict(
            f"GPU {label} is still lost: {trouble}",
            hint=f"reset it (`nvidia-smi -r -i {label}`) or reboot first",
        )
    draft.drained.pop(event.gpu, None)


FAILED = Failed(
    "its MIG instance was destroyed",
    "ask for another one; the admin should leave instances alone while `gpushare ps` shows leases on them",
)


def end_on_destroyed(event: GpusSurveyed, draft: Draft) -> None:
    """End leases whose instances a survey misses, unless a GPU that cannot be asked may still have them."""
    if any(gpu.parent is None and not gpu.split and gpu.trouble is not None for gpu in event.gpus):
        return
    present = {gpu.id for gpu in event.gpus}
    for lease in list(draft.leases.values()):
        if wants_instances(lease.request) and any(grant.gpu not in present for grant in lease.grants):
            _end(lease, draft)


def _end(lease: Lease, draft: Draft) -> None:
    match lease.state:
        case Reserved() if draft.engine_surveyed:
            end_early(lease, FAILED, FAILED.reason, draft)
        case Starting() | Active() | Paused():
            drain(lease, FAILED, FAILED.reason, draft, grace_seconds=draft.rules.stop_grace_seconds)
        case (
            Queued()
            | Reserved()
            | Suspending()
            | Suspended()
            | Resuming()
            | Draining()
            | Requeued()
            | Ended()
        ):
            pass
        case unreachable:
            assert_never(unreachable)
