"""Tables on a terminal: long cells are cut, then columns go in a stated order, and a row is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushared.api.v1.messages import Job, PoolNode
from gpushared.cli import gpus, jobs, nodes, ps, queue, table
from gpushared.cli.listing import Listing
from gpushared.cli.table import Column, Row
from gpushared.client import Gpu, Lease, Waiting

COLUMNS = (Column("job"), Column("age", right=True), Column("reason", least=16))
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


GIB = 1 << 30
GRANT = {"gpu_label": "0:1", "gpu_name": "NVIDIA H100", "memory_bytes": 20 * GIB, "compute_permille": 250}
WAITING: dict[str, object] = {"position": 12, "reason": "resources", "text": SENTENCE, "start_to": 9000.0}
LEASE = {
    "id": "l-7f3k",
    "state": "requeued",
    "owner": "ada.lovelace@physics",
    "asks": "2x0.25..0.5",
    "node": "gpu-node-01.cluster.example.org",
    "class": "train",
    "grants": [GRANT, GRANT],
    "memory_used_bytes": 33 * GIB + 1,
    "memory_wall": "mps-client",
    "container_name": "transformer-large-nightly-run-20261122",
    "image": "registry.cluster.example.org:5000/vision/team/transformer:2026.11",
    "created_at": 1.0,
    "expires_at": 90_000.0,
    "waiting": WAITING,
}
JOB = {
    "id": "wqt6nxa79q_10000",
    "state": "failed",
    "exit_code": 137,
    "name": "transformer-large-nightly-run-20261122-17",
    "owner": "ada.lovelace@physics",
    "asks": "4 nodes x 2x0.25",
    "reason": SENTENCE,
    "submitted_at": 1.0,
    "parts": [{"node": "gpu-node-01.cluster"}, {"node": "gpu-node-02.cluster"}],
}
GPU = {
    "label": "0:1",
    "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "mode": "unhealthy",
    "utilization_ratio": 1.0,
    "memory_used_bytes": 33 * GIB + 1,
    "memory_total_bytes": 80 * GIB - 1,
    "temperature_celsius": 101,
    "power_watts": 699.6,
    "leases": 12,
    "compute_free_permille": 125,
    "memory_free_bytes": 30 * GIB + 1,
}
POOL_GPU = {
    "name": "NVIDIA H100 80GB HBM3",
    "index": 7,
    "memory_bytes": 80 * GIB - 1,
    "free_memory_bytes": 33 * GIB + 1,
    "free_compute_permille": 125,
    "leases": 12,
}
NODE = {
    "name": "gpu-node-01.cluster.example.org",
    "presence": "never-seen",
    "gpus": [POOL_GPU, {**POOL_GPU, "name": "NVIDIA GeForce RTX 4090"}],
    "running": 120,
    "waiting": 1200,
    "heard_at": 1.0,
}
CASES: dict[str, tuple[Listing, Row, tuple[str, ...]]] = {
    "ps": (ps.LISTING, ps.lease_row(Lease(LEASE), 5000.0), ("lease", "state", "name")),
    "ps --pool": (ps.LISTING, ps.lease_row(Lease(LEASE), 5000.0), ("lease", "node", "state", "name")),
    "queue --pool": (
        queue.LISTING,
        queue.lease_row(Lease(LEASE), Waiting(WAITING), 5000.0),
        ("pos", "lease", "node", "name", "reason"),
    ),
    "queue": (
        queue.LISTING,
        queue.lease_row(Lease(LEASE), Waiting(WAITING), 5000.0),
        ("pos", "lease", "name", "eta", "reason"),
    ),
    "gpus": (gpus.LISTING, gpus.gpu_row(Gpu(GPU), "gpu-node-01.cluster.example.org", 9.0), ("gpu", "free")),
    "gpus --pool": (
        gpus.LISTING,
        gpus.gpu_row(Gpu({**GPU, "mode": "shared"}), "gpu-node-01.cluster.example.org", 9.0),
        ("node", "gpu", "memory", "free"),
    ),
    "jobs": (jobs.LISTING, jobs.job_row(Job(JOB), 90_000.0), ("job", "name", "state", "reason")),
    "nodes": (nodes.LISTING, nodes.node_row(PoolNode(NODE), 90_000.0), ("node", "state", "free")),
}
"""Long rows of each listing, and the columns that no terminal of 80 columns may lose."""


def columns_of(listing: Listing, name: str) -> list[Column]:
    in_pool = "--pool" in name
    return [column for column in listing.columns if not column.wide and (in_pool or not column.pool)]


def fitted(name: str, width: int, row: Row | None = None) -> list[str]:
    listing, long_row, _ = CASES[name]
    row = row or long_row
    columns = columns_of(listing, name)
    return table.lines(columns, [row], headers=True, colour=False, width=width, drops=listing.drops)


@pytest.mark.parametrize("name", CASES)
def test_long_rows_fit_a_terminal_of_eighty_columns(name: str) -> None:
    kept = CASES[name][2]
    lines = fitted(name, 80)
    assert len(lines) == 2, "a row is a line"
    assert max(map(len, lines)) <= 80, lines
    assert set(kept) <= {title.lower() for title in lines[0].split()}


@pytest.mark.parametrize("name", CASES)
def test_columns_go_in_the_order_that_is_written_down(name: str) -> None:
    listing = CASES[name][0]
    titles = [column.title for column in columns_of(listing, name)]
    for width in range(200, 20, -1):
        left = fitted(name, width)[0].split()
        gone = [key for key in listing.drops if key.upper() not in left]
        assert gone == list(listing.drops[: len(gone)]), f"at {width} columns"
        assert [title for title in titles if title.lower() not in gone] == left


def test_the_order_in_which_columns_go_is_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/commands.md").read_text()
    for listing in {case[0].name: case[0] for case in CASES.values()}.values():
        order = ", ".join(listing.drops).upper()
        assert f"| `{listing.name}` | {order} |" in page


def test_a_short_table_keeps_all_columns_at_eighty() -> None:
    short = {**LEASE, "owner": "ada", "state": "active", "image": "pytorch", "container_name": "t1"}
    short |= {"grants": [], "memory_wall": ""}
    left = fitted("ps", 80, ps.lease_row(Lease(short), 5000.0))[0].split()
    assert left == [column.title for column in columns_of(ps.LISTING, "ps")]


def test_what_is_asked_for_by_name_is_not_dropped() -> None:
    """Only ``-o table`` is made to fit: ``wide`` and ``columns=`` show all that they name."""
    listing, row, _ = CASES["ps"]
    lines = table.lines(listing.columns, [row], headers=True, colour=False)
    assert len(lines[0].split()) == len(listing.columns)
