"""Run one command over several leases: print each success, report each failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import click

from gpushared.cli.faults import report
from gpushared.domain.model.errors import GpushareError

_Begun = TypeVar("_Begun")


def each_lease(names: Iterable[_Begun], work: Callable[[_Begun], str]) -> int:
    """Print the result of ``work`` on each lease; return the exit code of the last failure, else 0."""
    code = 0
    for name in names:
        try:
            click.echo(work(name))
        except GpushareError as error:
            code = report(error)
    return code


def each_begun(names: Iterable[str], begin: Callable[[str], _Begun], finish: Callable[[_Begun], str]) -> int:
    """Do slow work on each lease as ``each_lease`` does: begin all of it before the first wait."""
    code = 0
    begun: list[_Begun] = []
    for name in names:
        try:
            begun.append(begin(name))
        except GpushareError as error:
            code = report(error)
    return each_lease(begun, finish) or code
