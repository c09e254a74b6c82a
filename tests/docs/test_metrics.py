"""The reference of metrics is made of their definitions, and their names and units are Prometheus's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpushared.net.exposition import UNITS, Kind, Metric
from gpushared.node.services.node_metric_names import NODE_METRICS
from gpushared.pool.coordinator.pool_metrics import POOL_METRICS
from monitoring.dashboards import dashboard

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


MONITORING = PAGE.parents[2] / "monitoring"
RULES, RULE_TESTS = MONITORING / "alerts.yml", MONITORING / "alerts_test.yml"
DASHBOARDS = sorted((MONITORING / "grafana").glob("*.json"))
GUIDE = PAGE.parents[1] / "how-to/monitor.md"


def named_in(text: str) -> set[str]:
    """Return the metrics that a text names; a series of a histogram names the histogram."""
    found = set(re.findall(r"\bgpushare_[a-z_]+\b", text))
    histograms = {one.name for one in ALL if one.kind is Kind.HISTOGRAM}
    stems = {one: re.sub(r"_(bucket|sum|count)$", "", one) for one in found}
    return {stems[one] if stems[one] in histograms else one for one in found}


@pytest.mark.parametrize("page", [RULES, RULE_TESTS, GUIDE, PAGE, *DASHBOARDS], ids=lambda one: one.name)
def test_each_metric_that_a_page_names_exists(page: Path) -> None:
    assert named_in(page.read_text()) <= {one.name for one in ALL}


def test_each_metric_is_on_a_dashboard_or_in_an_alert() -> None:
    used = {name for page in (RULES, *DASHBOARDS) for name in named_in(page.read_text())}
    assert {one.name for one in ALL} - used == set()


@pytest.mark.parametrize("page", DASHBOARDS, ids=lambda one: one.name)
def test_a_dashboard_is_the_one_of_its_script(page: Path) -> None:
    """After a change, run ``python monitoring/dashboards.py``."""
    assert json.loads(page.read_text()) == dashboard(page.stem)


def test_each_alert_has_a_test_and_is_in_the_guide() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    assert alerts == set(re.findall(r"alertname: (\w+)", RULE_TESTS.read_text()))
    assert alerts == set(re.findall(r"`(Gpushare\w+)`", GUIDE.read_text()))


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index("## Of a node")] + body())
