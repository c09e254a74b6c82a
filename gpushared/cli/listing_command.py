"""Turn a listing into a command of click's, with its options, help and completion."""

from __future__ import annotations

from typing import Any

import click

from gpushared.cli import complete
from gpushared.cli.listing import Listing, Options, OwnOption, show


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
        chosen = "ids" if quiet else output
        own_values = frozenset(
            (name, "true" if value is True else value) for name, value in own.items() if value
        )
        options = Options(chosen, headers=not no_headers, ended=ended, explain=explain, own_values=own_values)
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
    own = [click.Option([*one.names, one.key], **kind_of(one), help=one.help) for one in listing.own_options]
    params = [*own, *params]
    columns = "\b\nColumns: " + ", ".join(c.key for c in listing.columns if not c.wide)
    wide = ", ".join(c.key for c in listing.columns if c.wide)
    return click.Command(
        listing.name,
        params=params,
        callback=callback,
        help=f"{summary}\n\n{listing.details}\n\n{columns}" + (f"\nand wide: {wide}" if wide else ""),
        short_help=summary,
    )


def kind_of(one: OwnOption) -> dict[str, Any]:
    """Return what click calls an option with a value, or a switch."""
    return {"is_flag": True} if one.metavar is None else {"metavar": one.metavar}
