"""Explain why the pool has no room for a job: count the GPUs in question, and the reasons against each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpushared.domain.jobs import job_progress
from gpushared.domain.jobs.cluster_snapshot import ClusterCapacity, ClusterSnapshot, in_full
from gpushared.domain.jobs.coordinator_state import PoolState, is_gang
from gpushared.domain.jobs.job import HERE, Job, NodeName
from gpushared.domain.jobs.liveness import heard, presence
from gpushared.domain.jobs.member import Member, Presence
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.model.request_spec import describe
from gpushared.domain.model.units import first_few, format_duration, shown
from gpushared.domain.scheduling.outcome import why_no_room
from gpushared.domain.scheduling.placement.free_capacity import (
    FreeCapacity,
    Reason,
    free_capacities,
    is_grant,
    place,
    refuse,
)

NAMED = 3


@dataclass(frozen=True, slots=True)
class Lack:
    """Describe a lack: a code for programs, a sentence for people, and a hint that helps.

    ``refused``: some nodes could take the job, and each of them refuses it. ``hopeless``: all of them refuse
    the job, or no node could ever take it. A lack is not hopeless while the GPUs of some node are unknown.
    """

    reason: Reason
    sentence: str
    hint: str = ""
    refused: bool = False
    hopeless: bool = False


_REASON_TEXTS = {
    Reason.RESOURCES: "too full",
    Reason.SHARING_MODE: "shared by others, or not to be shared",
    Reason.UNMANAGED_USE: "used without a lease",
    Reason.GPU_UNHEALTHY: "out of use",
    Reason.OTHER_MODEL: "of another model",
    Reason.OTHER_GPU: "not the one that was asked for",
    Reason.AWAY_FROM: "held by what it keeps away from",
}


def lack_of_room(job: Job, state: PoolState, now: float, snapshot: ClusterSnapshot | None = None) -> Lack:
    """Explain what a waiting job lacks, without the last pass's decision."""
    members = [member for member in state.members.values() if member.forgotten_at is None]
    if not members:
        return Lack(
            Reason.RESOURCES,
            "the pool has no nodes",
            "a node joins with what `gpushare pool token` says",
        )
    target = state.members.get(job.spec.target) if job.spec.target != HERE else None
    away = _away(target, state, now) if target is not None else ""
    if target is not None and away:
        return Lack(Reason.GPU_UNHEALTHY, f"only node {target.name} will do, and it {away}", _hint(target))
    cluster = (snapshot or ClusterSnapshot()).refresh(state, state.policy, now)
    request, everywhere = _capacities(job, cluster, state)
    hosts = {host: capacities for host, capacities in everywhere.items() if host not in job.refused_by}
    wanted = job.spec.request.gpu_count if job.spec.span else job.spec.nodes
    able = _places(job, request, _emptied(hosts))
    if able.total() < wanted:
        hopeless = all(member.inventory is not None for member in members)
        able_of_all = _places(job, request, _emptied(everywhere))
        if job.refused_by and able_of_all.total() >= wanted:
            return replace(_refused(job, request), hopeless=hopeless)
        return replace(_never(job, request, everywhere, able_of_all.total()), hopeless=hopeless)
    absent = [state.members[name] for name in able if _away(state.members[name], state, now)]
    if able.total() - sum(able[member.name] for member in absent) < wanted:
        return Lack(Reason.GPU_UNHEALTHY, _only_away(job, absent, state, now), _hint(*absent))
    return _no_room_now(job, request, hosts, wanted, cluster, state, now)


Hosts = Mapping[str, Sequence[FreeCapacity]]


def _no_room_now(
    job: Job,
    request: Request,
    hosts: Hosts,
    wanted: int,
    cluster: ClusterCapacity,
    state: PoolState,
    now: float,
) -> Lack:
    """Explain what a job lacks that has room on these nodes when they are empty."""
    near = {name: at.host for name in job.spec.request.near if (at := cluster.holder(LeaseId(name)))}
    if len(set(near.values())) > 1:
        text = ", ".join(f"{name} on {host}" for name, host in near.items())
        return Lack(Reason.RESOURCES, f"needs one node with all that it is to be near: {text}")
    needs = _needs(job) + (f" on the node of {first_few(list(near), NAMED)}" if near else "")
    usable = _apart(job, {host: hosts[host] for host in hosts if not near or host in near.values()}, cluster)
    if _places(job, request, usable).total() >= wanted:
        return Lack(Reason.QUEUE_ORDER, f"there is room for {needs}; it is not its turn")
    counts = Counter(
        refusal.reason
        for capacities in usable.values()
        for refusal in why_no_room(request, _by_id(capacities))[1]
    )
    members = (member for member in state.members.values() if member.forgotten_at is None)
    silent = [member for member in members if _away(member, state, now)]
    reason = counts.most_common(1)[0][0] if counts else Reason.RESOURCES
    gpu_count = sum(map(len, usable.values()))
    return Lack(reason, _sentence(job, needs, counts, gpu_count, silent, state, now), _hint(*silent))


def _capacities(job: Job, cluster: ClusterCapacity, state: PoolState) -> tuple[Request, Hosts]:
    """Return the request for one node of the job, and the free capacity of the nodes that the job may go to."""
    request = replace(in_full(job.spec.request, cluster.models()), near=(), away_from=())
    if job.spec.span:
        request = replace(request, gpu_count=1)
    members = state.members
    return request, {
        host: capacities
        for host, capacities in cluster.capacities().items()
        if job.spec.target in (HERE, host) and members[NodeName(host)].forgotten_at is None
    }


def _apart(job: Job, hosts: Hosts, cluster: ClusterCapacity) -> Hosts:
    """Return the capacities, each with the job on its GPU from which this one keeps away."""
    others = {
        grant.gpu: name
        for name in job.spec.request.away_from
        if (at := cluster.holder(LeaseId(name)))
        for grant in at.grants
    }
    if not others:
        return hosts
    return {
        host: [replace(capacity, apart_from=others.get(capacity.gpu.id, "")) for capacity in capacities]
        for host, capacities in hosts.items()
    }


def _places(job: Job, request: Request, hosts: Hosts) -> Counter[NodeName]:
    """Count what the nodes have room for: GPUs if the job may span nodes, else whole parts of the job."""
    if job.spec.span:
        counts = {
            NodeName(host): sum(refuse(request, capacity) is None for capacity in capacities)
            for host, capacities in hosts.items()
        }
    else:
        counts = {
            NodeName(host): int(is_grant(place(request, _by_id(capacities))))
            for host, capacities in hosts.items()
        }
    return +Counter(counts)


def _emptied(hosts: Hosts) -> Hosts:
    """Return the capacities that the nodes would have if they were empty and all their GPUs were well."""
    return {
        host: list(free_capacities(map(_well, capacities), (), {}).values())
        for host, capacities in hosts.items()
    }


def _well(capacity: FreeCapacity) -> Gpu:
    return replace(capacity.gpu, trouble=None)


def _by_id(capacities: Iterable[FreeCapacity]) -> dict[GpuId, FreeCapacity]:
    return {capacity.gpu.id: capacity for capacity in capacities}


def _refused(job: Job, request: Request) -> Lack:
    reasons = job_progress.refusal_reasons(job)
    text = f"no other node of the pool could take {_request_text(request)}: {reasons}"
    if job.spec.target != HERE:
        text = f"only node {job.spec.target} will do, and {reasons}"
    return Lack(Reason.NEVER_FITS, text, job_progress.refusal_hint(job), refused=True)


def _never(job: Job, request: Request, hosts: Hosts, most: int) -> Lack:
    """Explain that the pool is too small for the job. ``most`` of its GPUs, or of its parts, have a place."""
    size = _request_text(request)
    models = sorted({capacity.gpu.name for capacities in hosts.values() for capacity in capacities})
    hint = f"there are {', '.join(models)}" if models else ""
    text = f"no node of the pool could take {size}, not even when it is empty"
    if job.spec.target != HERE:
        text = f"node {job.spec.target} could not take {size}, not even when it is empty"
    elif job.spec.span and most:
        size = _request_text(job.spec.request)
        text = f"all nodes of the pool together could not take {size}, not even when they are empty"
        hint = f"ask for at most {most} GPU{'' if most == 1 else 's'}"
    elif job.spec.nodes > 1:
        text = f"the pool has no {job.spec.nodes} nodes that could take {size}, not even when they are empty"
        hint = f"ask for at most {most} node{'' if most == 1 else 's'}" if most else hint
    return Lack(Reason.NEVER_FITS, text, hint)


def _only_away(job: Job, absent: Sequence[Member], state: PoolState, now: float) -> str:
    """Explain that too many of the nodes that could take the job take no work at the moment."""
    if len(absent) == 1 and not is_gang(job.spec):
        name, why = absent[0].name, _away(absent[0], state, now)
        return f"only node {name} could take {_request_text(job.spec.request)}, and it {why}"
    reasons = _away_reasons(absent, state, now)
    return f"needs {_needs(job)}; too few of the nodes that could take it are there: {reasons}"


def _away_reasons(absent: Sequence[Member], state: PoolState, now: float) -> str:
    """Say why each of some nodes takes no work."""
    reasons = [f"node {member.name} {_away(member, state, now)}" for member in absent[:NAMED]]
    more = f", and {len(absent) - NAMED} more" if len(absent) > NAMED else ""
    return f"{'; '.join(reasons)}{more}"


def _sentence(
    job: Job,
    needs: str,
    counts: Counter[Reason],
    gpus: int,
    silent: Sequence[Member],
    state: PoolState,
    now: float,
) -> str:
    against = [f"{count} {_REASON_TEXTS.get(reason, reason)}" for reason, count in counts.most_common()]
    of_all = f"of {gpus} GPU" + ("" if gpus == 1 else "s")
    text = f"needs {needs}; {of_all} are {', '.join(against)}" if against else f"needs {needs}"
    if job.refused_by:
        text = f"{text}; {job_progress.refusal_reasons(job)}"
    if not silent:
        return text
    return f"{text} ({_away_reasons(silent, state, now)})"


def _request_text(request: Request) -> str:
    """Describe the request, with its required models."""
    models = " or ".join(shown(model) for model in request.models)
    return f"{describe(request)} of model {models}" if models else describe(request)


def _needs(job: Job) -> str:
    if is_gang(job.spec) and not job.spec.span:
        return f"{_request_text(job.spec.request)} on each of {job.spec.nodes} nodes at once"
    return _request_text(job.spec.request) + (" on few nodes at once" if job.spec.span else "")


def _away(member: Member, state: PoolState, now: float) -> str:
    """Return why a node takes no work, as words to follow its name; return "" if the node takes work."""
    if member.forgotten_at is not None:
        return "was said to be off"
    match presence(member, state, now):
        case Presence.NEVER:
            return "has not been heard of since the coordinator started"
        case Presence.UNKNOWN:
            return f"has been silent for {format_duration(now - heard(member))}"
        case _ if member.drained_by:
            return f"is drained by {member.drained_by}: {shown(member.drain_reason)}"
        case _:
            return "" if member.connected else "is not connected"


def _hint(*members: Member) -> str:
    """Return the hint for the first member that nobody drained, or else for the first drained one."""
    lost = next((member for member in members if not member.drained_by), None)
    if lost is not None:
        return f"if it is off for good: gpushare node forget {lost.name} --is-off"
    return f"gpushare undrain {members[0].name}" if members else ""
