"""Pages of metrics are what Prometheus's own parsers read, whatever the labels hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from gpushared.daemon.measures import Distribution, Totals
from gpushared.net.exposition import Family, Format, Kind, Metric, format_of, write

READERS: dict[Format, Callable[[str], Iterable[Any]]] = {
    Format.TEXT: read_text,
    Format.OPEN_METRICS: read_open_metrics,
}
BYTES = Metric("x_memory_bytes", Kind.GAUGE, 'Memory, "held" \\ in\nall', ("lease", "gpu"))
JOULES = Metric("x_energy_joules_total", Kind.COUNTER, "Energy.", ("gpu",))
INFO = Metric("x_lease_info", Kind.INFO, "A lease.", ("lease", "user"))
WAIT = Metric("x_wait_seconds", Kind.HISTOGRAM, "Waits.", ("class",))


def read(page: bytes, form: Format) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in READERS[form](page.decode()):
        for sample in family.samples:
            series = found.setdefault(sample.name, {})
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in series, "a series stands twice"
            series[labels] = sample.value
    return found


@pytest.mark.parametrize("form", Format)
@given(labels=st.tuples(st.text(), st.text()), value=st.floats(allow_nan=False) | st.integers(0, 2**63))
def test_any_label_and_any_value_comes_back(form: Format, labels: tuple[str, str], value: float) -> None:
    page = write([Family(BYTES, [(labels, value)])], form)
    ((found, number),) = read(page, form)["x_memory_bytes"].items()
    assert dict(found) == {"lease": labels[0], "gpu": labels[1]}
    assert float(number) == float(value), "readers keep whole numbers beyond 2^53 whole"


@pytest.mark.parametrize("form", Format)
def test_a_text_that_is_no_utf_8_becomes_one(form: Format) -> None:
    page = write([Family(JOULES, [(("gpu\udce9",), 1.0)])], form)
    assert read(page, form)["x_energy_joules_total"] == {(("gpu", "gpu?"),): 1.0}


@pytest.mark.parametrize("form", Format)
def test_each_kind_of_metric_is_read_back(form: Format) -> None:
    waits = Distribution((1.0, 10.0))
    for seconds in (0.5, 1.0, 5.0, 100.0):
        waits.add(seconds)
    families = [
        Family(JOULES, [(("0",), 7.5)]),
        Family(INFO, [(("l-1", "ada"), 1)]),
        Family(WAIT, [(("train",), waits)]),
    ]
    page = write(families, form)
    kinds = {family.name: family.type for family in READERS[form](page.decode())}
    assert kinds["x_energy_joules"] == "counter"
    found = read(page, form)
    assert found["x_lease_info"] == {(("lease", "l-1"), ("user", "ada")): 1.0}
    buckets = {dict(labels)["le"]: count for labels, count in found["x_wait_seconds_bucket"].items()}
    assert buckets == {"1.0": 2, "10.0": 3, "+Inf": 4}
    assert list(found["x_wait_seconds_sum"].values()) == [106.5]
    assert list(found["x_wait_seconds_count"].values()) == [4]


@pytest.mark.parametrize("form", Format)
def test_an_unknown_figure_is_absent_and_a_family_without_samples_too(form: Format) -> None:
    family = Family(BYTES)
    family.add(("l-1", "0"), None)
    assert b"x_memory" not in write([family], form)
    family.add(("l-2", "0"), 0)
    assert list(read(write([family], form), form)["x_memory_bytes"].values()) == [0.0]


def test_a_hidden_label_is_left_out() -> None:
    page = write([Family(INFO, [(("l-1", "ada"), 1)])], Format.TEXT, frozenset({"user"}))
    assert page.endswith(b'\nx_lease_info{lease="l-1"} 1\n')


def test_the_open_metrics_page_names_units_and_its_end() -> None:
    page = write([Family(JOULES, [(("0",), math.inf)])], Format.OPEN_METRICS).decode()
    assert "# UNIT x_energy_joules joules\n" in page
    assert page.endswith('x_energy_joules_total{gpu="0"} +Inf\n# EOF\n')


PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        ("text/plain", Format.TEXT),
        ("application/openmetrics-text", Format.OPEN_METRICS),
        (PROMETHEUS_2_42, Format.OPEN_METRICS),
        ("application/openmetrics-text; version=0.0.1", Format.TEXT),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.9", Format.TEXT),
        ("application/openmetrics-text;q=0", Format.TEXT),
        ("application/openmetrics-text;q=much", Format.TEXT),
        (";;,=;q=,", Format.TEXT),
    ],
)
def test_the_client_chooses_the_format(accept: str, expected: Format) -> None:
    assert format_of(accept) is expected


def test_names_beyond_the_bound_share_a_sum_and_none_ever_falls() -> None:
    totals = Totals(2)
    for name in ("ada", "bo", "cy", "dee", "ada"):
        totals.add(name, 1.0)
    assert dict(totals.items()) == {"ada": 2.0, "bo": 1.0, "other": 2.0}
