"""Serve ``gpushare report``: show what a lease or a job used of what it held, and what to ask for next time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import click

from gpushared.api.v1.history_messages import Account, LeaseReport, PastJob, PastLease, Report
from gpushared.cli import complete, text
from gpushared.cli.history_options import hours, lasted, percent
from gpushared.cli.listing import Options, client_for, own_values_of, write_items
from gpushared.cli.options import output_option
from gpushared.cli.sparkline import is_plain, sparkline
from gpushared.client import Client
from gpushared.domain.model.errors import GpushareError, NotFound

WIDTH = 10


@click.command("report")
@output_option("text", "json")
@click.option("--pool", is_flag=True, help="Look for it on all nodes of the pool.")
@click.option("--ascii", "plain", is_flag=True, help="Draw curves in ASCII, as for a terminal that is dumb.")
@click.argument("lease", shell_complete=complete.outputs)
def report(lease: str, output: str, *, pool: bool, plain: bool) -> int:
    """Show what a lease or a job used of what it held, over its life, and what to ask for next time.

    LEASE is the id of a lease or a job, also of one that is over long ago, or the name of a container that is
    there. Each attempt of a job is a part of the report.

    \b
    Examples:
      gpushare report l-7f3k
      gpushare report k3m9x0p2qa -o json
    """
    options = Options(own_values=own_values_of({"pool": pool}))
    answer = _fetch_report(client_for(Client(), options), lease, pool=pool)
    write_items(
        output,
        "gpushare.report/1",
        [lease_report.to_json() for lease_report in answer.leases],
        _lines(answer, plain=plain or is_plain(sys.stdout)),
        simulated=answer.simulated,
        account=answer.account.to_json(),
        job=None if answer.job is None else answer.job.to_json(),
    )
    return 0


def _fetch_report(client: Client, name: str, *, pool: bool) -> Report:
    try:
        return client.report(name, pool=pool)
    except NotFound as error:
        if pool:
            raise
        try:
            resolved_id = client.get(name).id
        except GpushareError:
            raise error from None
        return client.report(resolved_id)


def _lines(answer: Report, *, plain: bool) -> Iterator[str]:
    now = time.time()
    if answer.job is not None:
        yield from _job(answer.job, now)
    for lease_report in answer.leases:
        yield from _lease(lease_report, now, plain=plain)
    if len(answer.leases) > 1:
        yield f"all {len(answer.leases)} attempts"
        yield from _split(answer.account)


def _lease(lease_report: LeaseReport, now: float, *, plain: bool) -> Iterator[str]:
    lease = lease_report.lease
    yield _title(lease)
    if lease.job:
        yield _line("job", f"{lease.job}, attempt {lease.attempt}")
    names = [lease.image, f"called {lease.container_name}" if lease.container_name else ""]
    if any(names):
        yield _line("runs", ", ".join(filter(None, names)))
    yield _line("asked", _asked(lease))
    yield _line("waited", _waited(lease_report))
    if not lease.started_at:
        yield _line("held", "nothing")
        return
    yield _line("held", _held(lease))
    yield _line("ran", _ran(lease, now))
    yield from _use(lease_report, plain=plain)
    yield from _split(lease.account)
    for note in lease_report.notes:
        shown = note.text if not note.mend or f"`{note.mend}`" in note.text else f"{note.text}: `{note.mend}`"
        yield _line("note", shown)


def _job(job: PastJob, now: float) -> Iterator[str]:
    yield _title(job, "job, ")
    yield _line("asked", job.asks if job.node_count == 1 else f"{job.node_count} nodes x {job.asks}")
    ended = f", ended {text.clock(job.ended_at, now)}" if job.ended_at else ""
    yield _line("submitted", f"{text.clock(job.submitted_at or now, now)}{ended}")
    waited = lasted(job.waited_ms) if job.waited_ms else "not at all"
    yield _line("waited", f"{waited} before its leases{_reasons(job)}")
    where = f" on {', '.join(job.nodes)}" if job.nodes else ""
    yield _line("attempts", f"{job.attempts}{where}")


def _line(title: str, content: str) -> str:
    return f"  {title:{WIDTH}}{content}"


def _title(past: PastLease | PastJob, kind: str = "") -> str:
    code = "" if past.exit_code in {None, 0} else f"({past.exit_code})"
    outcome = f"{past.outcome}{code}" if past.outcome else "not over"
    why = f" ({past.outcome_text})" if past.outcome_text else ""
    return f"{past.id}: {kind}{outcome}{why}, {past.lease_class}, of {past.owner} in {past.project}"


def _reasons(waiter: LeaseReport | PastJob) -> str:
    """Return the reasons of a wait with their times, after a colon, or nothing."""
    reasons = ", ".join(f"{reason.reason} {lasted(reason.waited_ms)}" for reason in waiter.reasons)
    return f": {reasons}" if reasons else ""


def _asked(lease: PastLease) -> str:
    seconds = lease.time_limit_seconds
    return f"{lease.asks}, " + (f"for {text.span(seconds)}" if seconds else "without a limit")


def _waited(lease_report: LeaseReport) -> str:
    if not lease_report.lease.waited_ms:
        return "not at all"
    return lasted(lease_report.lease.waited_ms) + _reasons(lease_report)


def _held(lease: PastLease) -> str:
    gpus = f"GPU {', '.join(lease.gpu_labels)} of {lease.node} ({', '.join(lease.models)})"
    return f"{gpus}, {text.memory(lease.held_bytes)}"


def _ran(lease: PastLease, now: float) -> str:
    facts = [lasted(lease.ran_ms), f"from {text.day_and_clock(lease.started_at or now, now)}"]
    facts += [f"to {text.day_and_clock(lease.ended_at, now)}"] if lease.ended_at else []
    sentence = " ".join(facts)
    if lease.time_limit_seconds:
        sentence += f", {percent(lease.ran_ms / 1000 / lease.time_limit_seconds)} of the time asked for"
    times = f"{lease.preemptions} times" if lease.preemptions > 1 else "once"
    return sentence + (f", gave way {times}" if lease.preemptions else "")


def _use(lease_report: LeaseReport, *, plain: bool) -> Iterator[str]:
    lease, account = lease_report.lease, lease_report.lease.account
    if account.use_of_held_ratio is None:
        yield _line("use", "not seen")
    else:
        most, least = percent(lease.use_max_ratio), percent(lease_report.worst_gpu_ratio)
        extremes = (f", at most {most}" if most else "") + (f", the least used GPU {least}" if least else "")
        curve = sparkline((point.use_ratio for point in lease_report.curve), plain=plain)
        yield _line("use", f"{percent(account.use_of_held_ratio)} on average{extremes}")
        yield _line("", f"[{curve}]")
    if account.memory_of_held_ratio is None:
        yield _line("memory", "not seen")
    else:
        peak = text.memory_pair(lease.peak_bytes, lease.held_bytes or 0)
        curve = sparkline((point.memory_ratio for point in lease_report.curve), plain=plain)
        yield _line("memory", f"{percent(account.memory_of_held_ratio)} on average, peak {peak}")
        yield _line("", f"[{curve}]")


def _split(account: Account) -> Iterator[str]:
    yield _line(
        "GPU hours",
        f"{hours(account.held_gpu_ms)} held: {hours(account.well_used_gpu_ms)} well used, "
        f"{hours(account.too_big_gpu_ms)} too big, {hours(account.idle_gpu_ms)} idle, "
        f"{hours(account.unseen_gpu_ms)} not seen",
    )
