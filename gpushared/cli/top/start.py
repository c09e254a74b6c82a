"""Serve ``gpushare top``: choose between the view for a terminal, one picture, and JSON."""

from __future__ import annotations

import json
import sys
import time

from gpushared.cli.errors import MAX_SHOWN, UsageError
from gpushared.cli.listing import Options, OwnOption, client_for, own_values_of
from gpushared.cli.sparkline import is_plain
from gpushared.cli.table import terminal_width, wants_colour
from gpushared.cli.top.answers import Scope, ask
from gpushared.cli.top.feed import Feed
from gpushared.cli.top.panels import panels
from gpushared.cli.top.view import ScreenSize, as_text, whole_picture
from gpushared.client import Client

USUAL_SECONDS = 2.0
LEAST_SECONDS, MAX_SECONDS = 0.5, 3600.0


OWN = (
    OwnOption(("--once",), "Print the picture once, with all rows, and end."),
    OwnOption(("--json",), "Print a JSON document, a line for each refresh."),
    OwnOption(("--mine",), "Show only your own leases."),
    OwnOption(("--pool",), "Show all nodes of the pool."),
    OwnOption(("--node",), "Show only this node of the pool; implies --pool.", "NAME"),
    OwnOption(("-n", "--interval"), "Ask the daemon this often, 0.5 to 3600.  [default: 2]", "SECONDS"),
    OwnOption(("--ascii",), "Draw with ASCII characters only."),
)


def start(options: Options) -> int:
    """Run the command, and return its exit code. Raises UsageError, and the errors of ``Client``."""
    interval_seconds = _seconds(options.value("interval"))
    node, once = options.value("node"), bool(options.value("once"))
    scope = Scope(pool=bool(options.value("pool") or node), node=node, mine=bool(options.value("mine")))
    client = client_for(Client(), Options(own_values=own_values_of({"pool": scope.pool})))
    if options.value("json"):
        return _json(client, scope, interval_seconds, once=once)
    plain, colour = bool(options.value("ascii")) or is_plain(sys.stdout), wants_colour(sys.stdout)
    if once or not _can_draw():
        return _once(client, scope, plain=plain, colour=colour)
    client.retries = None  # the view itself asks again, and says so
    from gpushared.cli.top.screen import Program, can_show_unicode

    plain = plain or not can_show_unicode()
    return Program(client, scope, interval_seconds, plain=plain, colour=colour).run()


def _seconds(text: str) -> float:
    try:
        seconds = float(text or USUAL_SECONDS)
    except ValueError:
        seconds = 0.0
    if not LEAST_SECONDS <= seconds <= MAX_SECONDS:
        raise UsageError(
            f"--interval {text[:MAX_SHOWN]!r} is not possible",
            hint=f"give seconds, {LEAST_SECONDS:g} to {MAX_SECONDS:g}",
        )
    return seconds


def _can_draw() -> bool:
    """Return True for a terminal whose cursor can be moved."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    import curses

    try:
        curses.setupterm()
    except curses.error as error:
        raise UsageError(
            "this terminal is not known, so nothing can be drawn on it",
            hint="set TERM to what the terminal is, or say --once",
        ) from error
    return curses.tigetstr("cup") is not None


def _once(client: Client, scope: Scope, *, plain: bool, colour: bool) -> int:
    news = Feed(client, scope, USUAL_SECONDS, lambda: None).once()
    assert news.answers is not None, "they came, or an error was raised"
    now = time.time()
    shown = panels(news.answers, now, filter_text="", orders={}, plain=plain)
    size = ScreenSize(terminal_width(sys.stdout), 0, plain)
    sys.stdout.write(as_text(whole_picture(news, shown, size, now), colour=colour))
    return 0


def _json(client: Client, scope: Scope, interval_seconds: float, *, once: bool) -> int:
    while True:
        sys.stdout.write(json.dumps(ask(client, scope, time.time()).to_json()) + "\n")
        sys.stdout.flush()
        if once:
            return 0
        time.sleep(interval_seconds)
