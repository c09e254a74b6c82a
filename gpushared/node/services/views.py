"""Show the state to users: turn domain objects into messages of the API."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import psutil

from gpushared.api.v1 import gpus_pb2, leases_pb2
from gpushared.domain.leases.explain import Waiting
from gpushared.domain.leases.idle_leases import idle_since, notice_text
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.leases.notifications import outcome_text
from gpushared.domain.leases.offers import Offer, WouldGiveWay, fits_instead
from gpushared.domain.leases.requeue import can_give_way, step_of
from gpushared.domain.leases.suspension import why_not
from gpushared.domain.model.gpu import WHOLE_PERMILLE, Drained, Gpu, GpuId
from gpushared.domain.model.lease import (
    Active,
    Ended,
    Expired,
    Failed,
    Finished,
    Grant,
    Idle,
    Lease,
    LeaseId,
    NeverClaimed,
    Notice,
    Outcome,
    OutsideMps,
    OverLimit,
    Paused,
    Preempted,
    Queued,
    Requeued,
    Reserved,
    Starting,
    Stopped,
    StoryEntry,
    Suspended,
    state_name,
)
from gpushared.domain.model.request import Caller, Request
from gpushared.domain.model.request_spec import describe
from gpushared.domain.model.units import format_duration, format_memory
from gpushared.domain.scheduling.placement.free_capacity import FreeCapacity
from gpushared.node.runtime.loop import Loop
from gpushared.node.runtime.sampler import Sample, Stranger


class Views:
    """Render leases, GPUs and explanations from the newest state and the newest sample."""

    def __init__(self, loop: Loop, *, simulated: bool) -> None:
        self._loop = loop
        self.simulated = simulated
        self._rendered: dict[tuple[LeaseId, bool], tuple[Lease, leases_pb2.Lease]] = {}
        self._rendered_of: tuple[NodeState, Sample] | None = None

    def lease(self, lease: Lease, caller: Caller, sample: Sample) -> leases_pb2.Lease:
        """Show one lease as this caller may see it; callers with the same rights get the same message.

        Containers, and the words on an outcome, which may name an image, are shown to the lease's owner and to
        trusted callers.
        """
        with_names = caller.trusted or caller.uid == lease.owner_uid
        state = self._loop.state
        if lease.id not in state.leases or isinstance(lease.state, Queued | Requeued | Suspended):
            return self._lease(lease, sample, with_names=with_names)
        if (
            self._rendered_of is None
            or self._rendered_of[0] is not state
            or self._rendered_of[1] is not sample
        ):
            self._rendered, self._rendered_of = {}, (state, sample)
        rendered = self._rendered.get((lease.id, with_names))
        if rendered is None or rendered[0] is not lease:
            rendered = lease, self._lease(lease, sample, with_names=with_names)
            self._rendered[lease.id, with_names] = rendered
        return rendered[1]

    def _lease(self, lease: Lease, sample: Sample, *, with_names: bool) -> leases_pb2.Lease:
        view = _request_view(lease.request)
        view.id, view.state = lease.id, state_name(lease.state)
        view.simulated = self.simulated
        view.grants.extend(self._grant(grant) for grant in _grants(lease))
        _add_owner(view, lease)
        self._add_course(view, lease, with_names=with_names)
        self._add_use(view, lease, sample)
        if with_names:
            view.container_id = lease.container or ""
            view.container_name, view.image = lease.container_name, lease.image
        if isinstance(lease.state, Queued | Requeued | Suspended):
            self._add_waiting(view, lease)
        view.token = _token(view)
        return view

    def _add_course(self, view: leases_pb2.Lease, lease: Lease, *, with_names: bool) -> None:
        """Add the lease's times, its course and its outcome."""
        view.created_at = self.day(lease.created_at)
        view.since = self.day(lease.state.at if isinstance(lease.state, Ended) else lease.state.since)
        view.expires_at = self.day(lease.expires_at)
        if isinstance(lease.state, Suspended):
            view.left_seconds = lease.state.left_seconds or 0.0
        view.restarts, view.preemptions = lease.health.restarts, lease.preemption.count
        view.fault, view.held_by = lease.health.fault, lease.held_by
        view.preempt_step, view.preempt_why = _step(lease, self._loop.state), _why(lease, self._loop.state)
        if lease.notice is not None:
            view.notice.CopyFrom(self._notice(lease, lease.notice))
        if isinstance(lease.state, Reserved | Starting):
            view.deadline = self.day(lease.state.deadline)
        if isinstance(lease.state, Ended):
            view.outcome.CopyFrom(outcome(lease.state.outcome, self._loop.state.gpus))
            if not with_names:
                view.outcome.text = outcome_text(lease.state.outcome)

    def _add_use(self, view: leases_pb2.Lease, lease: Lease, sample: Sample) -> None:
        """Add the lease's use of its GPUs, and the walls that limit it."""
        view.idle_since = self.day(idle_since(lease, self._loop.state))
        view.lowered = lease.idleness.is_preemptible and can_give_way(lease, self._loop.state)
        if lease.walls is not None:
            view.memory_wall, view.compute_cap = lease.walls.memory_wall, lease.walls.compute_cap
        if lease.id in sample.used_bytes:
            view.memory_used_bytes = sample.used_bytes[lease.id]

    def day(self, at: float | None) -> float:
        """Return a moment in the time of day; 0 for none, as in messages."""
        return self._loop.state.day(at) if at else 0.0

    def story(self, entries: Iterable[StoryEntry]) -> list[leases_pb2.StoryEntry]:
        """Show the lines of a lease's story."""
        return [
            leases_pb2.StoryEntry(at=self.day(entry.at), state=entry.state, text=entry.text)
            for entry in entries
        ]

    def _notice(self, lease: Lease, notice: Notice) -> leases_pb2.Notice:
        ends_at = self.day(notice.until if notice.ends else None)
        text = notice_text(lease, notice, self._loop.state, self._loop.now())
        return leases_pb2.Notice(kind=notice.kind, ends_at=ends_at, text=text)

    def _grant(self, grant: Grant) -> leases_pb2.Grant:
        gpu = self._loop.state.gpus.get(grant.gpu)
        return leases_pb2.Grant(
            gpu_uuid=grant.gpu,
            gpu_index=gpu.index if gpu else -1,
            gpu_name=gpu.name if gpu else "",
            memory_bytes=grant.memory_bytes,
            compute_permille=grant.compute_permille,
            gpu_label=gpu.label if gpu else "",
            compute_limit_permille=grant.compute_limit_permille,
        )

    def _add_waiting(self, view: leases_pb2.Lease, lease: Lease) -> None:
        waiting = self.waiting_of(lease)
        if waiting is not None:
            view.waiting.CopyFrom(self._waiting_view(waiting))

    def _waiting_view(self, waiting: Waiting) -> leases_pb2.Waiting:
        return leases_pb2.Waiting(
            position=waiting.position,
            queue_length=waiting.queue_length,
            reason=waiting.reason,
            text=waiting.text,
            start_from=self.day(waiting.start_from),
            start_to=self.day(waiting.start_to),
        )

    def offer(self, request: Request, offer: Offer) -> leases_pb2.OfferAnswer:
        """Show the outcome that a request would have now."""
        view = leases_pb2.OfferAnswer(
            asks=describe(request),
            project=offer.project,
            starts_now=offer.starts_now,
            grants=[self._grant(grant) for grant in offer.grants],
            start_to=self.day(offer.start_to),
            gives_way=[_gives_way(other) for other in offer.gives_way],
            why=offer.why,
            waiting=self._waiting_view(offer.waiting) if offer.waiting else None,
            fits_now=offer.fits_now,
            simulated=self.simulated,
        )
        setattr(view, "class", request.lease_class)
        return view

    def kept(self, lease: Lease) -> leases_pb2.Kept | None:
        """Return the GPUs that are kept for a waiting lease, or the lease that it waits behind."""
        outlook = self._loop.outlook()
        decision = outlook.decisions.get(lease.id)
        if decision is None or decision.reservation is None or not decision.reservation.head:
            return None
        head, gpus = decision.reservation.head, self._loop.state.gpus
        start = outlook.starts.get(head)
        return leases_pb2.Kept(
            lease_id=head,
            gpu_labels=sorted(gpus[gpu].label for gpu in decision.reservation.gpus if gpu in gpus),
            start_to=self.day(start.at if start else None),
        )

    def waiting_of(self, lease: Lease) -> Waiting | None:
        """Explain why a lease waits, with its place in the queue; return None if it does not wait."""
        return self._loop.waiting_of(lease)

    def nearest(self, lease: Lease) -> str:
        """Name a smaller request that would start at once instead of a waiting one, or return an empty text."""
        if not isinstance(lease.state, Queued):
            return ""
        return fits_instead(self._loop.state, lease, self._loop.now())

    def refusals(self, lease: Lease) -> list[leases_pb2.Refusal]:
        """Count how often each reason refused a GPU to a waiting lease."""
        waiting = self.waiting_of(lease)
        if waiting is None:
            return []
        return [leases_pb2.Refusal(reason=r, gpus=count, text=text) for r, count, text in waiting.refusals]

    def gpus(self, sample: Sample) -> list[gpus_pb2.Gpu]:
        """Show all GPUs, by index."""
        capacities = self._loop.state.capacities()
        return [self._gpu(gpu, capacities[gpu.id], sample) for gpu in self._loop.state.gpus.values()]

    def _gpu(self, gpu: Gpu, capacity: FreeCapacity, sample: Sample) -> gpus_pb2.Gpu:
        drained = self._loop.state.drain_of(gpu.id)
        view = gpus_pb2.Gpu(
            uuid=gpu.id,
            index=gpu.index,
            name=gpu.name,
            mode=mode_of(capacity, drained),
            memory_total_bytes=gpu.memory_total_bytes,
            memory_leasable_bytes=gpu.leasable_bytes,
            memory_free_bytes=max(0, capacity.free_bytes),
            compute_free_permille=0 if gpu.split else max(0, capacity.free_permille),
            leases=capacity.leases,
            memory_unmanaged_bytes=capacity.stray_bytes,
            trouble=gpu.trouble or "",
            drained=self._drained(drained),
            sampled_at=self.day(sample.at),
            parent_uuid=gpu.parent or "",
            mig_profile=gpu.mig.profile if gpu.mig else "",
            label=gpu.label,
            link_group=gpu.link_group,
        )
        _add_reading(view, gpu.id, sample)
        sharing = sample.sharing.get(gpu.id)
        view.sharing = sharing.mode if sharing else "none"
        if sharing and sharing.trouble and not view.trouble:
            view.trouble = sharing.trouble
        return view

    def _drained(self, drained: Drained | None) -> gpus_pb2.Drained | None:
        if drained is None:
            return None
        return gpus_pb2.Drained(
            reason=drained.reason, since=self.day(drained.since), by=drained.by, sick=drained.sick
        )

    def strangers(self, sample: Sample) -> list[leases_pb2.UnmanagedProcess]:
        """Show GPU processes without a lease."""
        return [self._stranger(stranger) for stranger in sample.strangers]

    def _stranger(self, stranger: Stranger) -> leases_pb2.UnmanagedProcess:
        gpu = self._loop.state.gpus.get(stranger.gpu)
        user, command = owner_and_name(stranger.pid)
        return leases_pb2.UnmanagedProcess(
            pid=stranger.pid,
            gpu_uuid=stranger.gpu,
            gpu_index=gpu.index if gpu else -1,
            memory_bytes=stranger.memory_bytes,
            user=user,
            command=command,
        )


def _request_view(request: Request) -> leases_pb2.Lease:
    """Show the request of a lease."""
    view = leases_pb2.Lease(
        asks=describe(request),
        isolation=request.isolation,
        preset=request.preset or "",
        restart_on_fault=request.restart_on_fault,
        priority=request.priority,
        begin_at=request.begin_at or 0.0,
        after=request.after,
        models=request.models,
        near=request.near,
        away_from=request.away_from,
        host_cpu_milli=request.host_cpu_milli or 0,
        host_memory_bytes=request.host_memory_bytes or 0,
    )
    setattr(view, "class", request.lease_class)
    return view


def _add_owner(view: leases_pb2.Lease, lease: Lease) -> None:
    view.owner_uid, view.owner, view.project = lease.owner_uid, lease.owner_name, lease.payer
    if lease.attempt is not None:
        view.job_id, view.job_attempt = lease.attempt.job, lease.attempt.number
        view.job_pool = lease.coordinator


def _gives_way(preemption: WouldGiveWay) -> leases_pb2.GivesWay:
    lease = preemption.lease
    return leases_pb2.GivesWay(
        lease_id=lease.id,
        owner=lease.owner_name,
        asks=describe(lease.request),
        project=lease.payer,
        step=preemption.step,
    )


def _grants(lease: Lease) -> Iterable[Grant]:
    return lease.state.grants if isinstance(lease.state, Ended) else lease.grants


def _token(view: leases_pb2.Lease) -> str:
    """Return a token that changes with all that a waiting user sees, except momentary figures."""
    figures = (
        view.id,
        view.state,
        view.since,
        view.deadline,
        view.container_id,
        view.waiting.SerializeToString(deterministic=True),
    )
    return hashlib.blake2b(repr(figures).encode(), digest_size=8).hexdigest()


def mode_of(capacity: FreeCapacity, drained: Drained | None) -> str:
    if drained is not None:
        return "unhealthy" if drained.sick else "drained"
    if capacity.gpu.split:
        return "mig"
    if capacity.exclusive:
        return "exclusive"
    return "shared" if capacity.leases or capacity.free_permille < WHOLE_PERMILLE else "free"


def _add_reading(view: gpus_pb2.Gpu, gpu: GpuId, sample: Sample) -> None:
    reading = sample.readings.get(gpu)
    if reading is None:
        return
    if reading.memory_used_bytes is not None:
        view.memory_used_bytes = reading.memory_used_bytes
    if reading.utilization_ratio is not None:
        view.utilization_ratio = reading.utilization_ratio
    if reading.temperature_celsius is not None:
        view.temperature_celsius = reading.temperature_celsius
    if reading.power_watts is not None:
        view.power_watts = reading.power_watts


def owner_and_name(pid: int) -> tuple[str, str]:
    """Return a process's user and name, empty if the process is gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return process.username(), process.name()
    except psutil.Error:
        return "", ""


def _step(lease: Lease, state: NodeState) -> str:
    """Return what happens to a running lease that has to give way, else an empty text."""
    return step_of(lease, state) if isinstance(lease.state, Starting | Active | Paused) else ""


def _why(lease: Lease, state: NodeState) -> str:
    """Return why a running lease would not be suspended, else an empty text."""
    return why_not(lease, state) if isinstance(lease.state, Starting | Active | Paused) else ""


def outcome(result: Outcome, gpus: Mapping[GpuId, Gpu]) -> leases_pb2.Outcome:
    """Show a lease's outcome: a kind for programs, a sentence for people."""
    match result:
        case Finished(code, start_error):
            text = f"could not be started: {start_error}" if start_error else f"ended with exit code {code}"
            return leases_pb2.Outcome(kind="finished", exit_code=code, text=text)
        case Stopped(by):
            return leases_pb2.Outcome(kind="stopped", text=f"stopped by {by}")
        case Expired():
            return leases_pb2.Outcome(kind="expired", text="its time limit was reached")
        case NeverClaimed():
            return leases_pb2.Outcome(kind="never_claimed", text="no container was started in time")
        case OverLimit(gpu, used, limit):
            where = f"GPU {gpus[gpu].label}" if gpu in gpus else gpu
            text = f"used {format_memory(used)} of its {format_memory(limit)} on {where}"
            return leases_pb2.Outcome(kind="over_limit", text=text)
        case OutsideMps(gpu, pid):
            where = f"GPU {gpus[gpu].label}" if gpu in gpus else gpu
            text = f"its process {pid} used {where} without MPS, which holds it to its part"
            return leases_pb2.Outcome(kind="outside_mps", text=text)
        case Preempted(why):
            return leases_pb2.Outcome(kind="preempted", text=why)
        case Idle(seconds):
            text = f"it did nothing on its GPUs for {format_duration(seconds)}"
            return leases_pb2.Outcome(kind="idle", text=text)
        case Failed(reason, hint):
            return leases_pb2.Outcome(kind="failed", text=f"{reason}; {hint}" if hint else reason)
