"""Declare the options that several commands have, and the commands that do one thing to many leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gpushared.cli.complete import Completer
    from gpushared.client import Client

_Command = TypeVar("_Command", bound=Callable[..., Any])


class WholeNumber(click.IntRange):
    """A range of whole numbers, which click's messages call so in place of an "integer range"."""

    name = "whole number"


def output_option(usual: str, other: str) -> Callable[[_Command], _Command]:
    """Declare ``-o``, whose value is ``usual`` if it is not given."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([usual, other]),
        default=usual,
        help="The form of the output.",
        show_default=True,
    )


grace_option = click.option(
    "-t",
    "--grace",
    "grace_seconds",
    type=WholeNumber(0, 3600),
    metavar="SECONDS",
    help="How long a container gets to end by itself.  [default: 10]",
)


def for_many(
    completer: Completer, each: Callable[[Iterable[str], Callable[[str], str]], int]
) -> Callable[[Callable[[Client, str], str]], click.Command]:
    """Make a command for many leases of a function for one; ``each`` does its work and prints its results."""

    def command_of(work: Callable[[Client, str], str]) -> click.Command:
        @click.command(work.__name__, help=work.__doc__)
        @click.argument("lease", shell_complete=completer, nargs=-1, required=True)
        def command(lease: tuple[str, ...]) -> int:
            from gpushared.client import Client

            client = Client()
            return each(lease, lambda name: work(client, name))

        return command

    return command_of
