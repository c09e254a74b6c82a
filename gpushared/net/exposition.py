"""Write metrics as Prometheus and OpenMetrics read them.

Sources: Prometheus's "Exposition formats" (text format 0.0.4) and the OpenMetrics 1.0 specification.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate

from gpushared.daemon.measures import Distribution

UNITS = ("seconds", "bytes", "ratio", "celsius", "joules", "watts")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_TO_ESCAPE = re.compile(r'[\\"\n]')
_NON_FINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
_MAX_ACCEPT = 1024

Labels = tuple[str, ...]
"""The values of a sample's labels, in the order of its metric."""
Value = int | float | Distribution


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


class Format(StrEnum):
    """Name a format by its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """Define a metric. ``name`` is that of its samples: a counter's ends in ``_total``, an info's in ``_info``.

    The name of a histogram's samples has a suffix besides.
    """

    name: str
    kind: Kind
    help: str
    labels: Labels = ()

    @property
    def family(self) -> str:
        """Return the name without the suffix of its kind, as OpenMetrics names the family."""
        match self.kind:
            case Kind.COUNTER:
                return self.name.removesuffix("_total")
            case Kind.INFO:
                return self.name.removesuffix("_info")
            case Kind.GAUGE | Kind.HISTOGRAM:
                return self.name

    @property
    def unit(self) -> str:
        """Return the unit at the end of the name, or an empty text."""
        ending = self.family.rpartition("_")[2]
        return ending if ending in UNITS else ""


@dataclass(slots=True)
class Family:
    """Hold a metric's samples; a figure that is not known has none."""

    metric: Metric
    samples: list[tuple[Labels, Value]] = field(default_factory=list)

    def add(self, labels: Labels, value: Value | None) -> None:
        """Add a sample, unless the value is None."""
        if value is not None:
            self.samples.append((labels, value))


def format_of(accept: str) -> Format:
    """Return the format that an Accept header prefers; the older one if it says nothing."""
    qualities: dict[str, float] = {}
    for part in accept[:_MAX_ACCEPT].lower().split(","):
        name, *parameters = map(str.strip, part.split(";"))
        values = dict(parameter.partition("=")[::2] for parameter in parameters)
        if name == "application/openmetrics-text" and values.get("version", "1.0.0") != "1.0.0":
            continue
        qualities[name] = max(qualities.get(name, 0.0), _quality(values.get("q", "1")))
    open_metrics = qualities.get("application/openmetrics-text", 0.0)
    is_preferred = open_metrics > 0 and open_metrics >= qualities.get("text/plain", 0.0)
    return Format.OPEN_METRICS if is_preferred else Format.TEXT


def _quality(text: str) -> float:
    return float(text) if re.fullmatch(r"[01](\.[0-9]{0,3})?", text) else 0.0


def write(families: Iterable[Family], form: Format, hidden: frozenset[str] = frozenset()) -> bytes:
    """Return the page, without the labels whose names are ``hidden``; families without samples are left out.

    The caller sees to it that no two samples differ in hidden labels only.
    """
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines.append(_head(family.metric, form))
            _add_samples(lines, family, hidden)
    if form is Format.OPEN_METRICS:
        lines.append("# EOF\n")
    return "".join(lines).encode()


@lru_cache(maxsize=1024)
def _head(metric: Metric, form: Format) -> str:
    if form is Format.TEXT:
        kind = Kind.GAUGE if metric.kind is Kind.INFO else metric.kind
        text = metric.help.translate(_HELP_ESCAPES)
        return f"# HELP {metric.name} {text}\n# TYPE {metric.name} {kind}\n"
    unit = f"# UNIT {metric.family} {metric.unit}\n" if metric.unit else ""
    text = metric.help.translate(_ESCAPES)
    return f"# TYPE {metric.family} {metric.kind}\n{unit}# HELP {metric.family} {text}\n"


def _add_samples(lines: list[str], family: Family, hidden: frozenset[str]) -> None:
    name, shown, form = _form_of(family.metric, hidden)
    samples = family.samples
    if shown is not None:
        samples = [(tuple(labels[index] for index in shown), value) for labels, value in samples]
    if family.metric.kind is Kind.HISTOGRAM:
        for labels, value in samples:
            assert isinstance(value, Distribution), "a histogram's values"
            _add_buckets(lines, name, form % tuple(map(_escaped, labels)), value)
        return
    begin = f"{name}{form} "
    lines += [f"{_filled(begin, labels)}{_number(value)}\n" for labels, value in samples]


@lru_cache(maxsize=4096)
def _filled(form: str, labels: Labels) -> str:
    """Return the form with labels in it; most series are the same at each scrape."""
    return form % tuple(map(_escaped, labels))


@lru_cache(maxsize=1024)
def _form_of(metric: Metric, hidden: frozenset[str]) -> tuple[str, tuple[int, ...] | None, str]:
    """Return a metric's name, the indexes of the labels that are shown (None: all), and the labels' form."""
    shown = tuple(index for index, name in enumerate(metric.labels) if name not in hidden)
    pairs = ",".join(f'{metric.labels[index]}="%s"' for index in shown)
    is_whole = len(shown) == len(metric.labels)
    return metric.name, None if is_whole else shown, f"{{{pairs}}}" if shown else ""


def _add_buckets(lines: list[str], name: str, labels: str, value: Distribution) -> None:
    counts = list(accumulate(value.counts))
    begin = f"{name}_bucket{labels[:-1]}," if labels else f"{name}_bucket{{"
    lines += [f"{begin}{end}{count}\n" for end, count in zip(_bucket_ends(value.bounds), counts, strict=True)]
    lines.append(f"{name}_sum{labels} {_number(value.total)}\n")
    lines.append(f"{name}_count{labels} {counts[-1]}\n")


@lru_cache(maxsize=64)
def _bucket_ends(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(f'le="{bound}"}} ' for bound in (*map(repr, bounds), "+Inf"))


def _number(value: Value) -> str:
    text = repr(value)
    return _NON_FINITE.get(text, text)


@lru_cache(maxsize=4096)
def _escaped(text: str) -> str:
    """Return a label's value, in which characters that cannot be UTF-8 are replaced."""
    if text.isascii() and not _TO_ESCAPE.search(text):
        return text
    return text.encode("utf-8", "replace").decode().translate(_ESCAPES)
