"""One command over several leases: those that work are printed, the others are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import click

from gpushared.cli.faults import report
from gpushared.domain.errors import GpushareError

_Begun = TypeVar("_Begun")


def each_lease(names: Iterable[_Begun], work: Callable[[_Begun], str]) -> int:
    """Prints what ``work`` says of each lease; the exit code is that of the last one that failed, else 0."""
    code = 0
    for name in names:
        try:
            click.echo(work(name))
        except GpushareError as error:
            code = report(error)
    return code


def each_begun(names: Iterable[str], begin: Callable[[str], _Begun], finish: Callable[[_Begun], str]) -> int:
    """As ``each_lease`` for what takes its time: all of it is begun before any of it is waited for."""
    code = 0
    begun: list[_Begun] = []
    for name in names:
        try:
            begun.append(begin(name))
        except GpushareError as error:
            code = report(error)
    return each_lease(begun, finish) or code
