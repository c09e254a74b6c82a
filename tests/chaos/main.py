"""``scripts/chaos``: a chaos run by hand, with a summary and exit code 1 where a promise was not kept."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bed import parts
from tests.chaos.chaos import carry_out
from tests.chaos.diary import Run
from tests.chaos.ha.plan import make_round
from tests.chaos.ha.run import HaRun, carry_out_rounds
from tests.chaos.judge import by_work, lives
from tests.chaos.plan import Plan, make_plan
from tests.chaos.records import Record, Violation

EVIDENCE_LINES = 6


def main(words: Sequence[str]) -> int:
    asked = _parser().parse_args(words)
    if asked.ha:
        return run_rounds(asked)
    plan = make_plan(asked.seed, asked.minutes, asked.faults)
    if asked.plan:
        _print_plan(plan)
        return 0
    folder = parts.CACHE / "chaos" / f"{time.strftime('%Y%m%d-%H%M%S')}-seed-{plan.seed}"
    say = _keep_quiet if asked.quiet else _print_at_once
    try:
        record, runs, found = asyncio.run(carry_out(plan, folder, parts.CACHE, say))
    except asyncio.CancelledError:
        print(
            f"chaos: stopped; no machine is left, and what there was to see is in {folder}", file=sys.stderr
        )
        return 130
    (folder / "plan.json").write_text(json.dumps(asdict(plan), indent=1))
    (folder / "record.json").write_text(json.dumps(asdict(record), indent=1, default=sorted))
    summary = summarize(plan, record, runs, found, folder)
    (folder / "summary.txt").write_text(summary)
    print(summary)
    return 1 if found else 0


def run_rounds(asked: argparse.Namespace) -> int:
    """The rounds against several coordinators."""
    if asked.plan:
        for number in range(asked.rounds):
            one = make_round(asked.seed, number)
            print(f"round {number}: {', '.join(map(str, one.blows))}")
        return 0
    folder = parts.CACHE / "chaos" / f"{time.strftime('%Y%m%d-%H%M%S')}-ha-seed-{asked.seed}"
    say = _keep_quiet if asked.quiet else _print_at_once
    try:
        run, record, runs, found = asyncio.run(
            carry_out_rounds(
                asked.seed, asked.rounds, asked.seconds, folder, parts.CACHE, say, asked.coordinators
            )
        )
    except asyncio.CancelledError:
        print(f"chaos: stopped; no machine is left, and what there was is in {folder}", file=sys.stderr)
        return 130
    (folder / "record.json").write_text(json.dumps(asdict(record), indent=1, default=sorted))
    summary = summarize_rounds(run, asked.seed, record, runs, found, folder)
    (folder / "summary.txt").write_text(summary)
    print(summary)
    return 1 if found else 0


def _print_at_once(line: str) -> None:
    print(line, flush=True)


def _keep_quiet(line: str) -> None:
    """Only the summary is shown."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "chaos", description="Break a pool of three machines on purpose, and judge."
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="how long faults come [3]")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same plan [1]")
    parser.add_argument("--faults", type=int, help="how many [6 a minute]")
    parser.add_argument("--ha", action="store_true", help="three coordinators on an etcd of three, in rounds")
    parser.add_argument("--rounds", type=int, default=1000, help="with --ha: at most so many [1000]")
    parser.add_argument("--seconds", type=float, default=7200.0, help="with --ha: begin none later [7200]")
    parser.add_argument("--coordinators", type=int, default=3, help="with --ha: 1 to 3 [3]")
    parser.add_argument("--plan", action="store_true", help="only show the plan")
    parser.add_argument("--quiet", action="store_true", help="only show the summary")
    return parser


def _print_plan(plan: Plan) -> None:
    steps = [(fault.at_seconds, str(fault)) for fault in plan.faults]
    steps += [(work.at_seconds, str(work)) for work in plan.work]
    print("\n".join(line for _, line in sorted(steps)))


def summarize(
    plan: Plan, record: Record, runs: Sequence[Run], found: Sequence[Violation], folder: Path
) -> str:
    """The one table of a run: faults by kind, jobs, commands, violations with their evidence."""
    title = f"chaos: seed {plan.seed}, {plan.seconds / 60:g} minutes; all that is known of it is in {folder}"
    faults = _table("faults", _count(f"{span.kind} {_sort(span.target)}" for span in record.spans))
    return "\n".join([title, "", *faults, *_results(record, runs, found)])


def summarize_rounds(
    run: HaRun, seed: int, record: Record, runs: Sequence[Run], found: Sequence[Violation], folder: Path
) -> str:
    """The table of a run in rounds, with the times in which a new leader took over."""
    title = f"chaos --ha: seed {seed}, {run.rounds_done} rounds; all that is known of it is in {folder}"
    faults = _table("faults", _count(f"{span.kind} {span.role}" for span in record.spans))
    ended = [("ended because they led no more", len(run.blows.deposed))]
    alone = [one for one in run.take_overs if one.alone]
    lines = [title, "", *faults, *_table("coordinators", ended)]
    lines += _seconds("a new leader leads", [one.led - one.struck for one in run.take_overs])
    lines += _seconds("a fresh job begins", [one.placed - one.struck for one in run.take_overs])
    lines += _seconds("a fresh job begins, nothing else hit", [one.placed - one.struck for one in alone])
    return "\n".join([*lines, "", *_results(record, runs, found)])


def _seconds(what: str, values: Sequence[float]) -> list[str]:
    if not values:
        return [f"{what}: never measured"]
    at = sorted(values)
    p50, p95 = (at[min(len(at) - 1, int(len(at) * part))] for part in (0.5, 0.95))
    return [
        f"{what}, seconds after the leader was hit ({len(at)}): p50 {p50:.1f}, p95 {p95:.1f}, max {at[-1]:.1f}"
    ]


def _results(record: Record, runs: Sequence[Run], found: Sequence[Violation]) -> list[str]:
    lines = _table("jobs", _count(job.state or "unknown" for job in record.accepted))
    lines += _table("runs by the diaries", _runs(runs))
    ended = Counter(
        f"`{call.command}` ended with {call.code}" for call in record.calls if "guard" not in call.command
    )
    lines += _table("commands", sorted(ended.items()))
    lines += _table("violations", _count(violation.rule for violation in found) or [("none", 0)])
    for violation in found:
        lines += [f"VIOLATION {violation.rule}: {violation.what}"]
        lines += [f"    {line}" for line in violation.evidence[:EVIDENCE_LINES]]
    return lines


def _runs(runs: Sequence[Run]) -> list[tuple[str, int]]:
    again = sum(len(own) - 1 for own in by_work(runs).values())
    return [
        ("containers started", len(runs)),
        ("ended with 0", sum(run.code == 0 for run in runs)),
        ("ended with another code", sum(run.code not in {None, 0} for run in runs)),
        ("without an end", sum(run.code is None for run in runs)),
        ("of a job that had run before", again),
        ("stretches of life compared for oversold GPUs", sum(len(lives(run)) for run in runs)),
    ]


def _sort(target: str) -> str:
    return target if target.endswith("coordinator") else target.rpartition("-")[0]


def _count(words: Iterable[str]) -> list[tuple[str, int]]:
    return sorted(Counter(words).items())


def _table(title: str, rows: Iterable[tuple[str, int]]) -> list[str]:
    listed = list(rows)
    total = f" ({sum(number for _, number in listed)})" if title in {"faults", "jobs", "commands"} else ""
    return [f"{title}{total}", *(f"  {number:6d}  {name}" for name, number in listed), ""]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
