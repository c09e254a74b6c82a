"""``gpushare doctor``: what is wrong here and on the node, and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from shutil import get_terminal_size
from textwrap import wrap

import click

from gpushared.cli import complete
from gpushared.cli.caller_checks import CALLER_CHECKS, CallerFacts, look
from gpushared.cli.faults import say
from gpushared.cli.listing import Listing, Options, Screen, write
from gpushared.cli.report import refuse_existing, write_report
from gpushared.cli.table import Column, Row
from gpushared.client import CheckResult, Client, DoctorReport
from gpushared.domain.model.checkup import CheckOutcome, Status, examine
from gpushared.domain.model.errors import GpushareError

UNWELL = 1
NARROWEST = 20
"""Each of the two columns with sentences is at least so wide: both fit into 80 columns beside the names."""
GAPS = 6


@click.command("doctor", short_help="Find what is wrong here and on the node.")
@click.option("-a", "--all", "everything", is_flag=True, help="Also checks that were not made, and why.")
@click.option(
    "-o",
    "--output",
    default="table",
    metavar="FORMAT",
    help="table, wide, json, jsonl, ids or columns=NAME,...  [default: table]",
)
@click.option("--json", "as_json", is_flag=True, help="As -o json.")
@click.option("--no-headers", is_flag=True, help="Tables without titles and without lines around them.")
@click.option(
    "--report",
    "report_path",
    metavar="FILE",
    shell_complete=complete.files,
    help="Also write a bundle for whoever is to help; FILE must not exist yet.",
)
def doctor(*, everything: bool, output: str, as_json: bool, no_headers: bool, report_path: str | None) -> int:
    """Make all checks, here and by the daemon, and say what to do about what they find.

    One cause gives one line: checks that depend on one that failed are not made. Exit code 0: nothing failed,
    though there may be warnings; 1: a check failed. Without a daemon the checks of this side are made.

    \b
    Examples:
      gpushare doctor
      gpushare doctor --json
      gpushare doctor --report gpushare-report.json
    """  # noqa: D301 - click's mark for lines it must not join
    options = Options("json" if as_json else output, headers=not no_headers, ended=everything)
    if report_path:
        refuse_existing(report_path)
    return write(LISTING, options, lambda: _examine(options, report_path))


def _examine(options: Options, report_path: str | None) -> Screen:
    facts = look()
    results = all_results(facts)
    if report_path:
        write_report(report_path, facts, [one.to_json() for one in results])
        say(f"wrote {report_path}", "it names users, containers and images: read it before you pass it on")
    return _screen(facts, results, options)


def all_results(facts: CallerFacts) -> list[CheckResult]:
    """Return the results of this side's checks, then of the daemon's."""
    ours = [_as_message(result) for result in examine(CALLER_CHECKS, facts)]
    theirs = facts.report.checks if isinstance(facts.report, DoctorReport) else ()
    return [*ours, *theirs]


def _as_message(result: CheckOutcome) -> CheckResult:
    finding = result.finding
    return CheckResult(
        {
            "name": result.name,
            "status": finding.status.value,
            "detail": finding.detail,
            "fix": finding.fix,
            "blocked_by": result.blocked_by,
        }
    )


def _screen(facts: CallerFacts, results: Sequence[CheckResult], options: Options) -> Screen:
    shown = [one for one in results if options.ended or not one.blocked_by]
    well = all(one.status != Status.FAILED for one in results)
    missing = facts.report.message if isinstance(facts.report, GpushareError) else None
    rows = [_row(one) for one in shown]
    if options.output == "table" and sys.stdout.isatty():
        rows = _wrapped(rows, get_terminal_size().columns)
    return Screen(
        rows=rows,
        items=[one.to_json() for one in shown],
        ids=[one.name for one in shown],
        simulated=isinstance(facts.report, DoctorReport) and facts.report.simulated,
        notes=[f"the daemon's checks are missing: {missing}"] if missing else [],
        extra={"well": well, "missing": missing},
        exit_code=0 if well else UNWELL,
    )


def _row(one: CheckResult) -> Row:
    return {
        "status": one.status,
        "check": one.name,
        "detail": one.detail,
        "fix": one.fix,
        "blocked-by": one.blocked_by,
    }


def _wrapped(rows: Sequence[Row], width: int) -> list[Row]:
    """Break sentences into several lines, so that columns stay columns on a terminal of this width."""
    fixed = sum(max((len(row[key]) for row in rows), default=0) for key in ("status", "check"))
    left = width - fixed - GAPS
    if left < 2 * NARROWEST:
        return list(rows)
    widths = {"detail": left * 3 // 5, "fix": left - left * 3 // 5}
    return [line for row in rows for line in _lines(row, widths)]


def _lines(row: Row, widths: dict[str, int]) -> list[Row]:
    # A command that is broken cannot be copied, a path in a sentence can.
    cells = {
        key: wrap(row[key], width, break_long_words=key == "detail", break_on_hyphens=False) or [row[key]]
        for key, width in widths.items()
    }
    lines: list[Row] = [{**row, **{key: parts[0] for key, parts in cells.items()}}]
    for number in range(1, max(map(len, cells.values()))):
        more = {key: parts[number] if number < len(parts) else " " for key, parts in cells.items()}
        lines.append({**dict.fromkeys(row, " "), **more})
    return lines


def _fetch(client: Client, options: Options) -> Screen:  # noqa: ARG001 - a listing's signature
    return _examine(options, None)


LISTING = Listing(
    name="doctor",
    summary="Find what is wrong here and on the node.",
    details="",
    schema="gpushare.doctor/1",
    columns=(
        Column("status", coloured=True),
        Column("check"),
        Column("detail"),
        Column("fix"),
        Column("blocked-by", wide=True),
    ),
    fetch=_fetch,
)
