"""Lines of what was seen: five keys, nothing else."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bench.gpu.observe import Observation, Recorder, parse, read

GOOD = Observation("G1", "by-ordinal", 0, {"alloc": {"allocated_mib": 1}}, 1.5)

BAD_LINES = {
    "no JSON": "G1 by-ordinal 0",
    "a list": "[1, 2, 3, 4, 5]",
    "a key too few": '{"step": "G1", "case": "a", "rc": 0, "values": {}}',
    "a key too many": '{"step": "G1", "case": "a", "rc": 0, "values": {}, "seconds": 1, "note": ""}',
    "an empty step": '{"step": "", "case": "a", "rc": 0, "values": {}, "seconds": 1}',
    "a status of words": '{"step": "G1", "case": "a", "rc": "0", "values": {}, "seconds": 1}',
    "a status of truth": '{"step": "G1", "case": "a", "rc": true, "values": {}, "seconds": 1}',
    "values as a list": '{"step": "G1", "case": "a", "rc": 0, "values": [], "seconds": 1}',
    "time before the start": '{"step": "G1", "case": "a", "rc": 0, "values": {}, "seconds": -1}',
}


def test_a_line_reads_back_as_what_was_written():
    assert parse(GOOD.line()) == GOOD


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES)
def test_a_line_of_another_form_is_refused(line: str):
    with pytest.raises(ValueError, match=r"observation|Expecting|char"):
        parse(line)


@pytest.mark.parametrize("key", ["skipped", "error", "timed_out"])
def test_a_case_that_did_not_run_or_failed_is_not_measured(key: str):
    assert not Observation("G1", "a", None, {key: "why"}).measured
    assert GOOD.measured


def test_a_recorder_writes_each_line_at_once(tmp_path: Path):
    echo = io.StringIO()
    recorder = Recorder(tmp_path / "lines.jsonl", echo)
    recorder.add(GOOD)
    # Not closed, as when the run is cut off.
    assert read(tmp_path / "lines.jsonl") == (GOOD,)
    assert parse(echo.getvalue()) == GOOD
    recorder.close()
