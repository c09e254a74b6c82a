"""Serve ``gpushare doctor``: find what is wrong here and on the node, and write the report for a helper."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Sequence
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

import click

from gpushared import __version__
from gpushared.cli import complete
from gpushared.cli.caller_checks import CALLER_CHECKS, CallerFacts, caller_facts, without_user
from gpushared.cli.errors import UsageError, say
from gpushared.cli.listing import Listing, Options, Screen, write
from gpushared.cli.table import Column, Row
from gpushared.client import CheckResult, Client, DoctorReport, Lease, NodeStatus
from gpushared.domain.model.checkup import CheckOutcome, Status, examine
from gpushared.domain.model.errors import GpushareError

UNWELL = 1
NARROWEST = 20
"""Each of the two columns with sentences is at least so wide: both fit into 80 columns beside the names."""
GAPS = 6

SCHEMA = "gpushare.report/1"
STORIES = 20
VARIABLES = ("GPUSHARE_HOST", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CONFIG")
LEFT_OUT = "(left out)"
_SECRET = re.compile(r"secret|token|password|passwd|credential|(?:^|[_-])key(?:$|[_-])", re.IGNORECASE)


@click.command("doctor")
@click.option("-a", "--all", "everything", is_flag=True, help="Also show checks that were skipped, and why.")
@click.option(
    "-o",
    "--output",
    default="table",
    metavar="FORMAT",
    help="table, wide, json, jsonl, ids or columns=NAME,...  [default: table]",
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON, as -o json does.")
@click.option("--no-headers", is_flag=True, help="Print tables without titles and without lines around them.")
@click.option(
    "--report",
    "report_path",
    metavar="FILE",
    shell_complete=complete.files,
    help="Also write a report for the person who helps; FILE must not exist yet.",
)
def doctor(*, everything: bool, output: str, as_json: bool, no_headers: bool, report_path: str | None) -> int:
    """Make all checks, here and by the daemon, and say what to do about what they find.

    One cause gives one line: checks that depend on a failed one are skipped. Exit code 0: nothing failed,
    though there may be warnings; 1: a check failed. Without a daemon only the checks of this side are made.

    \b
    Examples:
      gpushare doctor
      gpushare doctor --json
      gpushare doctor --report gpushare-report.json
    """
    options = Options("json" if as_json else output, headers=not no_headers, ended=everything)
    if report_path:
        refuse_existing(report_path)
    return write(LISTING, options, lambda: _examine(options, report_path))


def _examine(options: Options, report_path: str | None) -> Screen:
    facts = caller_facts()
    results = all_results(facts)
    if report_path:
        write_report(report_path, facts, [result.to_json() for result in results])
        say(f"wrote {report_path}", "it names users, containers and images: read it before you pass it on")
    return _screen(facts, results, options)


def all_results(facts: CallerFacts) -> list[CheckResult]:
    """Return the results of this side's checks, then of the daemon's."""
    caller_results = [_as_message(result) for result in examine(CALLER_CHECKS, facts)]
    daemon_results = facts.report.checks if isinstance(facts.report, DoctorReport) else ()
    return [*caller_results, *daemon_results]


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
    shown = [result for result in results if options.ended or not result.blocked_by]
    is_well = all(result.status != Status.FAILED for result in results)
    missing = facts.report.message if isinstance(facts.report, GpushareError) else None
    rows = [_row(result) for result in shown]
    if options.output == "table" and sys.stdout.isatty():
        rows = _wrapped(rows, get_terminal_size().columns)
    return Screen(
        rows=rows,
        items=[result.to_json() for result in shown],
        ids=[result.name for result in shown],
        simulated=isinstance(facts.report, DoctorReport) and facts.report.simulated,
        notes=[f"the daemon's checks are missing: {missing}"] if missing else [],
        extra={"well": is_well, "missing": missing},
        exit_code=0 if is_well else UNWELL,
    )


def _row(result: CheckResult) -> Row:
    return {
        "status": result.status,
        "check": result.name,
        "detail": result.detail,
        "fix": result.fix,
        "blocked-by": result.blocked_by,
    }


def _wrapped(rows: Sequence[Row], width: int) -> list[Row]:
    """Break sentences into several lines, so that columns stay columns on a terminal of this width."""
    fixed = sum(max((len(row[key]) for row in rows), default=0) for key in ("status", "check"))
    room = width - fixed - GAPS
    if room < 2 * NARROWEST:
        return list(rows)
    widths = {"detail": room * 3 // 5, "fix": room - room * 3 // 5}
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


def refuse_existing(path: str) -> None:
    """Refuse, before any work, a path that exists: nothing is ever written over."""
    if os.path.lexists(path):
        raise UsageError(f"{path} exists", hint="choose another name; a report is never written over a file")


def write_report(path: str, facts: CallerFacts, items: Sequence[dict[str, Any]]) -> None:
    """Write the bundle so that only the caller may read it. Raises UsageError if the write fails."""
    text = json.dumps(_clean(_bundle(facts, items)), indent=2) + "\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="choose another place"
        ) from error


def _bundle(facts: CallerFacts, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    problems: list[str] = []
    report = facts.report if isinstance(facts.report, DoctorReport) else DoctorReport({})
    answers = isinstance(facts.status, NodeStatus)
    if not answers:
        problems.append("the daemon did not answer: its part is missing")
    elif not report.settings:
        problems.append("the daemon tells its settings to trusted callers only")
    return {
        "schema": SCHEMA,
        "simulated": report.simulated,
        "created_at": time.time(),
        "versions": _versions(facts),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "checks": list(items),
        "node": facts.status.to_json() if isinstance(facts.status, NodeStatus) else None,
        "settings": [setting.to_json() for setting in report.settings],
        "gpus": _try(problems, lambda: [gpu.to_json() for gpu in _client().gpus().gpus]) if answers else [],
        "leases": _try(problems, lambda: _leases(problems)) if answers else [],
        "problems": problems,
    }


def _client() -> Client:
    """Return a client that does not retry: answers that fail are no part of the bundle."""
    client = Client()
    client.retries = None
    return client


def _versions(facts: CallerFacts) -> dict[str, str | None]:
    return {
        "gpushare": __version__,
        "gpushared": facts.status.version if isinstance(facts.status, NodeStatus) else None,
        "docker_cli": None if isinstance(facts.docker, GpushareError) else facts.docker.says,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "system": _system(),
    }


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _leases(problems: list[str]) -> list[dict[str, Any]]:
    """Return live leases, then the newest ended ones, with the stories that the caller may see."""
    client = _client()
    leases = client.leases(ended=True, limit=STORIES).leases[-2 * STORIES :]
    return [_lease(client, lease, problems) for lease in leases]


def _lease(client: Client, lease: Lease, problems: list[str]) -> dict[str, Any]:
    story = _try(problems, lambda: [entry.to_json() for entry in client.explain(lease.id).story])
    fields = {key: value for key, value in lease.to_json().items() if key != "token"}  # of no use to others
    return {**fields, "story": story}


def _try(problems: list[str], ask: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the answer; if it fails, name the problem in the bundle instead."""
    try:
        return ask()
    except GpushareError as error:
        problems.append(error.message)
        return []


def _clean(value: Any, name: str = "") -> Any:
    """Return the value without secrets: values with telling names, and users in URLs."""
    if isinstance(value, dict):
        setting_name = value.get("name") if "section" in value else ""
        return {
            key: _clean(inner, str(setting_name) if key == "value" else key) for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_clean(inner, name) for inner in value]
    if not isinstance(value, str):
        return value
    return LEFT_OUT if _SECRET.search(name) else without_user(value)
