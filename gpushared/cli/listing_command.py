"""Turn a listing into a command of click's, with its options, help and completion."""

from __future__ import annotations

import click

from gpushared.cli import complete
from gpushared.cli.listing import Listing, Options, OwnOption, own_values_of, show


def listing_command(listing: Listing, summary: str) -> click.Command:
    """Return the command; ``summary`` is the first sentence of its help."""

    def callback(
        *,
        output: str = "table",
        quiet: bool = False,
        no_headers: bool = False,
        ended: bool = False,
        explain: bool = False,
        **own: str | bool | None,
    ) -> int:
        own_values = own_values_of(own)
        output = "ids" if quiet else output
        options = Options(output, headers=not no_headers, ended=ended, explain=explain, own_values=own_values)
        return show(listing, options)

    params: list[click.Parameter] = [
        click.Option(
            ["-o", "--output"],
            default="table",
            metavar="FORMAT",
            shell_complete=complete.listing_outputs,
            help="table, wide, json, jsonl, csv, ids or columns=NAME,...  [default: table]",
        ),
        click.Option(["-q", "--quiet"], is_flag=True, help="Print only ids, as -o ids does."),
        click.Option(
            ["--no-headers"], is_flag=True, help="Print tables without titles and without lines around them."
        ),
    ]
    if listing.has_ended:
        params.insert(
            0, click.Option(["-a", "--all", "ended"], is_flag=True, help="Also show leases that are over.")
        )
    if listing.explains:
        params.insert(0, click.Option(["--explain"], is_flag=True, help="Explain each wait in full."))
    params = [*map(click_option, listing.own_options), *params]
    columns = "\b\nColumns: " + ", ".join(c.key for c in listing.columns if not c.wide)
    wide = ", ".join(c.key for c in listing.columns if c.wide)
    return click.Command(
        listing.name,
        params=params,
        callback=callback,
        help=f"{summary}\n\n{listing.details}\n\n{columns}" + (f"\nand wide: {wide}" if wide else ""),
        short_help=summary,
    )


def click_option(option: OwnOption) -> click.Option:
    is_flag = option.metavar is None
    names = [*option.names, option.key]
    return click.Option(names, metavar=option.metavar, is_flag=is_flag, help=option.help)
