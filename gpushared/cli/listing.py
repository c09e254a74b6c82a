"""Share the options of all listings, and the ways to write one.

A listing is data (columns and a function that asks the daemon), so that all listings look and behave alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpushared.cli import table, text
from gpushared.cli.errors import UsageError, whole_number
from gpushared.cli.table import Column, Row
from gpushared.client import Client
from gpushared.light import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any

    from gpushared.api.message import Message

SIMULATED = "SIMULATED GPUs: no real hardware is leased here"
_SHOWN = 40


class Options(NamedTuple):
    """Hold the options of a listing; ``ended`` is ``--all`` if the listing has it.

    ``own_values`` are the listing's own options by name, a switch that is on with "true".
    """

    output: str = "table"
    headers: bool = True
    ended: bool = False
    explain: bool = False
    own_values: frozenset[tuple[str, str]] = frozenset()

    def value(self, name: str) -> str:
        """Return the value of one of the listing's own options, "" if it was not given."""
        return dict(self.own_values).get(name, "")

    def limit(self, usual: int, most: int) -> int:
        """Return the value of ``--limit``. Raises UsageError."""
        text = self.value("limit")
        return whole_number("--limit", text, 1, most) if text else usual


class OwnOption(NamedTuple):
    """Describe an option of one listing only; without ``metavar`` it is a switch."""

    names: tuple[str, ...]
    help: str
    metavar: str | None = None

    @property
    def key(self) -> str:
        return self.names[-1].removeprefix("--")


class Screen(NamedTuple):
    """Hold the content of a listing: cells for people, items for programs.

    ``notes`` are lines about troubles under the table, ``last`` is the line under those; ``text_lines`` are
    lines in the table's place; ``extra`` are fields of the JSON envelope beside the items.
    """

    rows: Sequence[Row]
    items: Sequence[dict[str, Any]]
    ids: Sequence[str]
    simulated: bool = False
    notes: Sequence[str] = ()
    last: str = ""
    extra: dict[str, Any] | None = None
    text_lines: Sequence[str] | None = None
    exit_code: int = 0


class Listing(NamedTuple):
    """Describe a listing command; ``drops``: the columns that a narrow terminal does not show, the first first.

    ``item`` gives the titles of a CSV that has no items.
    """

    name: str
    details: str
    schema: str
    columns: Sequence[Column]
    fetch: Callable[[Client, Options], Screen]
    has_ended: bool = False
    explains: bool = False
    own_options: Sequence[OwnOption] = ()
    drops: Sequence[str] = ()
    item: type[Message] | None = None


def read_plain(
    argv: Sequence[str], *, has_ended: bool, own_options: Sequence[OwnOption] = ()
) -> Options | None:
    """Read the options from plain arguments; None leaves the arguments to click.

    Click's import takes as long as a whole plain listing. Help, mistakes and rare spellings may take that
    time; `tests/cli/test_listing_options.py` holds both readers to the same result.
    """
    options, quiet = Options(), False
    rest = list(argv)
    by_name = {name: option for option in own_options for name in option.names}
    values: dict[str, str] = {}
    while rest:
        arg = rest.pop(0)
        if arg in {"-q", "--quiet"}:
            quiet = True
        elif arg == "--no-headers":
            options = options._replace(headers=False)
        elif arg in {"-a", "--all"} and has_ended:
            options = options._replace(ended=True)
        elif arg in {"-o", "--output"} and rest:
            options = options._replace(output=rest.pop(0))
        elif (option := by_name.get(arg)) is not None and (rest or option.metavar is None):
            values[option.key] = rest.pop(0) if option.metavar else "true"
        else:
            return None
    options = options._replace(own_values=frozenset(values.items()))
    return options._replace(output="ids") if quiet else options


def own_values_of(values: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return ``Options.own_values`` for values by name as click gives them: None, a text, or a bool."""
    return frozenset((name, "true" if value is True else value) for name, value in values.items() if value)


def client_for(client: Client, options: Options) -> Client:
    """Return the client that is asked: this node's, which asks the coordinator for the pool.

    Where no node's daemon is, administrators ask the coordinator on this machine for the pool.
    """
    if not options.value("pool"):
        return client
    from pathlib import Path

    from gpushared.client.pool_calls import pool_socket

    return client if Path(client.path).exists() else Client(f"unix://{pool_socket()}")


def show(listing: Listing, options: Options) -> int:
    """Ask the daemon and write the answer to stdout; return the exit code."""
    return write(listing, options, lambda: listing.fetch(Client(), options))


def write(listing: Listing, options: Options, fetch: Callable[[], Screen]) -> int:
    """Write the fetched content to stdout; return the exit code."""
    columns = _columns(listing, options.output, in_pool=bool(options.value("pool")))
    screen = fetch()
    if options.output == "ids":
        shown = "".join(f"{item_id}\n" for item_id in screen.ids)
    elif columns is None:
        shown = _for_programs(listing, screen, options)
    else:
        shown = _table(columns, screen, options, listing.drops)
    sys.stdout.write(shown)
    return screen.exit_code


def _columns(listing: Listing, output: str, *, in_pool: bool) -> Sequence[Column] | None:
    """Return the columns of a table, None for other outputs; they are checked before the request."""
    if output in {"json", "jsonl", "csv", "ids"}:
        return None
    if output in {"table", "wide"}:
        shown = [column for column in listing.columns if in_pool or not column.pool]
        return [column for column in shown if output == "wide" or not column.wide]
    kind, _, names = output.partition("=")
    if kind != "columns":
        raise UsageError(
            f"{output[:_SHOWN]!r} is not an output",
            hint="-o table, wide, json, jsonl, csv, ids or columns=NAME,...",
        )
    by_key = {column.key: column for column in listing.columns}
    keys = [key.strip().lower() for key in names.split(",")]
    for key in keys:
        if key not in by_key:
            raise UsageError(
                f"{listing.name} has no column {key[:_SHOWN]!r}", hint="columns: " + ", ".join(by_key)
            )
    return [by_key[key] for key in keys]


def _for_programs(listing: Listing, screen: Screen, options: Options) -> str:
    if options.output == "csv":
        from gpushared.cli.csv_text import csv_text

        empty = {} if listing.item is None else listing.item({}).to_json()
        return csv_text(screen.items, empty, headers=options.headers)
    if options.output == "json":
        return envelope(listing.schema, screen.items, simulated=screen.simulated, **(screen.extra or {}))
    import json

    return "".join(json.dumps(item) + "\n" for item in screen.items)


def envelope(schema: str, items: Sequence[Mapping[str, Any]], **extra: object) -> str:
    """Return items as all commands write them in JSON; ``extra`` are fields beside the items."""
    import json

    return json.dumps({"schema": schema, **extra, "items": items}, indent=2) + "\n"


def write_items(
    output: str, schema: str, items: Sequence[Mapping[str, Any]], lines: Iterable[str], **extra: object
) -> None:
    """Write items as ``json``, or else the lines that tell them to people."""
    if output == "json":
        sys.stdout.write(envelope(schema, items, **extra))
        return
    above = [SIMULATED] if extra.get("simulated") else []
    sys.stdout.write("".join(f"{text.printable(line)}\n" for line in (*above, *lines)))


def _table(columns: Sequence[Column], screen: Screen, options: Options, drops: Sequence[str]) -> str:
    colour = table.wants_colour(sys.stdout)
    if screen.text_lines is None:
        fits = options.output == "table" and sys.stdout.isatty()
        width = table.terminal_width(sys.stdout) if fits else None
        table_lines = table.lines(
            columns, screen.rows, headers=options.headers, colour=colour, width=width, drops=drops
        )
    else:
        table_lines = [text.printable(line) for line in screen.text_lines]
    if options.headers:
        above = [table.paint(SIMULATED, "33" if colour else None)] if screen.simulated else []
        notes = [table.paint(note, "31" if colour else None) for note in screen.notes]
        table_lines = [*above, *table_lines, *notes, *filter(None, [screen.last])]
    return "".join(f"{line}\n" for line in table_lines)
