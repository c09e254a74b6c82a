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


def lease_view(lease: LeaseHistory, *, with_names: bool) -> history_pb2.PastLease:
    """Show a lease. ``with_names``: the caller may see the names of its image, container and job."""
    summary = lease.summary
    view = history_pb2.PastLease(
        id=summary.lease,
        node=lease.node,
        owner=summary.owner,
        project=summary.project,
        outcome=summary.outcome,
        outcome_text=summary.outcome_text if with_names else "",
        exit_code=summary.exit_code,
        asks=requested_size(summary),
        gpu_count=summary.gpu_count,
        gpu_labels=lease.gpu_labels,
        models=lease.models,
        created_at=lease.created_ms / MS_PER_SECOND,
        started_at=(lease.started_ms or 0) / MS_PER_SECOND,
        ended_at=(lease.ended_ms or 0) / MS_PER_SECOND,
        waited_ms=int64(lease.waited_ms),
        ran_ms=int64(lease.run_ms),
        time_limit_seconds=summary.time_limit_seconds or 0,
        peak_bytes=None if lease.peak_mib is None else int64(lease.peak_mib * MIB),
        held_bytes=None if lease.held_mib is None else int64(lease.held_mib * MIB),
        use_max_ratio=lease.use_max_ratio,
        account=account_view(lease.account),
        preemptions=summary.preemptions,
        restarts=summary.restarts,
        job=summary.job if with_names else "",
        attempt=summary.attempt if with_names else 0,
        image=summary.image if with_names else "",
        container_name=summary.container_name if with_names else "",
    )
    setattr(view, "class", summary.lease_class)
    return view


def job_view(job: JobHistory, *, with_names: bool) -> history_pb2.PastJob:
    """Show a job. ``with_names``: the caller may see its image and its name."""
    summary = job.summary
    reasons = sorted(job.reasons.items(), key=lambda item: -item[1])
    view = history_pb2.PastJob(
        id=summary.job,
        owner=summary.owner,
        project=summary.project,
        outcome=summary.outcome,
        outcome_text=summary.outcome_text if with_names else "",
        exit_code=summary.exit_code,
        asks=requested_size(summary),
        node_count=summary.node_count,
        submitted_at=job.submitted_ms / MS_PER_SECOND,
        started_at=(job.started_ms or 0) / MS_PER_SECOND,
        ended_at=(job.ended_ms or 0) / MS_PER_SECOND,
        waited_ms=job.waited_ms,
        reasons=[history_pb2.ReasonWait(reason=reason, waited_ms=ms) for reason, ms in reasons],
        attempts=summary.attempts,
        preemptions=summary.preemptions,
        nodes=filter(None, summary.nodes.split(",")),
        image=summary.image if with_names else "",
        name=summary.name if with_names else "",
    )
    setattr(view, "class", summary.lease_class)
    return view


def requested_size(summary: LeaseSummary | JobSummary) -> str:
    """Write the size that was asked for as a user would type it: ``0.25``, ``2``, ``8 GiB and 30% compute``."""
    if summary.memory_bytes is not None:
        parts = [format_memory(summary.memory_bytes)]
        if summary.compute_permille is not None:
            parts.append(f"{format_percent(summary.compute_permille)}% compute")
        size = " and ".join(parts)
    else:
        share = summary.memory_permille or summary.compute_permille or WHOLE_PERMILLE
        if share == WHOLE_PERMILLE:
            return str(summary.gpu_count)
        size = format_share(share)
    return size if summary.gpu_count == 1 else f"{summary.gpu_count}x{size}"
