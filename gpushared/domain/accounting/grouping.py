"""Sum accounts and waits by user, project, day and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Protocol, assert_never

from gpushared.domain.accounting.account import Account, percentile
from gpushared.domain.model.gpu import WHOLE_PERMILLE
from gpushared.domain.model.units import format_memory

GIB = 1 << 30
SIZES_GIB = (4, 8, 16, 24, 40, 80)
SIZES_PERMILLE = (125, 250, 500)
GPU_COUNTS = (1, 2, 4, 8)


class Grouping(StrEnum):
    """Name what usage is summed by."""

    USER = "user"
    PROJECT = "project"
    CLASS = "class"
    GPU = "gpu"
    NODE = "node"
    MODEL = "model"
    DAY = "day"
    WEEK = "week"


class WaitGrouping(StrEnum):
    """Name what waits are counted by."""

    CLASS = "class"
    SIZE = "size"
    HOUR = "hour"
    REASON = "reason"
    USER = "user"
    PROJECT = "project"
    NODE = "node"


class Accounted(Protocol):
    """Give the account of a lease on a GPU, with the names it may be summed by.

    ``source`` is the number of the node's journal, which counts leases anew.
    """

    @property
    def source(self) -> int: ...
    @property
    def node(self) -> str: ...
    @property
    def lease(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def project(self) -> str: ...
    @property
    def lease_class(self) -> str: ...
    @property
    def gpu_label(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def account(self) -> Account: ...


class Waited(Protocol):
    """Give the wait of a request, with the names it may be counted by."""

    @property
    def node(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def project(self) -> str: ...
    @property
    def lease_class(self) -> str: ...
    @property
    def gpu_count(self) -> int: ...
    @property
    def memory_bytes(self) -> int | None: ...
    @property
    def share_permille(self) -> int | None: ...
    @property
    def began_ms(self) -> int: ...
    @property
    def waited_ms(self) -> int: ...
    @property
    def waits_still(self) -> bool: ...
    @property
    def reasons(self) -> Mapping[str, int]:
        """Return the milliseconds of each reason over the life of the request."""


@dataclass(slots=True)
class Group:
    """Sum the accounts of one group. ``leases`` has the source with each lease: sources repeat their numbers."""

    key: str
    account: Account = field(default_factory=Account)
    leases: set[tuple[int, str]] = field(default_factory=set)

    def add(self, row: Accounted) -> None:
        self.account += row.account
        self.leases.add((row.source, row.lease))


@dataclass(frozen=True, slots=True)
class WaitGroup:
    """Count the waits of one group, in milliseconds; the percentiles are of all its requests."""

    key: str
    requests: int
    waited: int
    waiting: int
    p50_ms: int
    p90_ms: int
    p99_ms: int
    longest_ms: int
    total_ms: int


@dataclass(frozen=True, slots=True)
class Window:
    """Bound a day or a week, in milliseconds of the time of day; a part of one at the ends of a query."""

    key: str
    since_ms: int
    until_ms: int


def summed(rows: Iterable[Accounted], key: str = "") -> Group:
    """Return the sum of all rows as one group."""
    group = Group(key)
    for row in rows:
        group.add(row)
    return group


def grouped(rows: Iterable[Accounted], by: Grouping) -> list[Group]:
    """Sum rows by a name, the most held first. Days and weeks are summed by ``windows`` instead."""
    name = _name_of(by)
    groups: dict[str, Group] = {}
    for row in rows:
        key = name(row)
        groups.setdefault(key, Group(key)).add(row)
    return sorted(groups.values(), key=lambda group: (-group.account.held_permille_ms, group.key))


def _name_of(by: Grouping) -> Callable[[Accounted], str]:
    match by:
        case Grouping.USER:
            return lambda row: row.owner
        case Grouping.PROJECT:
            return lambda row: row.project
        case Grouping.CLASS:
            return lambda row: row.lease_class
        case Grouping.GPU:
            return lambda row: f"{row.node}/{row.gpu_label}"
        case Grouping.NODE:
            return lambda row: row.node
        case Grouping.MODEL:
            return lambda row: row.model
        case Grouping.DAY | Grouping.WEEK:
            raise ValueError("days and weeks are windows")
        case _:
            assert_never(by)


def windows(by: Grouping, since_ms: int, until_ms: int, zone: tzinfo | None = None) -> Iterable[Window]:
    """Yield the days, or the weeks from Monday on, that meet a time. ``zone``: None is the machine's own."""
    days = 7 if by is Grouping.WEEK else 1
    day = datetime.fromtimestamp(since_ms / 1000, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    day -= timedelta(days=day.weekday() if by is Grouping.WEEK else 0)
    while (begin_ms := round(day.timestamp() * 1000)) < until_ms:
        key = day.strftime("%Y-%m-%d")
        day += timedelta(days=days)
        yield Window(key, max(begin_ms, since_ms), min(round(day.timestamp() * 1000), until_ms))


def grouped_waits(rows: Iterable[Waited], by: WaitGrouping, zone: tzinfo | None = None) -> list[WaitGroup]:
    """Count waits by a name, the longest sum first; hours of the week come in their order.

    By reason a request counts in each group that it waited for, with the time that it waited for it.
    """
    waits_by_key: dict[str, list[tuple[int, bool]]] = {}
    order: dict[str, int] = {}
    for row in rows:
        for key, ms, rank in _waits_of(row, by, zone):
            waits_by_key.setdefault(key, []).append((ms, row.waits_still))
            order[key] = rank
    groups = [wait_group(key, waits) for key, waits in waits_by_key.items()]
    return sorted(groups, key=lambda group: (order[group.key], -group.total_ms, group.key))


def wait_group(key: str, waits: Iterable[tuple[int, bool]]) -> WaitGroup:
    """Count requests, each with its wait in milliseconds, and True if it waits still."""
    entries = list(waits)
    lengths = sorted(float(ms) for ms, _ in entries)
    p50, p90, p99 = (round(percentile(lengths, ratio)) if lengths else 0 for ratio in (0.5, 0.9, 0.99))
    return WaitGroup(
        key,
        len(entries),
        sum(1 for ms, _ in entries if ms > 0),
        sum(1 for _, still in entries if still),
        p50,
        p90,
        p99,
        max((ms for ms, _ in entries), default=0),
        sum(ms for ms, _ in entries),
    )


def _waits_of(row: Waited, by: WaitGrouping, zone: tzinfo | None) -> Iterable[tuple[str, int, int]]:
    """Return the groups of a request, each with its milliseconds and the group's place in the order."""
    match by:
        case WaitGrouping.CLASS:
            return [(row.lease_class, row.waited_ms, 0)]
        case WaitGrouping.SIZE:
            key, rank = size_class(row.gpu_count, row.memory_bytes, row.share_permille)
            return [(key, row.waited_ms, rank)]
        case WaitGrouping.HOUR:
            began = datetime.fromtimestamp(row.began_ms / 1000, zone)
            return [(began.strftime("%a %H:00"), row.waited_ms, began.weekday() * 24 + began.hour)]
        case WaitGrouping.REASON:
            return [(reason, ms, 0) for reason, ms in _reasons_in_time(row).items()]
        case WaitGrouping.USER:
            return [(row.owner, row.waited_ms, 0)]
        case WaitGrouping.PROJECT:
            return [(row.project, row.waited_ms, 0)]
        case WaitGrouping.NODE:
            return [(row.node, row.waited_ms, 0)]
        case _:
            assert_never(by)


def _reasons_in_time(row: Waited) -> Mapping[str, int]:
    """Return the reasons of the wait within the time: each has the part that the time has of the whole wait."""
    whole = sum(row.reasons.values())
    if row.waited_ms >= whole:
        return row.reasons
    parts = {reason: ms * row.waited_ms // whole for reason, ms in row.reasons.items()}
    return {reason: ms for reason, ms in parts.items() if ms}


def size_class(gpu_count: int, memory_bytes: int | None, share_permille: int | None) -> tuple[str, int]:
    """Return the class of a request's size, and its place in the order: parts of a GPU, then whole ones."""
    if gpu_count > 1:
        most = next((count for count in GPU_COUNTS if gpu_count <= count), 0)
        return (f"up to {most} GPUs" if most else f"over {GPU_COUNTS[-1]} GPUs"), 200 + (most or 99)
    if memory_bytes is not None:
        most = next((size for size in SIZES_GIB if memory_bytes <= size * GIB), 0)
        text = f"up to {format_memory(most * GIB)}" if most else f"over {format_memory(SIZES_GIB[-1] * GIB)}"
        return text, most or 99
    share = share_permille or WHOLE_PERMILLE
    most = next((size for size in SIZES_PERMILLE if share <= size), WHOLE_PERMILLE)
    return ("1 GPU" if most == WHOLE_PERMILLE else f"up to {most / WHOLE_PERMILLE:g} GPU"), 100 + most // 125
