"""Declare the options that several commands have, and the commands that do one thing to many leases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


class WholeNumber(click.IntRange):
    """A range of whole numbers, which click's messages call so in place of an "integer range"."""

    name = "whole number"


def output_option(usual: str, other: str) -> Callable[[_Command], _Command]:
    """Declare ``-o``, whose value is ``usual`` if it is not given."""
    return click.option(
        "-o", "--output", type=click.Choice([usual, other]), default=usual, help="Form.", show_default=True
    )


grace_option = click.option(
    "-t",
    "--grace",
    "grace_seconds",
    type=WholeNumber(0, 3600),
    metavar="SECONDS",
    help="How long a container gets to end by itself.  [default: 10]",
)
