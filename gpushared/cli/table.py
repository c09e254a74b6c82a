"""Write tables for people: no borders, numbers to the right, colours only if they are wanted."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from gpushared.cli.text import MISSING, printable
from gpushared.light import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import TextIO

Row = Mapping[str, str]
_GAP = "  "
_DEFAULT_WIDTH = 80
_BOLD = "1"
_MARKS = {"Mn", "Me"}
_COLOURS = {
    "active": "32",
    "starting": "36",
    "reserved": "36",
    "queued": "33",
    "paused": "33",
    "suspended": "33",
    "draining": "2",
    "unmanaged": "31",
    "ok": "32",
    "warning": "33",
    "failed": "31",
    "skipped": "2",
    "drained": "33",
    "trouble": "31",
    "unhealthy": "31",
}


class Column(NamedTuple):
    """Describe a column: its key is its title in small letters; ``wide`` ones are left out of ``-o table``.

    ``least``: where the table is wider than its terminal, cells are cut to no fewer places; 0 = never cut.
    """

    key: str
    right: bool = False
    wide: bool = False
    coloured: bool = False
    least: int = 0
    pool: bool = False
    """The column is for answers of a pool, and left out of others."""

    @property
    def title(self) -> str:
        return self.key.upper()


class Segment(NamedTuple):
    """Hold a piece of a line, and how it looks: the parameters of SGR of ECMA-48, "" for plain text."""

    text: str
    look: str = ""


def wants_colour(stream: TextIO) -> bool:
    """Follow https://no-color.org and https://force-color.org, if set and not empty; else colour terminals."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def terminal_width(stream: TextIO) -> int:
    """Return the width as ``shutil.get_terminal_size`` does, whose module's import takes too long."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _DEFAULT_WIDTH
    except OSError:
        return _DEFAULT_WIDTH


def paint(text: str, look: str | None) -> str:
    return f"\x1b[{look}m{text}\x1b[0m" if look else text


def lines(
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    headers: bool,
    colour: bool,
    width: int | None = None,
    drops: Sequence[str] = (),
) -> list[str]:
    """Return the lines of ``segments`` as text, without spaces at their ends."""
    table_lines = segments(columns, rows, headers=headers, width=width, drops=drops)
    return [
        "".join(paint(segment.text, segment.look if colour else None) for segment in line).rstrip()
        for line in table_lines
    ]


def segments(
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    headers: bool,
    width: int | None = None,
    drops: Sequence[str] = (),
    shown: slice = slice(None),
) -> list[list[Segment]]:
    """Return the table's lines, the titles first if there are ``headers``.

    ``width`` is that of the terminal: long cells are cut to fit it, and where cutting is not enough columns
    are dropped, in the order of ``drops``. Only the rows in the slice ``shown`` are written, with columns that
    are wide enough for all rows.
    """
    cells = {
        column.key: [printable(row.get(column.key, "")) or MISSING for row in rows] for column in columns
    }
    widths = {key: max(map(text_width, column_cells), default=0) for key, column_cells in cells.items()}
    if width is not None:
        needed = {column.key: max(len(column.title), widths[column.key]) for column in columns}
        columns = _fitting(columns, needed, width, drops)
        for key, most in _cut(columns, needed, width).items():
            if most < widths[key]:
                cells[key] = [shortened(cell, most) for cell in cells[key]]
                widths[key] = max(map(text_width, cells[key]))
    if headers:
        widths = {column.key: max(len(column.title), widths[column.key]) for column in columns}
    titles = [_line(columns, [column.title for column in columns], widths, title=True)] if headers else []
    shown_cells = (cells[column.key][shown] for column in columns)
    return titles + [_line(columns, line, widths, title=False) for line in zip(*shown_cells, strict=True)]


def _fitting(
    columns: Sequence[Column], needed: Mapping[str, int], width: int, drops: Sequence[str]
) -> Sequence[Column]:
    """Return the columns with which the table fits when its cells are cut as far as they may be."""
    least = {column.key: _least(column, needed[column.key]) for column in columns}
    for key in drops:
        if _table_width(least.values()) <= width:
            break
        least.pop(key, None)
    return [column for column in columns if column.key in least]


def _least(column: Column, needed: int) -> int:
    return min(needed, max(column.least, len(column.title))) if column.least else needed


def _table_width(widths: Collection[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _cut(columns: Sequence[Column], needed: Mapping[str, int], width: int) -> dict[str, int]:
    """Return the widths to cut the columns to: the widest that may be cut lose most, until the lines fit."""
    widths = {column.key: needed[column.key] for column in columns}
    while _table_width(widths.values()) > width:
        cuttable = [column.key for column in columns if column.least and widths[column.key] > column.least]
        if not cuttable:
            break
        widths[max(cuttable, key=widths.__getitem__)] -= 1
    return widths


def shortened(cell: str, room: int) -> str:
    return cell if text_width(cell) <= room else f"{beginning(cell, room - 1)}…"


def beginning(text: str, room: int) -> str:
    """Return the beginning of a text, at most so wide."""
    while text_width(text) > room:
        text = text[:-1]
    return text


def _line(
    columns: Sequence[Column], cells: Sequence[str], widths: Mapping[str, int], *, title: bool
) -> list[Segment]:
    pieces: list[Segment] = []
    plain = ""
    for number, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        gap = _GAP if number else ""
        space = " " * (widths[column.key] - text_width(cell))
        before, after = (gap + space, "") if column.right else (gap, space)
        look = _BOLD if title else _colour(column, cell)
        if not look:
            plain += before + cell + after
            continue
        pieces += [Segment(plain + before), Segment(cell, look)]
        plain = after
    return [*pieces, Segment(plain)]


def _colour(column: Column, cell: str) -> str:
    return _COLOURS.get(cell, "") if column.coloured else ""


def text_width(text: str) -> int:
    """Count places on a terminal: wide East Asian characters take two, marks on other characters none."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(0 if category(c) in _MARKS else 2 if east_asian_width(c) in "WF" else 1 for c in text)
