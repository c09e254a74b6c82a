"""Turn ``gpushare top`` into a command of click's, with its help; plain arguments are read without click."""

from __future__ import annotations

import click

from gpushared.cli.listing import Options, own_values_of
from gpushared.cli.listing_command import click_option
from gpushared.cli.top.start import OWN, start


def _top(**values: str | bool | None) -> int:
    return start(Options(own_values=own_values_of(values)))


top = click.Command(
    "top",
    params=[*map(click_option, OWN)],
    callback=_top,
    help="""Show GPUs, leases and the queue, and keep showing them.

The keys: ? lists them all, q leaves. A line at the bottom names the command that each key stands for, and what
changes something is asked for once more. Nothing is read from the driver: the figures are the daemon's, and the
corner tells how old they are. A daemon that is away is asked again until it is back.

\b
Examples:
  gpushare top
  gpushare top --mine
  gpushare top --pool --interval 5
  gpushare top --once | less
  gpushare top --once --json
""",
)
