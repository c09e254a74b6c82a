"""Write the records of the history as messages."""

from __future__ import annotations

from gpushared.api.v1 import history_pb2
from gpushared.domain.accounting.account import Account
from gpushared.domain.accounting.grouping import Group, WaitGroup
from gpushared.domain.accounting.job_summary import JobSummary
from gpushared.domain.accounting.summary import LeaseSummary
from gpushared.domain.model.gpu import MIB, WHOLE_PERMILLE
from gpushared.domain.model.units import format_memory, format_percent, format_share
from gpushared.storage.history.records import JobHistory, LeaseHistory

MS_PER_SECOND = 1000
MAX_INT64 = (1 << 63) - 1


def int64(figure: int) -> int:
    """Return the figure as a message can hold it: a file may have impossible figures of a malicious node."""
    return max(-MAX_INT64, min(figure, MAX_INT64))


def account_view(account: Account) -> history_pb2.Account:
    seen = account.active_permille_ms + account.idle_permille_ms
    return history_pb2.Account(
        held_gpu_ms=_gpu_ms(account.held_permille_ms),
        active_gpu_ms=_gpu_ms(account.active_permille_ms),
        idle_gpu_ms=_gpu_ms(account.idle_permille_ms),
        too_big_gpu_ms=_gpu_ms(account.too_big_permille_ms),
        well_used_gpu_ms=_gpu_ms(account.active_permille_ms - account.too_big_permille_ms),
        unseen_gpu_ms=_gpu_ms(max(0, account.held_permille_ms - seen)),
        held_mib_seconds=int64(round(account.held_mib_ms / MS_PER_SECOND)),
        use_of_held_ratio=account.use_of_held_ratio,
        memory_of_held_ratio=account.memory_of_held_ratio,
    )


def _gpu_ms(permille_ms: int) -> int:
    return int64(round(permille_ms / WHOLE_PERMILLE))


def usage_row(group: Group) -> history_pb2.UsageRow:
    return history_pb2.UsageRow(key=group.key, leases=len(group.leases), account=account_view(group.account))


def waits_row(group: WaitGroup) -> history_pb2.WaitsRow:
    return history_pb2.WaitsRow(
        key=group.key,
        requests=group.requests,
        waited=group.waited,
        waiting=group.waiting,
        p50_ms=group.p50_ms,
        p90_ms=group.p90_ms,
        p99_ms=group.p99_ms,
        longest_ms=group.longest_ms,
        total_ms=int64(group.total_ms),
    )


def lease_view(one: LeaseHistory, *, with_names: bool) -> history_pb2.PastLease:
    """Show a lease. ``with_names``: the caller may see the names of its image, container and job."""
    asked = one.summary
    view = history_pb2.PastLease(
        id=asked.lease,
        node=one.node,
        owner=asked.owner,
        project=asked.project,
        outcome=asked.outcome,
        outcome_text=asked.outcome_text if with_names else "",
        exit_code=asked.exit_code,
        asks=asked_words(asked),
        gpu_count=asked.gpu_count,
        gpu_labels=one.gpu_labels,
        models=one.models,
        created_at=one.created_ms / MS_PER_SECOND,
        started_at=(one.started_ms or 0) / MS_PER_SECOND,
        ended_at=(one.ended_ms or 0) / MS_PER_SECOND,
        waited_ms=int64(one.waited_ms),
        ran_ms=int64(one.run_ms),
        time_limit_seconds=asked.time_limit_seconds or 0,
        peak_bytes=None if one.peak_mib is None else int64(one.peak_mib * MIB),
        held_bytes=None if one.held_mib is None else int64(one.held_mib * MIB),
        use_max_ratio=one.use_max_ratio,
        account=account_view(one.account),
        preemptions=asked.preemptions,
        restarts=asked.restarts,
        job=asked.job if with_names else "",
        attempt=asked.attempt if with_names else 0,
        image=asked.image if with_names else "",
        container_name=asked.container_name if with_names else "",
    )
    setattr(view, "class", asked.lease_class)
    return view


def job_view(one: JobHistory, *, with_names: bool) -> history_pb2.PastJob:
    """Show a job. ``with_names``: the caller may see its image and its name."""
    job = one.summary
    reasons = sorted(one.reasons.items(), key=lambda item: -item[1])
    view = history_pb2.PastJob(
        id=job.job,
        owner=job.owner,
        project=job.project,
        outcome=job.outcome,
        outcome_text=job.outcome_text if with_names else "",
        exit_code=job.exit_code,
        asks=asked_words(job),
        node_count=job.node_count,
        submitted_at=one.submitted_ms / MS_PER_SECOND,
        started_at=(one.started_ms or 0) / MS_PER_SECOND,
        ended_at=(one.ended_ms or 0) / MS_PER_SECOND,
        waited_ms=one.waited_ms,
        reasons=[history_pb2.ReasonWait(reason=reason, waited_ms=ms) for reason, ms in reasons],
        attempts=job.attempts,
        preemptions=job.preemptions,
        nodes=filter(None, job.nodes.split(",")),
        image=job.image if with_names else "",
        name=job.name if with_names else "",
    )
    setattr(view, "class", job.lease_class)
    return view


def asked_words(asked: LeaseSummary | JobSummary) -> str:
    """Write the size that was asked for as a user would type it: ``0.25``, ``2``, ``8 GiB and 30% compute``."""
    if asked.memory_bytes is not None:
        parts = [format_memory(asked.memory_bytes)]
        if asked.compute_permille is not None:
            parts.append(f"{format_percent(asked.compute_permille)}% compute")
        size = " and ".join(parts)
        return size if asked.gpu_count == 1 else f"{asked.gpu_count}x{size}"
    share = asked.memory_permille or asked.compute_permille or WHOLE_PERMILLE
    if share == WHOLE_PERMILLE:
        return str(asked.gpu_count)
    return format_share(share) if asked.gpu_count == 1 else f"{asked.gpu_count}x{format_share(share)}"
