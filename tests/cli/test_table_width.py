"""Tables on a terminal: a long sentence is cut, columns are not."""

from __future__ import annotations

import pytest

from gpushared.cli import table
from gpushared.cli.jobs import LISTING, job_row
from gpushared.cli.table import Column
from gpushared.client.job_messages import Job

COLUMNS = (Column("job"), Column("age", right=True), Column("reason", shrinks=True))
SENTENCE = "the nodes that could take it will not have it, and each says why at some length"


def shown(width: int | None, *rows: dict[str, str]) -> list[str]:
    return table.lines(COLUMNS, rows, headers=True, colour=False, width=width)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_lines_are_no_longer_than_the_terminal_is_wide(width: int) -> None:
    rows = [{"job": "k3m9x0p2qa", "age": "12s", "reason": SENTENCE}, {"job": "k3", "reason": "short"}]
    lines = shown(width, *rows)
    assert max(map(len, lines)) == width
    assert lines[1].endswith("…")
    assert lines[2].endswith("short")


def test_where_nobody_says_how_wide_it_is_all_is_written() -> None:
    assert shown(None, {"job": "k3", "reason": SENTENCE})[1].endswith(SENTENCE)


def test_a_narrow_terminal_still_shows_the_beginning_of_the_sentence() -> None:
    (_, line) = shown(10, {"job": "k3m9x0p2qa", "age": "12s", "reason": SENTENCE})
    assert SENTENCE[:15] in line


def test_jobs_fit_a_terminal_of_eighty_columns() -> None:
    said = {
        "id": "wqt6nxa79q_0",
        "state": "cancelling",
        "owner": "ada@ws3",
        "asks": "0.5",
        "reason": SENTENCE,
    }
    row = job_row(Job(said | {"submitted_at": 1.0, "name": "trainer"}), 100.0)
    columns = [column for column in LISTING.columns if not column.wide]
    assert max(map(len, table.lines(columns, [row], headers=True, colour=False, width=80))) <= 80
