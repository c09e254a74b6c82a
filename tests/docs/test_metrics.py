"""The reference of metrics is made of their definitions, and their names and units are Prometheus's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpushared.net.exposition import UNITS, Kind, Metric
from gpushared.node.services.node_metric_names import NODE_METRICS
from gpushared.pool.coordinator.pool_metrics import POOL_METRICS

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
ALL = (*NODE_METRICS, *POOL_METRICS)
OTHER_UNITS = {
    *(
        "milliseconds",
        "ms",
        "minutes",
        "hours",
        "days",
        "percent",
        "kilobytes",
        "megabytes",
        "mib",
        "gib",
        "kb",
    ),
    *("milliwatts", "kilowatts", "millijoules", "fahrenheit", "kelvin", "permille", "mhz", "hertz", "bits"),
}
COUNTS = {"leases", "members", "gpus", "jobs", "length", "processes", "epoch", "up", "leader", "settled"}
"""Gauges without a unit end in the thing that they count, or in a state that is 1 or 0."""
STATES = {"drained", "trouble"}


def rows(metrics: Iterable[Metric]) -> str:
    lines = ["| metric | kind | labels | what |", "|---|---|---|---|"]
    for one in metrics:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.help} |")
    return "\n".join(lines)


def body() -> str:
    return f"## Of a node\n\n{rows(NODE_METRICS)}\n\n## Of a coordinator\n\n{rows(POOL_METRICS)}\n"


def test_the_reference_is_the_one_of_the_definitions() -> None:
    """After a change, run ``python -m tests.docs.test_metrics``."""
    text = PAGE.read_text()
    assert text[text.index("## Of a node") :] == body()


@pytest.mark.parametrize("metric", ALL, ids=lambda one: one.name)
def test_a_metric_has_a_name_as_prometheus_wants_it(metric: Metric) -> None:
    assert re.fullmatch(r"gpushare_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.name.endswith("_info") == (metric.kind is Kind.INFO)
    assert metric.help.endswith(".")
    words = metric.family.split("_")
    assert not OTHER_UNITS & set(words), "base units only"
    assert not set(UNITS) & set(words[:-1]), "the unit comes last"
    if metric.kind is Kind.HISTOGRAM:
        assert metric.unit
    if metric.kind is Kind.GAUGE:
        assert metric.unit or words[-1] in COUNTS | STATES


def test_no_metric_is_defined_twice() -> None:
    assert len({one.family for one in ALL}) == len(ALL)


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index("## Of a node")] + body())
