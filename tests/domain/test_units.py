"""Sizes, shares and times: what is understood, what is refused, and that it is refused fast and briefly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.units import (
    MAX_DURATION_SECONDS,
    GpuSize,
    format_duration,
    format_memory,
    format_percent,
    format_share,
    parse_duration,
    parse_gpu,
    parse_memory,
    parse_percent,
    shown,
)

GIB = 1024 * MIB
PARSERS = (parse_memory, parse_gpu, parse_percent, parse_duration)

MEMORY = {
    "8g": 8 * GIB,
    "8G": 8 * GIB,
    "8gb": 8 * GIB,
    "8GiB": 8 * GIB,
    "8 GiB": 8 * GIB,
    " 8g ": 8 * GIB,
    "512m": 512 * MIB,
    "1.5g": 1536 * MIB,
    "1k": MIB,
    "1025k": 2 * MIB,
    "0.1m": MIB,
    "1t": 1024 * GIB,
}
GPU = {
    "0.25": GpuSize(1, 250),
    ".25": GpuSize(1, 250),
    "00.25": GpuSize(1, 250),
    "0.250": GpuSize(1, 250),
    "0.333": GpuSize(1, 333),
    "0.01": GpuSize(1, 10),
    "1": GpuSize(1, 1000),
    "1.0": GpuSize(1, 1000),
    "2": GpuSize(2, 1000),
    "2.0": GpuSize(2, 1000),
    "2x0.5": GpuSize(2, 500),
    "2X.5": GpuSize(2, 500),
    "1x1": GpuSize(1, 1000),
    " 0.5 ": GpuSize(1, 500),
    "1/4": GpuSize(1, 250),
    "2/3": GpuSize(1, 666),
    "1/1": GpuSize(1, 1000),
    "1/100": GpuSize(1, 10),
    "2x1/3": GpuSize(2, 333),
}
PERCENT = {"30%": 300, "30": 300, "12.5%": 125, "1%": 10, "100%": 1000, "100": 1000, "30 %": 300}
DURATION = {"90s": 90, "30m": 1800, "1h30m": 5400, "2d": 172800, "366d": MAX_DURATION_SECONDS, "1H": 3600}
DURATION |= {"01:00:00": 3600, "1:30:00": 5400, "00:00:07": 7, "48:00:00": 172800, "1-12:00:00": 129600}

HOSTILE = (
    "", " ", "0", "00", "-1", "+1", "-0.5", "NaN", "nan", "inf", "-inf", "Infinity", "1e9", "1e-9", "0x10",
    "0x0.5", "2x", "x2", "2x0", "2xx0.5", "2x0.5x2", "2x-0.5", "1025x0.5", "1.5", "2x1.5", "100.1%", "101%",
    "0%", "0.5%", "--gpu 0", "0,5", "0.0001", "0.0005", "1025", "999999999",
    "\u0663", "\u0660.\u0665", "\uff18g", "½", "0.²5", "8g;rm -rf /", "8 g b", "8gg", "8e",
    "\x00", "0.5\x00", "8g\n9g", "\ud800", "0g", "0.0m", "-8g",
    "1/0", "0/4", "3/2", "1/101", "1/4/2", "/4", "1/", "-1/4", "1 / 4", "2x3/2", "\u0661/4",
    "10:00", "1:60:00", "00:00:00", "1-00", "1-00:00", "-1:00:00", "01:00:00s", "9999:00:00", "\u0661:00:00",
    "99999999t", "2000t", "1m1h", "367d", "0s", "1.5h", "9" * 32, "9" * 5000, "0." + "1" * 30,
)  # fmt: skip
FINE_FOR_ONE = {(parse_percent, "1.5")}


@pytest.mark.parametrize(("text", "size"), MEMORY.items())
def test_memory_is_read_as_docker_reads_it_and_rounded_up_to_whole_mib(text: str, size: int) -> None:
    """``8g``, ``8gb`` and ``8GiB`` are the same."""
    assert parse_memory(text) == size


@pytest.mark.parametrize(("text", "size"), GPU.items())
def test_gpus_are_read_as_a_share_a_number_or_a_number_of_shares(text: str, size: GpuSize) -> None:
    """A number without a share means whole GPUs."""
    assert parse_gpu(text) == size


@pytest.mark.parametrize(("text", "permille"), PERCENT.items())
def test_compute_is_read_in_percent(text: str, permille: int) -> None:
    """With or without the sign, to a tenth of a percent."""
    assert parse_percent(text) == permille


@pytest.mark.parametrize(("text", "seconds"), DURATION.items())
def test_durations_are_read_with_their_units(text: str, seconds: int) -> None:
    """Days, hours, minutes, seconds, in this order."""
    assert parse_duration(text) == seconds


def test_no_time_at_all_is_a_duration_only_where_it_means_something() -> None:
    assert parse_duration("0s", least=0) == 0
    for text in ("", " ", "0"):
        with pytest.raises(RequestError):
            parse_duration(text, least=0)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:40])
def test_what_makes_no_sense_is_refused_with_a_sentence_and_a_hint(
    parse: Callable[[str], object], text: str
) -> None:
    """No exception but ours, whatever was typed."""
    if (parse, text) in FINE_FOR_ONE:
        return
    with pytest.raises(RequestError) as caught:
        parse(text)
    assert caught.value.hint
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "text", ["9" * 10_000_000, " " * 10_000_000, "0." + "5" * 10_000_000, "\n" * 9_999_999]
)
def test_ten_megabytes_are_refused_without_being_repeated(parse: Callable[[str], object], text: str) -> None:
    """Neither echoed nor searched with an expression that takes its time."""
    with pytest.raises(RequestError) as caught:
        parse(text)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("text", ["1.5", "2.75", "17.001"])
def test_more_than_one_gpu_in_parts_is_told_how_to_write_it(text: str) -> None:
    """1.5 GPUs are no lease, but three quarters of each of two are."""
    with pytest.raises(RequestError, match="not a whole number") as caught:
        parse_gpu(text)
    assert "2x0.75" in caught.value.hint


def test_zero_gpus_are_refused_by_their_number() -> None:
    """Also when each would be a half."""
    for text in ("0", "0.0", "0x0.5"):
        with pytest.raises(RequestError, match="0 GPUs cannot be asked for"):
            parse_gpu(text)


@given(st.integers(1, 1 << 20))
def test_memory_in_whole_mib_survives_a_round_trip(mebibytes: int) -> None:
    """Written as ``--gpu-memory 123m`` it comes back as it was."""
    assert parse_memory(f"{mebibytes}m") == mebibytes * MIB


@given(st.integers(1, 1023), st.sampled_from(("MiB", "GiB", "TiB")))
def test_short_sizes_are_written_as_they_can_be_read(number: int, unit: str) -> None:
    """What is shown exactly may be typed back."""
    assert format_memory(parse_memory(f"{number}{unit}")) == f"{number} {unit}"


@given(st.integers(10, 999))
def test_shares_survive_a_round_trip(permille: int) -> None:
    """Shown, typed, the same."""
    assert parse_gpu(format_share(permille)) == GpuSize(1, permille)
    assert parse_gpu(f"3x{format_share(permille)}") == GpuSize(3, permille)
    assert parse_percent(format_percent(permille)) == permille


@given(st.integers(1, 99), st.sampled_from("dhms"))
def test_durations_are_written_as_they_can_be_read(number: int, unit: str) -> None:
    """Whole ones come back exactly."""
    seconds = parse_duration(f"{number}{unit}")
    assert parse_duration(format_duration(seconds)) <= seconds
    assert seconds - parse_duration(format_duration(seconds)) < 60


@given(st.text(max_size=64))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Never another exception."""
    for parse in PARSERS:
        with contextlib.suppress(RequestError):
            parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (-5, "0s"), (42.9, "42s"), (300, "5m"), (5400, "1h30m"), (86460, "1d"), (187200, "2d4h")],
)
def test_durations_are_shown_in_at_most_two_units(seconds: float, text: str) -> None:
    """And never negative, even if the clock was set back."""
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1024, "1 KiB"),
        (20 * GIB, "20 GiB"),
        (1536 * MIB, "1.5 GiB"),
        (5 << 40, "5 TiB"),
    ],
)
def test_memory_is_shown_exactly_where_that_is_short(size: int, text: str) -> None:
    """Else with one decimal."""
    assert format_memory(size) == text


def test_texts_are_shown_printable_and_short() -> None:
    """Nothing that a user typed can move the cursor or fill a screen."""
    assert shown("a\x1b[2Jb\u202e") == "'a?[2Jb?'"
    assert shown("x" * 1000) == f"'{'x' * 32}'... (1000 characters)"
