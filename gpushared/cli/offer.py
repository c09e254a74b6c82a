"""``gpushare offer``: when and where a request would start, without asking for it."""

from __future__ import annotations

import time as clock
from collections.abc import Iterator
from datetime import datetime

import click

from gpushared.cli import complete, text
from gpushared.cli.errors import wrong_values
from gpushared.cli.lease_values import check_values
from gpushared.cli.listing import write_items
from gpushared.cli.options import WholeNumber, output_option
from gpushared.cli.ps import holding
from gpushared.client import Client, OfferAnswer
from gpushared.client.moment import read_moment
from gpushared.client.submit_words import LeaseWish

WHOLE_GPU = "1"
STEPS = {
    "suspend": "is taken off its GPUs with all its state, and goes on later",
    "requeue": "is told, stopped, and started again later",
    "stop": "is told and stopped",
}


@click.command("offer")
@click.option("--gpu", default="", metavar="SIZE", help="As for run: 0.25, 2, 2x0.5, 0.25..1.")
@click.option("--gpu-memory", default="", metavar="SIZE", help="As for run: 8g.")
@click.option("--gpu-compute", default="", metavar="PERCENT", help="As for run: 30%.")
@click.option(
    "--preset",
    default="",
    shell_complete=complete.presets,
    metavar="NAME",
    help="A request that the admin gave a name.",
)
@click.option("--time", "limit", default="", metavar="DURATION", help="For how long: 30m, 2h.")
@click.option(
    "--class",
    "lease_class",
    default="",
    shell_complete=complete.classes,
    metavar="CLASS",
    help="build, train or infer.",
)
@click.option(
    "--isolation",
    default="",
    shell_complete=complete.isolations,
    metavar="KIND",
    help="shared, separate, exclusive or mig.",
)
@click.option("--priority", type=WholeNumber(-100, 100), default=0, metavar="NUMBER", help="-100 to 100.")
@click.option(
    "--project",
    default="",
    shell_complete=complete.projects,
    metavar="NAME",
    help="Whose quota it would count against.",
)
@click.option("--model", default="", metavar="MODEL,...", help="Only on GPUs of these models: h100.")
@click.option("--begin", default="", metavar="MOMENT", help="Not before: 22:00, +2h.")
@output_option("text", "json")
def offer(
    *,
    gpu: str,
    gpu_memory: str,
    gpu_compute: str,
    preset: str,
    limit: str,
    lease_class: str,
    isolation: str,
    priority: int,
    project: str,
    model: str,
    begin: str,
    output: str,
) -> int:
    """Show when and where a request would start if it were made now, and who would give way to it.

    Nothing is booked: the answer holds as long as nobody else comes and everybody uses their whole time.

    \b
    Examples:
      gpushare offer --gpu 0.5 --time 2h
      gpushare offer --gpu 2 --class build -o json
    """
    with wrong_values("--begin"):
        begin_at = read_moment(begin, datetime.now().astimezone()) if begin else 0.0
    said: LeaseWish = {
        "gpu": gpu or ("" if gpu_memory or gpu_compute or preset else WHOLE_GPU),
        "gpu_memory": gpu_memory,
        "gpu_compute": gpu_compute,
        "preset": preset,
        "time": limit,
        "lease_class": lease_class,
        "isolation": isolation,
        "priority": priority,
        "project": project,
        "models": [name.strip() for name in model.split(",") if name.strip()],
        "begin_at": begin_at,
    }
    check_values(said)
    answer = Client().offer(**said)
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
    for one in answer.gives_way:
        how = STEPS.get(one.step, one.step)
        yield f"  gives way  {one.lease_id} of {one.owner} ({one.asks}, project {one.project}): {how}"
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
