"""Write the history's rows page by page, as CSV, JSON lines or Parquet."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from gpushared.cli.csv_text import lines_of
from gpushared.cli.listing import SIMULATED
from gpushared.client import Client
from gpushared.domain.model.errors import ConfigError, NotFound

TEXTS = frozenset(
    {
        *("node", "lease", "owner", "project", "class", "image", "container_name", "job", "pool"),
        *("isolation", "asked_models", "outcome", "outcome_text", "gpus", "models", "kind", "gpu"),
    }
)
FLOATS = ("at", "_hours", "_ratio", "_seconds", "_wh")
"""Columns that end so are fractions; all others are whole numbers."""


class Page(NamedTuple):
    """Hold a page of rows, and the titles of their columns."""

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]


def pages(client: Client, window: Mapping[str, object], kind: str) -> Iterator[Page]:
    """Yield all pages of the window."""
    token = ""
    while True:
        page = client.export(window, kind=kind, page_token=token)
        if page.simulated and not token:
            print(SIMULATED, file=sys.stderr)
        yield Page(page.columns, [json.loads(row) for row in page.rows])
        token = page.next_page_token
        if not token:
            return


def write_text(pages: Iterator[Page], *, as_csv: bool) -> int:
    titles: Sequence[str] = ()
    for page in pages:
        if as_csv:
            sys.stdout.write(lines_of(page.rows, page.columns, headers=not titles))
            titles = titles or page.columns
        else:
            sys.stdout.write("".join(f"{json.dumps(row)}\n" for row in page.rows))
    return 0


def write_parquet(pages: Iterator[Page], path: str) -> int:
    """Write a file, a group of rows for each page. Raises ConfigError if pyarrow is not installed."""
    try:
        # By name, because the package is optional and has no types.
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            "Parquet needs the package pyarrow, which is not installed", hint="pip install gpushared[parquet]"
        ) from error
    writer: Any = None
    try:
        for page in pages:
            if not page.rows:
                continue
            if writer is None:
                schema = arrow.schema([(name, _type(arrow, name)) for name in page.columns])
                writer = parquet.ParquetWriter(path, schema)
            writer.write_table(arrow.Table.from_pylist(list(page.rows), schema=schema))
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise NotFound("the history has nothing of this time", hint="choose an earlier --since")
    return 0


def _type(arrow: Any, name: str) -> Any:
    if name in TEXTS:
        return arrow.string()
    return arrow.float64() if name.endswith(FLOATS) else arrow.int64()
