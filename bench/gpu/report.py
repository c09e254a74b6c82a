#!/usr/bin/env python3
"""Makes a run's page from its lines, and the index of all statements from all pages' lines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.judge import Word
from bench.gpu.observe import Observation, by_case, read
from bench.gpu.statements import STATEMENTS

MEASUREMENTS = Path(__file__).resolve().parents[2] / "docs" / "measurements"
BEGIN, END = "<!-- statements -->", "<!-- /statements -->"
FIGURES_OF = ("G6", "G7", "sharing")
LONGEST_CELL = 400


def page(observations: Sequence[Observation], command: str, name: str) -> str:
    """The page of one run; ``name`` is that of the file with its lines, without suffix."""
    seen = by_case(observations)
    facts = _facts(observations)
    rows = [(f"[{one.id}](README.md#{one.id})", one.verdict(seen).text) for one in STATEMENTS]
    parts = [
        f"# Measured: {facts['GPU']}, driver {facts['driver']}",
        "\n".join(f"- {key}: {value}" for key, value in {**facts, "command": f"`{command}`"}.items()),
        f"Every line that was seen is in [{name}.jsonl]({name}.jsonl).",
        "## Statements",
        table(("statement", "seen"), rows),
        "## Figures",
        table(("case", "figures"), _figures(observations)),
        "## Not measured",
        table(("cases", "why"), _missing(observations)),
    ]
    return "\n\n".join(parts) + "\n"


def index(pages: Iterable[tuple[str, Sequence[Observation]]]) -> str:
    """The table of all statements, each with what every page's lines say of it."""
    runs = [(name, by_case(observations)) for name, observations in pages]
    rows = []
    for one in STATEMENTS:
        said = [(name, one.verdict(seen)) for name, seen in runs]
        told = [f"[{v.word}]({name}.md)" for name, v in said if v.word is not Word.NOT_MEASURED]
        anchor = f'<a id="{one.id}"></a>'
        settled = f"`{one.step}` {one.case}"
        rows.append((f"{anchor}{one.text}", settled, ", ".join(told) or str(Word.NOT_MEASURED)))
    return table(("statement", "settled by", "seen"), rows)


def with_index(readme: str, directory: Path) -> str:
    """The text of a README with the index of the lines that lie beside it. Raises ValueError."""
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the text has no place for the statements: {BEGIN} and {END}")
    pages = [(path.stem, read(path)) for path in sorted(directory.glob("*.jsonl"))]
    return f"{head}{BEGIN}\n\n{index(pages)}\n\n{END}{tail}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    flat = " ".join(text.replace("|", "\\|").split())
    return flat if len(flat) <= LONGEST_CELL else f"{flat[:LONGEST_CELL]}..."


def _facts(observations: Sequence[Observation]) -> dict[str, str]:
    seen = by_case(observations)
    gpu = seen["G0", "gpu"].values if ("G0", "gpu") in seen else {}
    mps = seen["G0", "mps-version"].values if ("G0", "mps-version") in seen else {}
    machine = seen["G0", "machine"].values if ("G0", "machine") in seen else {}
    return {
        "GPU": str(gpu.get("name", "unknown")),
        "driver": str(gpu.get("driver_version", "unknown")),
        "MPS": str(mps.get("says") or mps.get("skipped") or "unknown"),
        "kernel": str(machine.get("kernel", "unknown")),
    }


def _figures(observations: Sequence[Observation]) -> list[tuple[str, str]]:
    kept = [one for one in observations if one.step in FIGURES_OF and one.measured]
    return [(f"{one.step} {one.case}", "; ".join(_figures_in(one.values))) for one in kept]


def _figures_in(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the figures that a reader compares; the lines have all others."""
    for key, value in values.items():
        match value:
            case bool():
                continue
            case int():
                yield f"{key} {value}"
            case float():
                yield f"{key} {value:.4g}" if value < 1000 else f"{key} {value:.0f}"
            case {"rounds_per_second": float(rounds)}:
                yield f"{key} {rounds:.0f}/s"
            case {"result": "CUDA_SUCCESS", "seconds": float(seconds)}:
                yield f"{key} {seconds:.3g} s"
            case {"result": str(result)}:
                yield f"{key} {result}"
            case {}:
                yield f"{key}: {', '.join(_figures_in(value))}"


def _missing(observations: Sequence[Observation]) -> list[tuple[str, str]]:
    """Return the cases of each step that say nothing of the GPU, those with the same reason in one row."""
    cases: dict[tuple[str, str], list[str]] = {}
    for one in observations:
        reasons = [str(one.values[key]) for key in ("skipped", "error", "timed_out") if key in one.values]
        for reason in reasons[:1]:
            cases.setdefault((one.step, reason), []).append(one.case)
    return [(f"{step} {', '.join(names)}", reason) for (step, reason), names in cases.items()]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench/gpu/report.py", description=__doc__)
    parser.add_argument("lines", nargs="*", type=Path, help="files of one run, all into one page")
    parser.add_argument("--command", default="bench/gpu/run", help="what the page says that was run")
    parser.add_argument("--out", type=Path, default=MEASUREMENTS, help="default: %(default)s")
    words = parser.parse_args(arguments)
    try:
        if words.lines:
            _write_page(words.lines, words.command, words.out)
        readme = words.out / "README.md"
        if readme.exists():
            readme.write_text(with_index(readme.read_text(), words.out))
    except (OSError, ValueError) as error:
        print(f"report: error: {error}", file=sys.stderr)
        return 1
    return 0


def _write_page(lines: Sequence[Path], command: str, out: Path) -> None:
    observations = [one for path in lines for one in read(path)]
    name = lines[0].stem
    (out / f"{name}.jsonl").write_text("".join(f"{one.line()}\n" for one in observations))
    (out / f"{name}.md").write_text(page(observations, command, name))


if __name__ == "__main__":
    raise SystemExit(main())
