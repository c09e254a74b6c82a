"""Serve ``gpushare offer``: show when and where a request would start, without making it."""

from __future__ import annotations

import time as clock
from collections.abc import Iterator
from typing import cast

import click

from gpushared.cli import text
from gpushared.cli.docker_args import RunArguments
from gpushared.cli.listing import write_items
from gpushared.cli.options import output_option
from gpushared.cli.ps import holding
from gpushared.cli.run import RUN_OPTIONS
from gpushared.cli.start import lease_fields
from gpushared.client import Client, OfferAnswer
from gpushared.client.submit_parameters import LeaseArguments

OPTIONS = frozenset(
    {
        *("gpu", "gpu-memory", "gpu-compute", "preset", "time", "class"),
        *("isolation", "priority", "project", "model", "begin"),
    }
)
"""These options of ``run`` decide when and where a request starts."""
STEPS = {
    "suspend": "is taken off its GPUs with all its state, and goes on later",
    "requeue": "is told, stopped, and started again later",
    "stop": "is told and stopped",
}


@click.command(
    "offer", params=[option for option in RUN_OPTIONS if option.opts[0].removeprefix("--") in OPTIONS]
)
@output_option("text", "json")
def offer(*, output: str, **values: str | None) -> int:
    """Show when and where a request would start if it were made now, and who would give way to it.

    Nothing is booked: the answer holds as long as nobody else comes and everybody uses their whole time.

    \b
    Examples:
      gpushare offer --gpu 0.5 --time 2h
      gpushare offer --gpu 2 --class build -o json
    """
    options = {name.replace("_", "-"): value for name, value in values.items() if value}
    answer = Client().offer(**cast("LeaseArguments", lease_fields(RunArguments(options, (), ()))))
    write_items(
        output,
        "gpushare.offer/1",
        [answer.to_json()],
        _lines(answer, clock.time()),
        simulated=answer.simulated,
    )
    return 0


def _lines(answer: OfferAnswer, now: float) -> Iterator[str]:
    yield f"{answer.asks}, {answer.lease_class}, of project {answer.project}: {_when(answer, now)}"
    if answer.grants:
        yield f"  where      {holding(answer)}"
    for lease in answer.gives_way:
        how = STEPS.get(lease.step, lease.step)
        yield f"  gives way  {lease.lease_id} of {lease.owner} ({lease.asks}, project {lease.project}): {how}"
    if answer.why:
        yield f"  because    {answer.why}"
    if answer.waiting is not None:
        yield f"  why        {answer.waiting.text} ({answer.waiting.reason})"
    if answer.fits_now:
        yield f"  instead    {answer.fits_now}"


def _when(answer: OfferAnswer, now: float) -> str:
    if answer.starts_now or answer.waiting is None:
        return "starts now"
    waiting = answer.waiting
    start = text.start(waiting.start_from, waiting.start_to, now)
    return f"waits, position {waiting.position} of {waiting.queue_length}, start {start}"
