"""One command over several leases: those that work are printed, the others are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

from gpushared.cli.faults import report
from gpushared.domain.errors import GpushareError


def each_lease(names: Iterable[str], work: Callable[[str], str]) -> int:
    """Prints what ``work`` says of each lease; the exit code is that of the last one that failed, else 0."""
    code = 0
    for name in names:
        try:
            click.echo(work(name))
        except GpushareError as error:
            code = report(error)
    return code
