"""``gpushare wait``: until jobs are over, with their exit code."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click

from gpushared.cli import complete
from gpushared.cli.faults import say, wrong_values
from gpushared.cli.references import may_be_array
from gpushared.client import Client
from gpushared.client.job_messages import Job
from gpushared.client.jobs import Jobs

TIMED_OUT = 124
"""As timeout(1)."""
NO_CODE = 125
POLL_SECONDS = 30.0


@click.command("wait", short_help="Wait until jobs are over; exits with their code.")
@click.option("--timeout", metavar="DURATION", help="Give up after this time, with 124: 90s, 2h.")
@click.argument("job", shell_complete=complete.jobs, nargs=-1, required=True)
def wait(job: tuple[str, ...], timeout: str | None) -> int:
    """Wait until jobs are over. The jobs go on when this ends first.

    JOB is a job's id or an unmistakable beginning of it, an array's id for all of the array, or the name of
    a job's container.

    \b
    Exit codes:
      0 if all succeeded; else that of the first one, in the order named, that did not: its container's own,
      or 125 where there is none (it was cancelled, or could not be started); 124 after --timeout

    \b
    Examples:
      gpushare wait k3m9x0p2qa
      gpushare wait --timeout 2h $(gpushare submit IMAGE ./train)
    """  # noqa: D301 - click's mark for lines it must not join
    from gpushared.domain.units import parse_duration

    with wrong_values():
        until = time.monotonic() + parse_duration(timeout) if timeout else None
    jobs, code = Jobs(Client()), 0
    for one in _each(jobs, job):
        over = _over(jobs, one, until)
        if over is None:
            say(f"{one.id} is not over after {timeout} (--timeout)")
            return TIMED_OUT
        if over.state != "succeeded":
            say(_ending(over), over.hint)
            code = code or over.exit_code or NO_CODE
    return code


def _each(jobs: Jobs, names: tuple[str, ...]) -> Iterator[Job]:
    for name in names:
        pages = jobs.pages(ended=True, array_id=name) if may_be_array(name) else ()
        of_array = [one for page in pages for one in page.jobs]
        yield from sorted(of_array, key=lambda one: one.array_index or 0)
        if not of_array:
            yield jobs.get(name)


def _over(jobs: Jobs, job: Job, until: float | None) -> Job | None:
    """The job when it is over; None after the time."""
    while not job.is_over:
        seconds = POLL_SECONDS if until is None else min(POLL_SECONDS, until - time.monotonic())
        if seconds <= 0:
            return None
        job = jobs.wait(job.id, job.token, timeout_seconds=seconds)
    return job


def _ending(job: Job) -> str:
    code = "" if job.exit_code is None else f" with {job.exit_code}"
    return f"{job.id} {job.state}{code}" + (f": {job.reason}" if job.reason else "")
