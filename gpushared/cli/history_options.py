"""Share what the commands on the history have in common: their options, their client, their figures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpushared.api.v1.history_messages import Account
from gpushared.cli import text
from gpushared.cli.errors import UsageError, wrong_values
from gpushared.cli.listing import Options, OwnOption
from gpushared.client.period import PERIODS, read_bounds

LIMIT = 50
MAX_LIMIT = 1000
GPU_HOUR_MS = 3_600_000
GIB_HOUR_MIB_SECONDS = 1024 * 3600
USUAL_SINCE = "7d"
PRECISE = 10
"""From so many hours on one decimal is enough."""
SMALL = 0.1
"""Fewer hours have three decimals."""

TIME = (
    OwnOption(
        ("--since",),
        "Begin here: 7d, 12h, 2026-11-01, yesterday, this-month, last-month.  [default: 7d]",
        "TIME",
    ),
    OwnOption(("--until",), "End here, in the same words.  [default: now]", "TIME"),
)
OWNERS = (
    OwnOption(("--user",), "Count only this user: a name or a uid.", "USER"),
    OwnOption(("--project",), "Count only this project.", "PROJECT"),
    OwnOption(("--class",), "Count only build, train or infer.", "CLASS"),
)
POOL = OwnOption(("--pool",), "Count all nodes of the pool.")
FILTERS = (*TIME, *OWNERS, OwnOption(("--node",), "Count only this node.", "NODE"), POOL)


def read_window(options: Options) -> dict[str, object]:
    """Return the filter of a call, as HistoryWindow of history.proto. Raises UsageError.

    A period that only ``--since`` names is meant as a whole.
    """
    now = datetime.now().astimezone()
    since, until = options.value("since"), options.value("until")
    with wrong_values("--since"):
        begin, end = read_bounds(since or USUAL_SINCE, now)
    if until:
        with wrong_values("--until"):
            end = read_bounds(until, now)[1]
    elif since not in PERIODS:
        end = now.timestamp()
    if begin >= end:
        raise UsageError(
            "the time ends before it begins", hint="choose an earlier --since or a later --until"
        )
    names = {name: options.value(name) for name in ("user", "project", "class", "node")}
    fields = {"since": begin, "until": end, **{name: value for name, value in names.items() if value}}
    return {**fields, "pool": True} if options.value("pool") else fields


def bounds(window: dict[str, object]) -> dict[str, object]:
    """Return the fields of a listing's JSON that say which time it covers."""
    return {"since": window["since"], "until": window["until"]}


def hours(gpu_ms: int) -> str:
    """Write GPU milliseconds as GPU hours: ``0.25``, ``31.5``."""
    return _figure(gpu_ms / GPU_HOUR_MS)


def memory_hours(mib_seconds: int) -> str:
    """Write GiB hours."""
    return _figure(mib_seconds / GIB_HOUR_MIB_SECONDS)


def _figure(amount: float) -> str:
    if not amount:
        return "0"
    return f"{amount:.1f}" if amount >= PRECISE else f"{amount:.2f}" if amount >= SMALL else f"{amount:.3f}"


def percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio * 100:.0f}%"


def lasted(ms: int) -> str:
    return text.span(ms / 1000)


def account_cells(account: Account) -> dict[str, str]:
    """Return the cells of an account, the same in every listing."""
    return {
        "gpu-hours": hours(account.held_gpu_ms),
        "well-used": hours(account.well_used_gpu_ms),
        "too-big": hours(account.too_big_gpu_ms),
        "idle": hours(account.idle_gpu_ms),
        "unseen": hours(account.unseen_gpu_ms),
        "gib-hours": memory_hours(account.held_mib_seconds),
        "use": percent(account.use_of_held_ratio),
        "memory-use": percent(account.memory_of_held_ratio),
    }


def by_option(groupings: Sequence[str]) -> OwnOption:
    return OwnOption(("--by",), f"Sum by {', '.join(groupings)}.  [default: {groupings[0]}]", "WORD")


def hint_at_more(limit: int) -> str:
    if limit < MAX_LIMIT:
        return f"there are more: --limit {min(MAX_LIMIT, 10 * limit)} shows more"
    return "there are more: an earlier --until shows them, and `gpushare history export` all"
