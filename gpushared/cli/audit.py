"""Serve ``gpushare audit``: show who changed what, and who was refused what."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import click

from gpushared.api.v1.admin_messages import AuditLine, AuditPage
from gpushared.cli import text
from gpushared.cli.errors import wrong_values
from gpushared.cli.listing import Listing, Options, OwnOption, Screen, own_values_of, write
from gpushared.cli.listing_command import listing_command
from gpushared.cli.table import Column, Row
from gpushared.cli.tree import COMMANDS
from gpushared.client import Client
from gpushared.client.moment import read_past
from gpushared.client.pool_calls import pool_socket

LIMIT = 50
MAX_LIMIT = 100_000
PAGE = 1000
FOLLOW_SECONDS = 1.0
_CALL_WIDTH = 32
_BY_DAEMON = frozenset({"FOUND", "LOST"})
"""The daemon writes these lines by itself, as answers to nobody."""
_LONG_ID = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


def _row(line: AuditLine, now: float) -> Row:
    return {
        "time": text.clock(line.at, now, "%H:%M:%S", "%m-%d %H:%M"),
        "user": line.user,
        "call": _shortened(_call(line)),
        "status": str(line.status or ("-" if line.method in _BY_DAEMON else "gone")),
        "said": _text(line),
        "code": line.code,
        "uid": str(line.uid),
        "pid": str(line.pid or ""),
        "program": line.executable,
        "endpoint": f"{line.method} {line.endpoint}",
        "name": line.name,
        "container": line.container[:12],
        "digest": line.digest[:12],
        "number": str(line.number),
    }


def _call(line: AuditLine) -> str:
    call = f"{line.method} " + _LONG_ID.sub(r"\1", line.endpoint)
    return call if not line.name or line.name in line.endpoint else f"{call} {line.name}"


def _shortened(call: str) -> str:
    return call if len(call) <= _CALL_WIDTH else call[: _CALL_WIDTH - 1] + "…"


def _text(line: AuditLine) -> str:
    more = f"and {line.more} more like it" if line.more else ""
    return "; ".join(part for part in (more, line.text) if part)


def _pages(client: Client, options: Options) -> Callable[..., AuditPage]:
    """Return a call that fetches a page of the chosen lines, from this node's daemon or the coordinator here."""
    since = options.value("since")
    with wrong_values("--since"):
        begins_at = read_past(since, datetime.now().astimezone()) if since else 0.0
    source = Client(f"unix://{pool_socket()}") if options.value("pool") else client
    return partial(
        source.audit,
        user=options.value("user"),
        since=begins_at,
        refused=bool(options.value("refused")),
        container=options.value("container"),
    )


def _newest(page: Callable[..., AuditPage], limit: int) -> tuple[list[AuditLine], AuditPage]:
    """Return the newest lines, fetched page by page, oldest first, and the first page."""
    first = page(limit=min(PAGE, limit))
    lines = list(first.lines)
    while lines and len(lines) < limit:
        older = page(limit=min(PAGE, limit - len(lines)), before=lines[0].number).lines
        if not older:
            break
        lines = [*older, *lines]
    return lines, first


def _screen(lines: Sequence[AuditLine], page: AuditPage, *, has_older: bool = False) -> Screen:
    now = time.time()
    notes = [f"older lines are not shown: --limit, at most {MAX_LIMIT}"] if has_older else []
    return Screen(
        rows=[_row(line, now) for line in lines],
        items=[line.to_json() for line in lines],
        ids=[str(line.number) for line in lines],
        simulated=page.simulated,
        notes=[*notes, *([page.trouble] if page.trouble else [])],
    )


def fetch(client: Client, options: Options) -> Screen:
    page, limit = _pages(client, options), options.limit(LIMIT, MAX_LIMIT)
    lines, first = _newest(page, limit)
    has_older = len(lines) >= limit and bool(page(limit=1, before=lines[0].number).lines)
    return _screen(lines, first, has_older=has_older)


def _follow_screens(client: Client, options: Options) -> Iterator[Screen]:
    """Yield the newest lines, then new ones as they come, without end."""
    page = _pages(client, options)
    lines, first = _newest(page, options.limit(LIMIT, MAX_LIMIT))
    yield _screen(lines, first)
    newest = first.newest
    while True:
        answer = page(limit=PAGE, after=newest)
        newest = answer.newest
        if answer.lines:
            yield _screen(answer.lines, answer)
        if len(answer.lines) < PAGE:
            time.sleep(FOLLOW_SECONDS)


LISTING = Listing(
    name="audit",
    details="""There is a line for each request that changed something or was refused, the newest last. Root
and trusted groups see all lines, others their own. No line holds a body, only its SHA-256.

\b
Examples:
  gpushare audit --refused --since 2h
  gpushare audit --container trainer -o wide
  gpushare audit --user alice --follow
  gpushare audit --pool --refused
  gpushare audit --since 2026-11-20 --limit 10000 --json
""",
    schema="gpushare.audit/1",
    columns=(
        Column("time"),
        Column("user"),
        Column("call"),
        Column("status", right=True),
        Column("said", least=16),
        Column("code", wide=True),
        Column("uid", wide=True, right=True),
        Column("pid", wide=True, right=True),
        Column("program", wide=True),
        Column("endpoint", wide=True),
        Column("name", wide=True),
        Column("container", wide=True),
        Column("digest", wide=True),
        Column("number", wide=True, right=True),
    ),
    fetch=fetch,
    own_options=(
        OwnOption(("--user",), "Show only this user's lines: a name or a uid.", "USER"),
        OwnOption(("--since",), "Show only lines from then on: 2h (ago), 22:00, 2026-11-20.", "TIME"),
        OwnOption(("--refused",), "Show only what was refused."),
        OwnOption(
            ("--container",),
            "Show only lines about this container (name or id), image, lease or GPU.",
            "NAME",
        ),
        OwnOption(("--pool",), "Show the coordinator's audit, on its machine, to its administrators."),
        OwnOption(("--limit",), f"Show at most so many lines.  [default: {LIMIT}]", "N"),
    ),
)


def _command() -> click.Command:
    """Build the command of a listing that can also follow new lines."""
    command = listing_command(LISTING, COMMANDS["audit"])
    assert command.callback is not None, "a listing has one"
    show_once: Callable[..., int] = command.callback

    def callback(*, follow: bool = False, as_json: bool = False, **values: Any) -> int:
        output = "ids" if values["quiet"] else "jsonl" if as_json and follow else "json" if as_json else None
        if output is not None:
            values["output"] = output
        return _follow(values) if follow else show_once(**values)

    command.callback = callback
    command.params[0:0] = [
        click.Option(["-f", "--follow"], is_flag=True, help="Go on with new lines as they come."),
        click.Option(
            ["--json", "as_json"],
            is_flag=True,
            help="Write JSON, as -o json does; with --follow, an object a line.",
        ),
    ]
    return command


def _follow(values: dict[str, Any]) -> int:
    own_values = {option.key: values[option.key] for option in LISTING.own_options}
    output = "jsonl" if values["output"] == "json" else values["output"]
    options = Options(output, headers=not values["no_headers"], own_values=own_values_of(own_values))
    for screen in _follow_screens(Client(), options):
        write(LISTING, options, [screen].pop)
        sys.stdout.flush()
        options = options._replace(headers=False)
    return 0


audit = _command()
