"""Serve ``gpushare wait``: wait until jobs are over, and end with their exit code."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import click

from gpushared.api.v1.messages import Job
from gpushared.cli import complete
from gpushared.cli.errors import say, wrong_values
from gpushared.cli.references import first_found, jobs_of_array
from gpushared.client import Client, Lease
from gpushared.client.jobs import Jobs

TIMED_OUT = 124
"""timeout(1) has the same exit code."""
NO_CODE = 125
POLL_SECONDS = 30.0


@click.command("wait")
@click.option("--timeout", metavar="DURATION", help="Give up after this time, with 124: 90s, 2h.")
@click.argument("job", shell_complete=complete.jobs, nargs=-1, required=True)
def wait(job: tuple[str, ...], timeout: str | None) -> int:
    """Wait until jobs are over. The jobs go on when this ends first.

    JOB is a job's id or an unambiguous beginning of it, an array's id or name for all of the array, the name
    of a job's container, or a lease's id or container.

    \b
    Exit codes:
      0 if all succeeded; else that of the first one, in the order named, that did not: its container's own,
      or 125 where there is none (it was cancelled, or could not be started); 124 after --timeout

    \b
    Examples:
      gpushare wait k3m9x0p2qa
      gpushare wait --timeout 2h $(gpushare submit IMAGE ./train)
    """
    from gpushared.domain.model.units import parse_duration

    with wrong_values("--timeout"):
        until = time.monotonic() + parse_duration(timeout) if timeout else None
    client, code = Client(), 0
    for target in _each(client, job):
        exit_code = _exit_code(client, target, until)
        if exit_code is None:
            say(f"{target.id} is not over after {timeout} (--timeout)")
            return TIMED_OUT
        code = code or exit_code
    return code


def _each(client: Client, names: tuple[str, ...]) -> Iterator[Lease | Job]:
    for name in names:
        of_array = jobs_of_array(client, name)
        yield from sorted(of_array, key=lambda job: job.array_index or 0)
        if not of_array:
            yield first_found(client, name, partial(_of_lease, client), Jobs(client).get)


def _of_lease(client: Client, name: str) -> Lease | Job:
    lease = client.get(name)
    return Jobs(client).get(lease.job_id) if lease.job_id else lease


def _exit_code(client: Client, target: Lease | Job, until: float | None) -> int | None:
    """Wait for the end of a lease or a job, and return its exit code; None after the time."""
    while not (target.state == "ended" if isinstance(target, Lease) else target.is_over):
        seconds = POLL_SECONDS if until is None else min(POLL_SECONDS, until - time.monotonic())
        if seconds <= 0:
            return None
        wait_for = client.wait if isinstance(target, Lease) else Jobs(client).wait
        target = wait_for(target.id, target.token, timeout_seconds=seconds)
    return _code_of_lease(target) if isinstance(target, Lease) else _code_of_job(target)


def _code_of_lease(lease: Lease) -> int:
    """Return the exit code of an ended lease; tell the user how it ended if that is not 0."""
    code = lease.outcome.exit_code if lease.outcome is not None else None
    if code != 0 and lease.outcome is not None:
        say(f"{lease.id} {lease.outcome.kind}: {lease.outcome.text}")
    return NO_CODE if code is None else code


def _code_of_job(job: Job) -> int:
    """Return the exit code of an ended job; tell the user how it ended if it did not succeed."""
    if job.state == "succeeded":
        return 0
    code = "" if job.exit_code is None else f" with {job.exit_code}"
    say(f"{job.id} {job.state}{code}" + (f": {job.reason}" if job.reason else ""), job.hint)
    return job.exit_code or NO_CODE
