"""Gather the history of all nodes into the coordinator's own, part by part, over their links.

Each node is asked in turn for what the file lacks of it, and what it answers is written before it is asked
on. So a link that is cut and a coordinator that restarts go on from the file, and nothing counts twice. The
name of the node comes from its certificate; the owner of a job's lease from the coordinator's own jobs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from gpushared.daemon.tasks import TaskSet
from gpushared.daemon.troubles import Troubles
from gpushared.domain.accounting.summary import LeaseSummary
from gpushared.domain.jobs.job import Ended, Job, NodeName
from gpushared.domain.model.errors import (
    ConfigError,
    GpushareError,
    HistoryUnavailable,
    StateConflict,
)
from gpushared.domain.model.lease import JobId
from gpushared.pool.link import codec
from gpushared.pool.link.history_wire import position_bytes, read_part, unpack
from gpushared.storage.history import SqliteHistory
from gpushared.storage.history.history_parts import (
    Attempt,
    HistoryPart,
    HistoryPosition,
    LeaseOfJournal,
    plain,
)

log = logging.getLogger(__name__)

ROUND_SECONDS = 60.0
RETRY_SECONDS = 10.0
LOOK_SECONDS = 1.0
ANSWER_SECONDS = 60.0
PART_PAUSE_SECONDS = 0.2
"""Pause between the parts of a round, so that one node that was away long leaves room for others."""
AT_ONCE = 8
MAX_BYTES_A_DAY = 1 << 30
"""A node may send this much a day, unpacked, which also bounds what it fills of the disk. That is some years of 8
GPUs with 64 leases, or a day of them with a round every ten seconds. More comes the next day."""
MAX_JOURNALS_A_DAY = 16
DAY_SECONDS = 24 * 3600.0
REFRESH_SECONDS = 2.0
FRESH_SECONDS = 10.0
PART = "history"
PART_OF_NODES = "history-of-nodes"
SLACK_SECONDS = 24 * 3600.0
"""The clocks of node and coordinator may differ by this much, and a node may learn late that a job ended."""
ROUNDS_UNTIL_TROUBLE = 3
"""Raise a trouble after this many rounds of a node in a row with the same error."""


class QuestionPort(Protocol):
    """Ask connected nodes; ``LinkService`` is the real one."""

    def answering(self, kind: str) -> frozenset[NodeName]: ...

    async def ask(self, node: NodeName, kind: str, body: bytes, timeout_seconds: float) -> bytes: ...


@dataclass(slots=True)
class _Node:
    """Hold the round of a node. ``position`` is None until the file was asked for it."""

    position: HistoryPosition | None = None
    due: float = 0.0
    task: asyncio.Task[None] | None = None
    day_began: float = field(default_factory=time.monotonic)
    bytes_of_day: int = 0
    journals_of_day: set[int] = field(default_factory=set)
    error: str = ""
    rounds_with_error: int = 0

    def failed(self, error: str) -> None:
        self.rounds_with_error = self.rounds_with_error + 1 if error == self.error else 1
        self.error = error

    def succeeded(self) -> None:
        self.error, self.rounds_with_error = "", 0

    @property
    def is_busy(self) -> bool:
        return self.task is not None and not self.task.done()


class HistoryGatherer:
    """Gather by ``run`` as long as the coordinator runs."""

    def __init__(
        self,
        link: QuestionPort,
        history: SqliteHistory,
        troubles: Troubles,
        pool: str,
        owners: LeaseOwners,
        ahead_seconds: Callable[[], float],
    ) -> None:
        """``ahead_seconds`` returns by how much the time of day is ahead of the coordinator's clock."""
        self._link = link
        self._history = history
        self._troubles = troubles
        self._pool = pool
        self._owners = owners
        self._ahead_seconds = ahead_seconds
        self._nodes: dict[NodeName, _Node] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks = TaskSet("a node's history was not gathered")
        self._fresh_at = -FRESH_SECONDS

    async def run(self) -> None:
        """Begin the rounds that are due, for ever."""
        try:
            while True:
                self._begin_rounds()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._tasks.cancel()

    async def refresh(self) -> None:
        """Ask all nodes now, and wait a moment for their answers; a slow node's history stays as it was."""
        now = time.monotonic()
        if now - self._fresh_at < FRESH_SECONDS:
            return
        self._fresh_at = now
        for node in self._nodes.values():
            node.due = 0.0
        self._begin_rounds()
        tasks = [node.task for node in self._nodes.values() if node.task is not None and not node.task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=REFRESH_SECONDS)

    def _begin_rounds(self) -> None:
        answering, now = self._link.answering(codec.HISTORY), time.monotonic()
        for name, node in self._nodes.items():
            if name not in answering:
                node.position, node.due = None, now
                node.succeeded()
        self._report_standstills()
        for name in sorted(answering):
            node = self._nodes.setdefault(name, _Node())
            if not node.is_busy and now >= node.due:
                node.task = self._tasks.start(self._round(name, node))

    def _report_standstills(self) -> None:
        stuck = [
            f"the history of {name} stands still: {node.error}"
            for name, node in sorted(self._nodes.items())
            if node.rounds_with_error >= ROUNDS_UNTIL_TROUBLE
        ]
        if stuck:
            more = f" (and that of {len(stuck) - 1} other nodes)" if stuck[1:] else ""
            self._troubles.raised(PART_OF_NODES, stuck[0] + more)
        else:
            self._troubles.cleared(PART_OF_NODES)

    async def _round(self, name: NodeName, node: _Node) -> None:
        pause = ROUND_SECONDS
        async with self._slots:
            try:
                more = True
                while more:
                    more = await self._take_part(name, node)
                    await asyncio.sleep(PART_PAUSE_SECONDS)
            except (HistoryUnavailable, ConfigError) as error:
                node.position = None  # the file decides where to go on
                self._troubles.raised(PART, f"the history of the nodes is behind: {error}")
                pause = RETRY_SECONDS
            except GpushareError as error:
                node.position = None
                if node.error != str(error):
                    log.warning("node=%s its history was not gathered: %s", name, error)
                node.failed(str(error))
            else:
                node.succeeded()
                self._troubles.cleared(PART)
            finally:
                node.due = time.monotonic() + pause

    async def _take_part(self, name: NodeName, node: _Node) -> bool:
        """Ask for one part and write it; return True if there is more."""
        if node.position is None:
            node.position = await self._history.position(name)
        self._check_budget(name, node)
        body = await self._link.ask(name, codec.HISTORY, position_bytes(node.position), ANSWER_SECONDS)
        text = await asyncio.to_thread(unpack, body)
        node.bytes_of_day += len(text)
        part = await asyncio.to_thread(read_part, text, round(time.time() * 1000))
        if part is None:
            return False
        node.journals_of_day.add(part.journal)
        leases = await self._leases_of_pool(name, part)
        # A span belongs to the project of its lease, which is known here only when the lease is over.
        spans = tuple((number, replace(span, project="")) for number, span in part.spans)
        open_spans = tuple(replace(span, project="") for span in part.open_spans)
        named = replace(part, leases=leases, spans=spans, open_spans=open_spans)
        await self._history.write(named.batch(name))
        more = part.more and part.next != node.position
        node.position = part.next
        return more

    def _check_budget(self, name: NodeName, node: _Node) -> None:
        now = time.monotonic()
        if now - node.day_began > DAY_SECONDS:
            node.day_began, node.bytes_of_day = now, 0
            node.journals_of_day.clear()
        if node.bytes_of_day > MAX_BYTES_A_DAY or len(node.journals_of_day) > MAX_JOURNALS_A_DAY:
            raise StateConflict(f"node {name} sent more of its history than a node has in a day")

    async def _leases_of_pool(self, name: NodeName, part: HistoryPart) -> tuple[LeaseSummary, ...]:
        """Return the leases under the pool's names."""
        jobs = {lease.job for lease in part.leases if lease.pool == self._pool and lease.job}
        by_attempt = await self._history.leases_of_jobs(name, jobs)
        return tuple([await self._under_our_names(name, part, lease, by_attempt) for lease in part.leases])

    async def _under_our_names(
        self,
        name: NodeName,
        part: HistoryPart,
        lease: LeaseSummary,
        by_attempt: dict[Attempt, LeaseOfJournal],
    ) -> LeaseSummary:
        """Return the lease under the pool's names. Of the leases of an attempt the first one counts."""
        attempt = (lease.job if lease.pool == self._pool else "", lease.attempt)
        reported = LeaseOfNode(f"{lease.owner}@{part.realm}", lease.project, *attempt)
        named, here = await self._owners.named(name, reported), (part.journal, lease.lease)
        if (
            named.job is None
            or not self._is_within(named.job, lease, part)
            or by_attempt.setdefault(attempt, here) != here
        ):
            named = await self._owners.named(name, replace(reported, job=""))
            lease = replace(lease, job="", attempt=0)
        # A number of a user means nothing on another machine.
        return replace(lease, owner=named.owner, owner_uid=-1, project=named.project)

    def _is_within(self, job: Job, lease: LeaseSummary, part: HistoryPart) -> bool:
        """Return True if the lease lies between the submission and the end of the job, by the time of day."""
        ahead_seconds = part.ahead_ms / 1000 - self._ahead_seconds()
        begin = lease.created_at + ahead_seconds
        end = (part.at_ms / 1000 if lease.ended_at is None else lease.ended_at) + ahead_seconds
        job_end = job.state.at if isinstance(job.state, Ended) else math.inf
        return job.submitted_at - SLACK_SECONDS <= begin and end <= job_end + SLACK_SECONDS


@dataclass(frozen=True, slots=True)
class LeaseOfNode:
    """Name the owner, project and job of a lease as its node reports them."""

    principal: str
    project: str
    job: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class PoolNames:
    """Name the owner and project of a lease as the pool knows them. ``job`` is the lease's job, if any."""

    owner: str
    project: str
    job: Job | None = None


class LeaseOwners:
    """Name the owners and projects of nodes' leases as the pool knows them."""

    def __init__(
        self,
        job_of: Callable[[JobId], Awaitable[Job | None]],
        local_owner: Callable[[NodeName, str, str], str],
        may_use: Callable[[str, str], bool],
    ) -> None:
        """``local_owner`` returns the pool's person for a node, its user and the user's realm.

        ``may_use`` returns True if a person may use a project of the pool.
        """
        self._job_of = job_of
        self._local_owner = local_owner
        self._may_use = may_use

    async def named(self, node: NodeName, lease: LeaseOfNode) -> PoolNames:
        """Return the names of a lease.

        The lease counts as a job's only if the coordinator sent this attempt of the job to that node. A project
        that the owner may not use is the node's own, and gets the node's name.
        """
        job = await self._job_of(JobId(lease.job)) if lease.job else None
        if job is not None and node in job.nodes and 1 <= lease.attempt <= job.attempts:
            return PoolNames(job.spec.owner.person, job.project, job)
        user, _, realm = lease.principal.rpartition("@")
        owner, project = self._local_owner(node, user, realm), lease.project
        if project and not self._may_use(owner, project):
            project = plain(f"{project}@{node}")
        return PoolNames(owner, project)
