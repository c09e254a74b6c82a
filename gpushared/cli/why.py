"""Serve ``gpushare why``: tell why a lease or a job waits, how it ended, and all that happened to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import click

from gpushared.api.v1.messages import JobExplanation, JobPart
from gpushared.cli import complete, jobs, text
from gpushared.cli.listing import write_items
from gpushared.cli.options import output_option
from gpushared.cli.ps import holding, state
from gpushared.cli.references import first_found
from gpushared.client import Client, Explanation, Lease
from gpushared.client.jobs import Jobs

IDLE = "idle"


@click.command("why")
@output_option("text", "json")
@click.argument("lease", shell_complete=complete.outputs)
def why(lease: str, output: str) -> int:
    """Show why a lease or a job waits, what holds it once it runs, and all that happened to it, with times.

    For a running lease it says what happens when others need its GPUs.

    LEASE is a lease's or a job's id, the name of a container, also of one that waits, or the beginning of a
    container's id.

    \b
    Examples:
      gpushare why l-7f3k
      gpushare why k3m9x0p2qa
      gpushare why -o json trainer
    """
    client = Client()
    return first_found(
        client, lease, partial(_of_lease, client, output=output), partial(_of_job, client, output=output)
    )


def _of_job(client: Client, name: str, output: str) -> int:
    return show_job(Jobs(client).explain(name), output)


def _of_lease(client: Client, name: str, output: str) -> int:
    explanation = client.explain(name)
    write_items(
        output,
        "gpushare.explanation/1",
        [explanation.to_json()],
        lease_lines(explanation, time.time()),
        simulated=explanation.lease.simulated,
    )
    return 0


def lease_lines(explanation: Explanation, now: float) -> Iterator[str]:
    lease = explanation.lease
    yield _title(lease)
    yield from container(lease)
    if lease.job_id:
        of_pool = f" of pool {lease.job_pool}" if lease.job_pool else ""
        yield f"  job      {lease.job_id}{of_pool}, attempt {lease.job_attempt}"
    yield from _waiting(lease, now)
    for refusal in explanation.refusals:
        gpus = "1 GPU" if refusal.gpus == 1 else f"each of {refusal.gpus} GPUs"
        yield f"  refused  {gpus}: {refusal.text or refusal.reason}"
    yield from aside(explanation, now)
    yield from _constraints(lease)
    yield from _grants(lease)
    if explanation.gives_way:
        yield f"  others   {explanation.gives_way}"
    yield from _idle(lease, now)
    if lease.outcome is not None:
        yield f"  outcome  {state(lease)}" + (f": {lease.outcome.text}" if lease.outcome.text else "")
    yield "  story"
    for entry in explanation.story:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at))
        yield f"    {moment}  {entry.state:9}  {entry.text}"


def _title(lease: Lease) -> str:
    facts = [state(lease), f"asks {lease.asks}", lease.lease_class, f"of {lease.owner}"]
    return f"{lease.id}: " + ", ".join(fact for fact in facts if fact)


def container(lease: Lease) -> Iterator[str]:
    """Word the lease's image and container; yield nothing if the caller may not see them."""
    facts = [lease.image] if lease.image else []
    facts += [f"called {lease.container_name}"] if lease.container_name else []
    if facts:
        yield f"  runs     {', '.join(facts)}"


def _waiting(lease: Lease, now: float) -> Iterator[str]:
    waiting = lease.waiting
    if waiting is None:
        return
    yield f"  why      {waiting.text or waiting.reason} ({waiting.reason})"
    yield f"  place    {waiting.position} of {waiting.queue_length}"
    yield f"  start    {text.start(waiting.start_from, waiting.start_to, now)}"
    if lease.priority:
        yield f"  priority {lease.priority}"


def aside(explanation: Explanation, now: float) -> Iterator[str]:
    """Word the GPUs that are kept, and for whom, and the request that would fit now."""
    kept = explanation.kept
    if kept is not None and kept.gpu_labels:
        gpus = ", ".join(kept.gpu_labels)
        is_own = kept.lease_id == explanation.lease.id
        start = "" if is_own else f", start {text.start(None, kept.start_to, now)}"
        yield f"  kept     GPU {gpus} for {'it' if is_own else kept.lease_id}{start}"
    if explanation.fits_now:
        yield f"  instead  {explanation.fits_now}"


def _constraints(lease: Lease) -> Iterator[str]:
    """Word the lease's wishes besides parts of GPUs."""
    facts = [" or ".join(lease.models)] if lease.models else []
    facts += [f"near {', '.join(lease.near)}"] if lease.near else []
    facts += [f"away from {', '.join(lease.away_from)}"] if lease.away_from else []
    facts += [f"{lease.host_cpu_milli / 1000:g} CPUs"] if lease.host_cpu_milli else []
    facts += [f"{text.memory(lease.host_memory_bytes)} of host memory"] if lease.host_memory_bytes else []
    if facts:
        yield f"  wants    {'; '.join(facts)}"


def _grants(lease: Lease) -> Iterator[str]:
    if not lease.grants:
        return
    yield f"  holds    {holding(lease)}"
    if lease.memory_wall:
        yield f"  walls    memory: {lease.memory_wall}, compute: {lease.compute_cap or text.MISSING}"


def _idle(lease: Lease, now: float) -> Iterator[str]:
    if lease.idle_since is None:
        return
    facts = [f"for {text.span(now - lease.idle_since)}"]
    facts += ["gives way to others first"] if lease.lowered else []
    facts += [lease.notice.text] if lease.notice is not None and lease.notice.kind == IDLE else []
    yield f"  idle     {'; '.join(facts)}"


def show_job(explanation: JobExplanation, output: str) -> int:
    """Write the explanation as ``text`` or as ``json``."""
    write_items(
        output,
        "gpushare.job-explanation/1",
        [explanation.to_json()],
        job_lines(explanation, time.time()),
        simulated=explanation.simulated,
    )
    return 0


def job_lines(explanation: JobExplanation, now: float) -> Iterator[str]:
    job = explanation.job
    facts = [
        jobs.state(job),
        f"asks {job.asks}",
        job.job_class,
        f"of {job.owner}",
        "pool" if job.pool else "",
    ]
    yield f"{job.id}: " + ", ".join(fact for fact in facts if fact)
    if explanation.sentence:
        code = f" ({explanation.reason_code})" if explanation.reason_code else ""
        yield f"  why      {explanation.sentence}{code}"
    if explanation.hint:
        yield f"  helps    {explanation.hint}"
    if job.position:
        yield f"  place    {job.position}"
    if job.priority:
        yield f"  priority {job.priority}"
    for part in job.parts:
        yield f"  on       {_part(part, now)}"
    yield "  story"
    for entry in explanation.story:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at))
        yield f"    {moment}  {entry.text}"


def _part(part: JobPart, now: float) -> str:
    facts = [part.node, part.state or "not answered yet", part.lease_id, part.reason]
    facts += [f"silent since {text.clock(part.silent_since, now)}"] if part.silent_since else []
    return ", ".join(fact for fact in facts if fact)
