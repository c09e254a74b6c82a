"""From lines to pages: what was seen is said, what was not is never said. All figures here are made up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.catalogue import STEPS
from bench.gpu.judge import Word
from bench.gpu.observe import Observation, by_case
from bench.gpu.report import BEGIN, END, index, main, page, with_index
from bench.gpu.statements import STATEMENTS, Statement
from tests.bench.sample import MIB, SERVERS, line, sample, taken

ROOT = Path(__file__).resolve().parents[2]
MEASUREMENTS = ROOT / "docs" / "measurements"
BY_ID = {one.id: one for one in STATEMENTS}
PLAIN = line("G0", "plain", info={"sm_count": 132})

FAULT: dict[str, Any] = {
    "neighbour": {"loop": {"result": "CUDA_ERROR_MPS_RPC_FAILURE"}},
    "separate": {"loop": {"result": "CUDA_SUCCESS"}},
    "plain": {"loop": {"result": "CUDA_SUCCESS"}},
    "states": [{"state": "FAULT", "seconds": 0.1}],
    "works_again": True,
    "seconds_to_work": 1.0,
}
HELD: dict[str, Any] = {"clients": {"10": 1024, "11": 2048}, "server": 9}


def listed(first: int, second: int) -> dict[str, Any]:
    """The driver's list, with so many MiB for each client."""
    found = [{"pid": 10, "memory_bytes": first * MIB}, {"pid": 11, "memory_bytes": second * MIB}]
    return HELD | {"lists": {"lists": {"Compute": found}}}


def pausing(**results: str) -> dict[str, Any]:
    phases = dict.fromkeys(("lock", "checkpoint", "restore", "unlock"), "CUDA_SUCCESS") | results
    values: dict[str, Any] = {
        phase: {"result": result, "seconds": 1.0, "gpu_bytes": 0} for phase, result in phases.items()
    }
    return values | {"afterwards": {"result": "CUDA_SUCCESS"}}


VERDICTS: list[tuple[str, dict[str, Any], Word]] = [
    ("limit-of-lease", taken(3840), Word.HOLDS),
    ("limit-of-lease", taken(4096), Word.HOLDS),
    ("limit-of-lease", taken(4160), Word.FAILS),
    ("limit-of-lease", taken(6144), Word.FAILS),
    ("limit-of-lease", taken(0), Word.UNCLEAR),
    ("limit-of-lease", taken(6144, servers=[]), Word.UNCLEAR),
    ("limit-of-lease", {"error": {"result": "no driver"}}, Word.UNCLEAR),
    ("limit-of-lease", {}, Word.UNCLEAR),
    ("limit-in-mib", taken(1440, 1536, read_back="1G"), Word.HOLDS),
    ("limit-in-mib", taken(960, 1536, read_back="1G"), Word.FAILS),
    ("limit-shows-as-free", taken(3840), Word.HOLDS),
    ("share-of-multiprocessors", taken(3840, sm_count=33), Word.HOLDS),
    ("share-of-multiprocessors", taken(3840, sm_count=132), Word.FAILS),
    ("limit-is-per-process", {"allocated_mib": 7680, "limit_mib": 4096, "servers": SERVERS}, Word.HOLDS),
    ("limit-is-per-process", {"allocated_mib": 4032, "limit_mib": 4096, "servers": SERVERS}, Word.FAILS),
    ("absent-gpu-sheds-limits", taken(6144), Word.HOLDS),
    ("absent-gpu-sheds-limits", taken(1984), Word.FAILS),
    ("memory-by-process", listed(1100, 2100), Word.HOLDS),
    ("memory-by-process", listed(1100, 40), Word.FAILS),
    ("memory-by-process", HELD | {"lists": {"result": "Not Supported"}}, Word.UNCLEAR),
    ("memory-by-process", listed(1100, 2100) | {"server": None}, Word.UNCLEAR),
    ("contained-client", taken(3840, sm_count=33), Word.HOLDS),
    ("contained-client", taken(6144, sm_count=132), Word.FAILS),
    ("fault-hits-all-clients", FAULT, Word.HOLDS),
    ("fault-hits-all-clients", FAULT | {"neighbour": {"loop": {"result": "CUDA_SUCCESS"}}}, Word.FAILS),
    ("fault-stays-with-its-server", FAULT, Word.HOLDS),
    ("fault-stays-with-its-server", FAULT | {"plain": FAULT["neighbour"]}, Word.FAILS),
    ("fault-heals", FAULT, Word.HOLDS),
    ("fault-heals", FAULT | {"works_again": False}, Word.FAILS),
    ("checkpoint-frees-memory", pausing(), Word.HOLDS),
    ("checkpoint-frees-memory", pausing(restore="CUDA_ERROR_OUT_OF_MEMORY"), Word.FAILS),
    ("clients-per-server", {"accepted": 60, "tried_at_most": 64, "servers": SERVERS}, Word.HOLDS),
    ("clients-per-server", {"accepted": 16, "tried_at_most": 64, "servers": SERVERS}, Word.FAILS),
    ("overhead-of-gpushared", {"gpushared_to_by_hand": {"2-infer": 0.99, "4-infer": 0.985}}, Word.HOLDS),
    ("overhead-of-gpushared", {"gpushared_to_by_hand": {"2-infer": 0.99, "4-infer": 0.97}}, Word.FAILS),
    ("overhead-of-gpushared", {"gpushared_to_by_hand": {}}, Word.UNCLEAR),
]


@pytest.mark.parametrize(
    ("name", "values", "word"), VERDICTS, ids=[f"{n} {w} {i}" for i, (n, _, w) in enumerate(VERDICTS)]
)
def test_a_statement_is_judged_by_what_its_case_saw(name: str, values: dict[str, Any], word: Word):
    statement = BY_ID[name]
    seen = by_case([PLAIN, line(statement.step, statement.case, **values)])
    assert statement.verdict(seen).word is word


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda one: one.id)
def test_without_its_line_a_statement_is_not_yet_measured(statement: Statement):
    assert statement.verdict({}).word is Word.NOT_MEASURED


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda one: one.id)
def test_a_line_that_says_nothing_settles_nothing(statement: Statement):
    where = (statement.step, statement.case)
    skipped = Observation(*where, None, {"skipped": "a made-up reason"})
    assert statement.verdict({where: skipped}).word is Word.NOT_MEASURED
    assert statement.verdict({where: Observation(*where, 0, {})}).word is Word.UNCLEAR


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda one: one.id)
def test_every_statement_is_a_full_sentence_settled_by_a_case_that_exists(statement: Statement):
    assert statement.text[-1] == "."
    assert re.fullmatch(r"[a-z0-9-]+", statement.id)
    cases = {(step.name, case.name) for step in STEPS for case in step.cases} | {("sharing", "ratios")}
    assert (statement.step, statement.case) in cases


def test_statements_have_names_of_their_own():
    assert len(BY_ID) == len(STATEMENTS)


def test_a_page_says_what_was_seen_and_what_was_not():
    text = page(sample(), "bench/gpu/run --out DIR", "made-up")
    assert text.startswith("# Measured: Made-up GPU, driver 999.0\n")
    assert "[made-up.jsonl](made-up.jsonl)" in text
    assert "holds: with a limit of 4096 MiB, 3840 MiB were given" in text
    assert "does not hold: with a limit of 4096 MiB, 6144 MiB were given" in text
    assert "| G2 torch | torch is not installed |" in text
    assert "| [fault-heals](README.md#fault-heals) | unclear: it took longer than 70 s |" in text
    assert "1.50 times as many" in text
    assert text.count(f"| {Word.NOT_MEASURED} |") > 20


def test_a_page_of_no_lines_claims_nothing():
    text = page([], "bench/gpu/run", "empty")
    assert text.count(f"| {Word.NOT_MEASURED} |") == len(STATEMENTS)
    assert not re.search(r"\| (holds|does not hold|unclear)", text)


def test_an_index_links_each_verdict_to_the_page_of_its_run():
    text = index([("first", sample()), ("second", [line("G1", "by-client", **taken(6144))])])
    (row,) = [one for one in text.splitlines() if '<a id="limit-of-lease"></a>' in one]
    assert row.endswith("| `G1` by-client | [holds](first.md), [does not hold](second.md) |")


def test_a_page_and_the_index_are_made_by_one_command(tmp_path: Path):
    lines = tmp_path / "made-up.jsonl"
    lines.write_text("".join(f"{one.line()}\n" for one in sample()))
    (tmp_path / "README.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert main([str(lines), "--out", str(tmp_path)]) == 0
    readme = (tmp_path / "README.md").read_text()
    assert "[holds](made-up.md)" in readme
    assert readme.startswith("before\n")
    assert readme.endswith("after\n")
    assert "\nold\n" not in readme
    assert (tmp_path / "made-up.md").exists()


def test_lines_that_are_none_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    assert main([str(tmp_path / "bad.jsonl"), "--out", str(tmp_path)]) == 1
    assert "not an observation" in capsys.readouterr().err


# --- the documents ---


def test_the_table_of_measurements_says_what_the_lines_beside_it_say():
    text = (MEASUREMENTS / "README.md").read_text()
    assert with_index(text, MEASUREMENTS) == text, "run bench/gpu/report.py"


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_links_to_statements_lead_to_rows_and_say_what_the_row_says():
    lines = [one for path in sorted(MEASUREMENTS.glob("*.jsonl")) for one in [by_case(_read(path))]]
    links = [
        (path, label, anchor)
        for path in documents()
        for label, anchor in re.findall(
            r"\[([^\]]+)\]\([^)]*measurements/README\.md#([a-z0-9-]+)\)", path.read_text()
        )
    ]
    assert links
    for path, label, anchor in links:
        assert anchor in BY_ID, f"{path} links to a statement that is none: {anchor}"
        measured = any(BY_ID[anchor].verdict(seen).word is not Word.NOT_MEASURED for seen in lines)
        assert not (measured and "not yet measured" in label), f"{path}: {anchor} has been measured"


def _read(path: Path) -> tuple[Observation, ...]:
    from bench.gpu.observe import read

    return read(path)
