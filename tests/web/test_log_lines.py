"""Lines of a log, as a page shows them: whatever a program writes, and however much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.web.log_lines import MAX_LINE, MAX_LINE_BYTES, MAX_LINES, LogLines

CASES = [
    pytest.param(b"one\ntwo\n", ["one", "two"], id="lines"),
    pytest.param(b"one\r\ntwo\r\n", ["one", "two"], id="the line ends of terminals"),
    pytest.param(b"\n\n", ["", ""], id="empty lines"),
    pytest.param(b"10%\r20%\r30%\n", ["30%"], id="only the newest state of a progress bar"),
    pytest.param(b"10%\r20%\r\n", ["20%"], id="a progress bar that ends as a terminal ends lines"),
    pytest.param(b"a\xffb\xc3\n", ["a\ufffdb\ufffd"], id="bytes that are no UTF-8"),
    pytest.param("größer\n".encode(), ["größer"], id="other letters"),
    pytest.param(
        b"\x1b[1;31mred\x1b[0m \x1b[2Kline\x1b]0;title\x07\n", ["red line"], id="no colours, no titles"
    ),
    pytest.param(b"a\x00b\x08c\x7fd\te\n", ["abcd\te"], id="no control characters but tabs"),
    pytest.param(b"<b>&amp;\n", ["<b>&amp;"], id="markup is text"),
    pytest.param(b"x" * 5000 + b"\nnext\n", ["x" * MAX_LINE + " ...", "next"], id="a long line is cut"),
    pytest.param("é".encode() * 5000 + b"\n", ["é" * MAX_LINE + " ..."], id="a long line of other letters"),
]


@pytest.mark.parametrize(("written", "lines"), CASES)
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_what_a_program_writes_becomes_lines_of_plain_text(
    written: bytes, lines: list[str], size: int
) -> None:
    log = LogLines()
    for at in range(0, len(written), size):
        log.add(written[at : at + size], stderr=False)
    assert log.take() == lines
    assert log.begun == ""


def test_the_two_streams_do_not_mix_within_a_line() -> None:
    log = LogLines()
    log.add(b"out ", stderr=False)
    log.add(b"error\n", stderr=True)
    log.add(b"put\n", stderr=False)
    assert log.take() == ["error", "out put"]


def test_a_line_that_has_not_ended_is_known_as_it_is_now() -> None:
    log = LogLines()
    log.add(b"loading\n 10%", stderr=False)
    log.add(b"\r 20%\r", stderr=False)
    assert (log.take(), log.begun) == (["loading"], " 20%")
    log.add(b" 30%", stderr=False)
    assert log.begun == " 30%"


def test_at_the_end_of_a_log_what_is_left_is_a_line() -> None:
    log = LogLines()
    log.add(b"out", stderr=False)
    log.add(b"error", stderr=True)
    log.end()
    assert (log.take(), log.begun) == (["out", "error"], "")


@given(st.lists(st.integers(0, 3 * MAX_LINES), max_size=5))
def test_the_newest_lines_are_kept_and_all_others_are_counted(pieces: list[int]) -> None:
    log, written = LogLines(), 0
    for size in pieces:
        log.add(b"".join(b"%d\n" % number for number in range(written, written + size)), stderr=False)
        written += size
    lines = log.take()
    left_out = max(0, written - MAX_LINES)
    kept = [str(number) for number in range(left_out, written)]
    assert lines == ([f"[{left_out} lines were left out]", *kept] if left_out else kept)
    assert log.take() == []


def test_a_line_without_an_end_takes_a_bounded_memory() -> None:
    log = LogLines()
    for _ in range(100):
        log.add(b"x" * 10_000, stderr=False)
    assert len(log._begun[False]) <= MAX_LINE_BYTES + 1
    assert len(log.begun) <= MAX_LINE + 4
