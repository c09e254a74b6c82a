"""Explain in words why a job waits, or how it ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import click

from gpushared.cli import text
from gpushared.cli.jobs import state
from gpushared.cli.listing import SIMULATED
from gpushared.client.job_messages import JobExplanation, JobPart


def show_job(explanation: JobExplanation, output: str) -> int:
    """Write the explanation as ``text`` or as ``json``."""
    if output == "json":
        envelope = {
            "schema": "gpushare.job-explanation/1",
            "simulated": explanation.simulated,
            "items": [explanation.to_json()],
        }
        click.echo(json.dumps(envelope, indent=2))
    else:
        click.echo("\n".join(text.printable(line) for line in _lines(explanation, time.time())))
    return 0


def _lines(explanation: JobExplanation, now: float) -> Iterator[str]:
    job = explanation.job
    if explanation.simulated:
        yield SIMULATED
    facts = [state(job), f"asks {job.asks}", job.job_class, f"of {job.owner}", "pool" if job.pool else ""]
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
