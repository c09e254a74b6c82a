"""Write items as CSV that a spreadsheet may open: no text of a user begins a formula there."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a cell that begins so as a formula."""


def csv_text(
    items: Iterable[Mapping[str, object]], empty: Mapping[str, object], *, headers: bool = True
) -> str:
    """Return items as lines of CSV, a list as one cell, and fields within a field as ``account.held_gpu_ms``.

    ``empty`` has the fields of an item, for the titles where there is none.
    """
    rows = [_flat(item) for item in items]
    titles = list(dict.fromkeys(title for row in rows or [_flat(empty)] for title in row))
    return lines_of(rows, titles, headers=headers)


def lines_of(rows: Iterable[Mapping[str, object]], titles: Sequence[str], *, headers: bool) -> str:
    """Return rows of plain values as lines of CSV."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    if headers and titles:
        writer.writerow(titles)
    writer.writerows([_cell(row.get(title)) for title in titles] for row in rows)
    return output.getvalue()


def _flat(item: Mapping[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in item.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": inner_value for inner, inner_value in _flat(value).items()}
        else:
            flat[name] = value
    return flat


def _cell(value: object) -> object:
    if isinstance(value, list):
        value = " ".join(str(item.get("id", item) if isinstance(item, Mapping) else item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return value
