"""Serve the calls of ``History``, from the history of a node or of a coordinator."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import wraps
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from google.protobuf.message import Message

from gpushared.api.v1 import history_pb2
from gpushared.config.history_settings import Others
from gpushared.domain.accounting.account import Account
from gpushared.domain.accounting.grouping import (
    Grouping,
    WaitGrouping,
    Window,
    grouped,
    grouped_waits,
    summed,
    wait_group,
    windows,
)
from gpushared.domain.model.errors import NotFound, PermissionRefused, RequestError
from gpushared.domain.model.request import Caller, LeaseClass
from gpushared.domain.model.units import shown
from gpushared.net.history_recent import RecentPoints, read_time, recent
from gpushared.net.history_report import lease_report
from gpushared.net.history_views import (
    MS_PER_SECOND,
    account_view,
    int64,
    job_view,
    lease_view,
    usage_row,
    waits_row,
)
from gpushared.net.unary_json import Call, Unary
from gpushared.storage.history.history_export import COLUMNS, ExportKind
from gpushared.storage.history.history_file import SqliteHistory
from gpushared.storage.history.records import HistoryFilter, JobHistory, LeaseHistory

LISTED = 50
MAX_LISTED = 1000
MAX_ATTEMPTS = 100
POINTS = 60
MAX_POINTS = 500
MAX_WINDOWS = 110
"""A year by weeks, or three months by days."""
LATEST_MS = 2**62
UID_DIGITS = 10
NAMES = ("image", "container_name", "job", "outcome_text")
"""The columns with names: the words on an outcome may hold the name of an image or of a container."""

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)
Flush = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Rights:
    """Say what callers see of others. ``others`` is read at each call, because a reload may change it.

    ``by_name``: owners are compared by name, because the numbers of users differ from node to node.
    """

    others: Callable[[], Others]
    by_name: bool = False

    def may_see_names(self, caller: Caller, lease: LeaseHistory) -> bool:
        """Return True if the caller sees the names of the lease's image and container."""
        return caller.trusted or self.is_own(caller, lease.summary.owner, lease.summary.owner_uid)

    def caller_key(self, caller: Caller) -> str | int:
        """Return the name or the uid that tells the caller from all others."""
        return caller.name if self.by_name else caller.uid

    def is_own(self, caller: Caller, owner: str, owner_uid: int) -> bool:
        return caller.name == owner if self.by_name else caller.uid == owner_uid

    def only_own(self, history_filter: HistoryFilter, caller: Caller) -> HistoryFilter:
        """Return the filter for the caller's own leases. Raises PermissionRefused if it chooses another user."""
        is_own = history_filter.owner in {"", caller.name} and history_filter.owner_uid in {None, caller.uid}
        if not is_own:
            raise PermissionRefused(
                "you may see your own leases only", hint="root and members of trusted groups see all"
            )
        if self.by_name:
            return replace(history_filter, owner=caller.name, owner_uid=None)
        return replace(history_filter, owner="", owner_uid=caller.uid)

    def jobs(self, history_filter: HistoryFilter, caller: Caller) -> HistoryFilter:
        """Narrow a filter for jobs to the caller's own, as ``gpushare jobs`` does, whatever the site allows."""
        return history_filter if caller.trusted else self.only_own(history_filter, caller)

    def leases(self, history_filter: HistoryFilter, caller: Caller) -> HistoryFilter:
        """Narrow a filter for single leases to those that the caller may see."""
        sees_all = caller.trusted or self.others() is Others.LEASES
        return history_filter if sees_all else self.only_own(history_filter, caller)

    def totals(self, history_filter: HistoryFilter, caller: Caller) -> HistoryFilter:
        """Narrow a filter for sums to those that the caller may see."""
        sees_all = caller.trusted or self.others() is not Others.NOTHING
        return history_filter if sees_all else self.only_own(history_filter, caller)


class HistoryApi:
    """Answer from the history. ``flush`` writes the newest events first, so that answers are up to date."""

    def __init__(
        self,
        history: SqliteHistory,
        flush: Flush,
        rights: Rights,
        *,
        simulated: Callable[[], bool],
        recent: RecentPoints | None = None,
    ) -> None:
        """Take ``recent``, the samples of a node's GPUs; without them ``Recent`` is not served."""
        self._history = history
        self._recent = recent
        self._flush = flush
        self._rights = rights
        self._simulated = simulated
        self._turns = WeakValueDictionary[str | int, asyncio.Lock]()

    def calls(self) -> dict[str, Unary]:
        return {
            f"gpushare.v1.History/{name}": Unary(request, self._in_turn(call))
            for name, request, call in (
                ("Ended", history_pb2.EndedRequest, self.ended),
                ("Report", history_pb2.ReportRequest, self.report),
                ("Usage", history_pb2.UsageRequest, self.usage),
                ("Waits", history_pb2.WaitsRequest, self.waits),
                ("Jobs", history_pb2.PastJobsRequest, self.jobs),
                ("Export", history_pb2.ExportRequest, self.export),
                ("Recent", history_pb2.RecentRequest, self.recent),
            )
            if name != "Recent" or self._recent is not None
        }

    def _in_turn(self, call: Call) -> Call:
        """Let each caller make one call at a time: all share one thread, which also writes the history."""

        # Any: each call takes the message of its own; the descriptor pairs the two.
        @wraps(call)
        async def handler(message: Any, caller: Caller) -> Message:
            # A lock is remembered as long as a call holds it or waits for it.
            turn = self._turns.setdefault(self._rights.caller_key(caller), asyncio.Lock())
            async with turn:
                return await call(message, caller)

        return handler

    async def ended(self, message: history_pb2.EndedRequest, caller: Caller) -> history_pb2.EndedResponse:
        """Return leases that are over, the newest end first."""
        limit = _within(message.limit or LISTED, MAX_LISTED, "leases")
        history_filter = replace(
            _filter(message.window), outcome=message.outcome, lease=message.lease, job=message.job
        )
        narrow = self._rights.jobs if message.job else self._rights.leases
        history_filter = narrow(history_filter, caller)
        await self._flush()
        leases = await self._history.leases(history_filter, limit + 1)
        return history_pb2.EndedResponse(
            leases=[self._view(lease, caller) for lease in leases[:limit]],
            more=len(leases) > limit,
            simulated=self._simulated(),
        )

    async def jobs(
        self, message: history_pb2.PastJobsRequest, caller: Caller
    ) -> history_pb2.PastJobsResponse:
        """Return jobs that are over, the newest end first."""
        limit = _within(message.limit or LISTED, MAX_LISTED, "jobs")
        history_filter = replace(_filter(message.window), outcome=message.outcome, job=message.job)
        history_filter = self._rights.jobs(history_filter, caller)
        await self._flush()
        jobs = await self._history.jobs(history_filter, limit + 1)
        return history_pb2.PastJobsResponse(
            jobs=[self._job_view(job, caller) for job in jobs[:limit]],
            more=len(jobs) > limit,
            simulated=self._simulated(),
        )

    def _job_view(self, job: JobHistory, caller: Caller) -> history_pb2.PastJob:
        is_own = self._rights.is_own(caller, job.summary.owner, job.summary.owner_uid)
        return job_view(job, with_names=caller.trusted or is_own)

    async def report(self, message: history_pb2.ReportRequest, caller: Caller) -> history_pb2.ReportResponse:
        """Report on a lease, or on all attempts of a job."""
        points = _within(message.points or POINTS, MAX_POINTS, "points")
        await self._flush()
        leases, job = await self._find_by_name(message, caller)
        reports = [
            await lease_report(self._history, lease, points, round(time.time() * 1000)) for lease in leases
        ]
        for lease, report in zip(leases, reports, strict=True):
            report.lease.CopyFrom(self._view(lease, caller))
        return history_pb2.ReportResponse(
            leases=reports,
            account=account_view(sum((lease.account for lease in leases), Account())),
            simulated=self._simulated(),
            job=None if job is None else self._job_view(job, caller),
        )

    async def _find_by_name(
        self, message: history_pb2.ReportRequest, caller: Caller
    ) -> tuple[list[LeaseHistory], JobHistory | None]:
        """Return the lease of a name, or the job of the name with the leases of its attempts, oldest first."""
        if not message.name:
            raise RequestError("no lease and no job is named", hint="gpushare history lists both")
        by_lease = self._rights.leases(HistoryFilter(node=message.node, lease=message.name), caller)
        by_job = self._rights.jobs(HistoryFilter(node=message.node, job=message.name), caller)
        if leases := await self._history.leases(by_lease, 1):
            return leases, None
        leases = await self._history.leases(by_job, MAX_ATTEMPTS)
        job = next(iter(await self._history.jobs(by_job, 1)), None)
        if not leases and job is None:
            raise NotFound(
                f"the history has no lease and no job {shown(message.name)}",
                hint="`gpushare history` lists those that you may see, with `--pool` on all nodes of a pool",
            )
        return sorted(leases, key=attrgetter("created_ms")), job

    # The rows of years are summed by another thread, because the loop would wait for a second.

    async def usage(self, message: history_pb2.UsageRequest, caller: Caller) -> history_pb2.UsageResponse:
        """Sum the GPU time that was held and used."""
        by = _choice(message.by, Grouping, Grouping.USER)
        history_filter = self._rights.totals(_filter(message.window), caller)
        await self._flush()
        rows = await self._history.accounts(history_filter)
        if by in {Grouping.DAY, Grouping.WEEK}:
            groups = [
                await asyncio.to_thread(
                    summed,
                    await self._history.accounts(
                        replace(history_filter, since_ms=window.since_ms, until_ms=window.until_ms)
                    ),
                    window.key,
                )
                for window in _windows(by, history_filter)
            ]
        else:
            groups = await asyncio.to_thread(grouped, rows, by)
        total = await asyncio.to_thread(summed, rows)
        waits = [row.waited_ms for row in await self._history.waits(history_filter) if row.waited_ms]
        return history_pb2.UsageResponse(
            rows=[usage_row(group) for group in groups],
            total=usage_row(total),
            waited_requests=len(waits),
            waited_ms=int64(sum(waits)),
            simulated=self._simulated(),
        )

    async def waits(self, message: history_pb2.WaitsRequest, caller: Caller) -> history_pb2.WaitsResponse:
        """Count how long requests waited."""
        by = _choice(message.by, WaitGrouping, WaitGrouping.CLASS)
        history_filter = self._rights.totals(_filter(message.window), caller)
        await self._flush()
        rows = await self._history.waits(history_filter)
        groups = await asyncio.to_thread(grouped_waits, rows, by)
        answer = history_pb2.WaitsResponse(
            rows=[waits_row(group) for group in groups], simulated=self._simulated()
        )
        if by is not WaitGrouping.REASON:
            total = wait_group("", ((row.waited_ms, row.waits_still) for row in rows))
            answer.total.CopyFrom(waits_row(total))
        return answer

    async def export(self, message: history_pb2.ExportRequest, caller: Caller) -> history_pb2.ExportResponse:
        """Return a page of the history's rows."""
        kind = _choice(message.kind, ExportKind, ExportKind.LEASES)
        history_filter = self._rights.leases(_filter(message.window), caller)
        if not message.page_token:
            await self._flush()
        page = await self._history.export(kind, history_filter, message.page_token)
        rows = [dict(row) for row in page.rows]
        if kind is ExportKind.LEASES and not caller.trusted:
            for row in rows:
                if not self._rights.is_own(caller, str(row["owner"]), int(row["owner_uid"] or 0)):
                    row.update({**dict.fromkeys(NAMES, ""), "attempt": 0})
        return history_pb2.ExportResponse(
            columns=COLUMNS[kind],
            rows=[json.dumps(row) for row in rows],
            next_page_token=page.after,
            simulated=self._simulated(),
        )

    async def recent(self, message: history_pb2.RecentRequest, caller: Caller) -> history_pb2.RecentResponse:
        """Return how each GPU was used of late, and who held it."""
        assert self._recent is not None, "a coordinator does not serve it"
        recent_time = read_time(message, time.time())
        holders = self._rights.leases(HistoryFilter(), caller)
        await self._flush()
        return history_pb2.RecentResponse(
            gpus=await recent(self._history, self._recent, recent_time, holders),
            step_seconds=recent_time.step_ms // MS_PER_SECOND,
            since=recent_time.since_ms / MS_PER_SECOND,
            until=recent_time.until_ms / MS_PER_SECOND,
            simulated=self._simulated(),
        )

    def _view(self, lease: LeaseHistory, caller: Caller) -> history_pb2.PastLease:
        return lease_view(lease, with_names=self._rights.may_see_names(caller, lease))


def _filter(window: history_pb2.HistoryWindow) -> HistoryFilter:
    """Return the filter of a window. Raises RequestError."""
    lease_class = getattr(window, "class")
    if lease_class:
        _choice(lease_class, LeaseClass, LeaseClass.TRAIN)
    is_number = window.user.isascii() and window.user.isdecimal() and len(window.user) <= UID_DIGITS
    return HistoryFilter(
        since_ms=_milliseconds(window.since),
        until_ms=_milliseconds(window.until) or LATEST_MS,
        owner="" if is_number else window.user,
        owner_uid=int(window.user) if is_number else None,
        project=window.project,
        lease_class=lease_class,
        node=window.node,
    )


def _milliseconds(seconds: float) -> int:
    if not math.isfinite(seconds) or not 0 <= seconds * 1000 < LATEST_MS:
        raise RequestError("a bound of the time is not a number of seconds", hint="give Unix seconds")
    return round(seconds * 1000)


def _choice(text: str, choices: type[ChoiceT], default: ChoiceT) -> ChoiceT:
    try:
        return choices(text) if text else default
    except ValueError:
        raise RequestError(
            f"{shown(text)} is not known here", hint="choose one of " + ", ".join(choices)
        ) from None


def _within(number: int, most: int, noun: str) -> int:
    if not 1 <= number <= most:
        raise RequestError(f"{number} {noun} are not possible", hint=f"give 1 to {most}")
    return number


def _windows(by: Grouping, history_filter: HistoryFilter) -> Iterable[Window]:
    """Return the days or weeks of the time, up to now. Raises RequestError if they are too many."""
    until_ms = min(history_filter.until_ms, round(time.time() * 1000))
    spans = list(islice(windows(by, history_filter.since_ms, until_ms), MAX_WINDOWS + 1))
    if len(spans) > MAX_WINDOWS:
        raise RequestError(
            f"the time has more than {MAX_WINDOWS} {by}s",
            hint="group by week" if by is Grouping.DAY else "choose a later --since",
        )
    return spans
