"""Tables for people: no borders, numbers to the right, colours only where they are wanted."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TextIO

from gpushared.cli.text import MISSING, printable

Row = Mapping[str, str]
_GAP = "  "
_SHRUNK = 16
_BOLD = "1"
_COLOURS = {
    "active": "32",
    "starting": "36",
    "reserved": "36",
    "queued": "33",
    "paused": "33",
    "draining": "2",
    "unmanaged": "31",
    "ok": "32",
    "warning": "33",
    "failed": "31",
    "skipped": "2",
}


class Column(NamedTuple):
    """A column: its key is its title in small letters; ``wide`` ones are left out of ``-o table``.

    One that ``shrinks`` is cut where the table is wider than its terminal.
    """

    key: str
    right: bool = False
    wide: bool = False
    coloured: bool = False
    shrinks: bool = False

    @property
    def title(self) -> str:
        return self.key.upper()


def wants_colour(stream: TextIO) -> bool:
    """https://no-color.org and https://force-color.org: set and not empty; else colour for terminals."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, code: str | None) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if code else text


def lines(
    columns: Sequence[Column], rows: Sequence[Row], *, headers: bool, colour: bool, width: int | None = None
) -> list[str]:
    """The table, a line each, without spaces at the ends of lines; ``width`` is that of the terminal."""
    cells = [[printable(row.get(column.key, "")) or MISSING for column in columns] for row in rows]
    if width is not None:
        _shrink(columns, cells, width)
    titles = [column.title for column in columns]
    shown = [titles, *cells] if headers else cells
    widths = [max(map(_width, place), default=0) for place in zip(*shown, strict=True)] or [0] * len(columns)
    return [
        _line(columns, line, widths, colour=colour, title=headers and number == 0)
        for number, line in enumerate(shown)
    ]


def _shrink(columns: Sequence[Column], cells: list[list[str]], width: int) -> None:
    """Cut the column that may be cut, where that makes lines fit; to no less than can be made sense of."""
    at = next((place for place, column in enumerate(columns) if column.shrinks), None)
    if at is None:
        return
    others = (
        max([len(column.title), *(_width(line[place]) for line in cells)])
        for place, column in enumerate(columns)
        if place != at
    )
    room = max(_SHRUNK, width - sum(others) - len(_GAP) * (len(columns) - 1))
    for line in cells:
        if _width(line[at]) > room:
            line[at] = line[at][: room - 1] + "…"


def _line(
    columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int], *, colour: bool, title: bool
) -> str:
    placed = []
    for column, cell, width in zip(columns, cells, widths, strict=True):
        code = (_BOLD if title else _colour(column, cell)) if colour else None
        space = " " * (width - _width(cell))
        placed.append(space + paint(cell, code) if column.right else paint(cell, code) + space)
    return _GAP.join(placed).rstrip()


def _colour(column: Column, cell: str) -> str | None:
    return _COLOURS.get(cell) if column.coloured else None


def _width(text: str) -> int:
    """Places on a terminal: wide East Asian characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
