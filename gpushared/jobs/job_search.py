"""Store finished jobs, and find jobs by their names and page by page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import chain, islice
from typing import Protocol

from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import Ended, Job, Owner
from gpushared.domain.model.errors import NotFound, PermissionRefused, RequestError
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.units import shown
from gpushared.jobs.job_records import ENDED, GONE, OVER, job_of, over_key, read_job, time_of
from gpushared.jobs.job_requests import is_array_id
from gpushared.jobs.job_views import default_name
from gpushared.ports.job_store import MAX_OPERATIONS, JobStore, Record

MAX_NAMED = 3
MAX_LISTED = 1000
LISTED = 100
MAX_SCANNED = 20
"""Read at most this many pages of finished jobs for one page of a person's own."""
WALKED = 1000
"""Walk through this many jobs at a time, which takes about a millisecond."""
MAX_LIKE = 64
"""Search at most this many finished and no longer remembered jobs for an id's beginning."""
SHORTEST_BEGINNING = 3
_NUMBER = re.compile(r"[0-9]{0,19}")
"""Bound the digits: Python refuses to read a number of thousands of digits; jobs' numbers have 64 bits."""
LIVE, OVER_MARK, ARRAY = "l", "o", "a"
"""A page token begins with one of these letters: the stage of the listing."""
GONE_KEPT_SECONDS = 40 * 24 * 3600.0
"""Keep the fact that a job ended for longer than nodes keep records of finished attempts."""
OPERATIONS_EACH = 4
PRUNE_STEP = MAX_OPERATIONS // OPERATIONS_EACH
READS_AT_ONCE = 32

Write = Callable[[dict[str, bytes], tuple[str, ...]], Awaitable[int]]


class JobArchive(Protocol):
    """Read finished jobs, however long ago they ended; ``Archive`` is the real one."""

    async def get(self, job: JobId) -> Job | None: ...
    async def like(self, beginning: str, limit: int, token: str = "") -> Page: ...
    async def page(self, limit: int, token: str = "") -> Page: ...


@dataclass(frozen=True, slots=True)
class JobPage:
    """Hold a page of jobs; ``next_token`` is empty on the last page."""

    jobs: tuple[Job, ...]
    next_token: str = ""


@dataclass(frozen=True, slots=True)
class JobQuery:
    """Describe the jobs to list.

    ``everybody`` includes jobs of other users. ``array`` is an array's id or name.
    """

    ended: bool = False
    everybody: bool = False
    array: str = ""
    limit: int = LISTED
    token: str = ""


def may_see(job: Job, owner: Owner) -> bool:
    return owner.may_see_jobs_of(job.spec.owner)


async def find(live: PoolState, past: JobArchive, reference: str, owner: Owner) -> Job:
    """Find a job by its id, its container's name, an unmistakable beginning of its id, or its array.

    An array names a job only if it has one job. Raises NotFound, also for another person's job, and
    RequestError if the reference names several jobs.
    """
    if not reference:
        raise RequestError("no job is named", hint="`gpushare jobs` lists them")
    found = await _by_id(live, past, JobId(reference), owner)
    found = found or await _by_array(live, past, reference, owner) or _by_name(live, reference, owner)
    if found is None and len(reference) >= SHORTEST_BEGINNING and reference.isalnum():
        found = await _by_beginning(live, past, reference, owner)
    if found is None:
        raise NotFound(f"there is no job {shown(reference)}", hint="`gpushare jobs` lists them")
    return found


async def _by_id(live: PoolState, past: JobArchive, job: JobId, owner: Owner) -> Job | None:
    """Find a job by its id.

    Return None also for another user's job: its id must not hide the owner's names.
    """
    known = live.jobs.get(job) or live.ended.get(job)
    if known is None or not may_see(known, owner):
        known = await past.get(job)  # read also another user's job, so that the answer takes as long
    return known if known is not None and may_see(known, owner) else None


def _by_name(live: PoolState, name: str, owner: Owner) -> Job | None:
    """Find the running job of that name, else the newest: a name may be given again.

    Raises RequestError if several unfinished jobs have the name, of several people or on several nodes.
    """
    named = live.named(name, owner)
    unnamed = JobId(name.removeprefix(default_name("")))
    job = live.jobs.get(unnamed) or live.ended.get(unnamed)
    if job is not None and not job.spec.name and name == default_name(unnamed) and may_see(job, owner):
        named.append(job)
    going = [job for job in named if not isinstance(job.state, Ended)]
    if len(going) > 1:
        candidates = ", ".join(f"{job.id} ({job.spec.owner.principal})" for job in going[:5])
        raise RequestError(f"{shown(name)} is the name of {len(going)} jobs", hint=f"say which: {candidates}")
    return max(going or named, key=lambda job: job.sequence, default=None)


async def _by_array(live: PoolState, past: JobArchive, reference: str, owner: Owner) -> Job | None:
    """Return the only job of an array, by the array's id or name. Raises RequestError if it has several."""
    array = array_called(live, reference, owner) or (reference if is_array_id(reference) else "")
    if not array:
        return None
    asked = JobQuery(ended=True, array=array, limit=MAX_NAMED + 1)
    jobs = (await _of_array(live, past, asked, await _whose(live, past, array, owner))).jobs
    if len(jobs) > 1:
        many, more = (f"more than {MAX_NAMED}", ", ...") if len(jobs) > MAX_NAMED else (len(jobs), "")
        names = ", ".join(job.id for job in jobs[:MAX_NAMED])
        raise RequestError(
            f"{shown(reference)} is an array of {many} jobs",
            hint=f"name one: {names}{more}; or all: $(gpushare jobs -q --array {array})",
        )
    return next(iter(jobs), None)


def array_called(live: PoolState, name: str, owner: Owner) -> str:
    """Return the id of the array of a name, or an empty text if there is none or if a job has the name.

    Raises RequestError if several unfinished arrays have the name.
    """
    alone, of_arrays = live.named(name, owner), live.named_in_array(name, owner)
    if any(not isinstance(job.state, Ended) for job in alone):
        return ""
    going = {job.spec.array: job for job in of_arrays if not isinstance(job.state, Ended)}
    if len(going) > 1:
        candidates = ", ".join(f"{array} ({job.spec.owner.principal})" for array, job in going.items())
        raise RequestError(
            f"{shown(name)} is the name of {len(going)} arrays", hint=f"say which: {candidates}"
        )
    newest = max([*going.values()] or [*alone, *of_arrays], key=_sequence, default=None)
    return "" if newest is None or newest in alone else newest.spec.array or ""


async def _by_beginning(live: PoolState, past: JobArchive, beginning: str, owner: Owner) -> Job | None:
    """Find a job by the beginning of its id; among several, read only as many as the error names."""
    mine: dict[JobId, Job] = {}
    for over in (False, True):
        mine |= {job.id: job for job in islice(live.beginning(beginning, owner, over=over), MAX_NAMED + 1)}
    if len(mine) <= MAX_NAMED:
        older = await past.like(beginning, MAX_LIKE)
        mine |= {job.id: job for job in older.jobs if may_see(job, owner)}
    if len(mine) > 1:
        names = ", ".join(sorted(mine)[:MAX_NAMED])
        many, more = (f"more than {MAX_NAMED}", ", ...") if len(mine) > MAX_NAMED else (len(mine), "")
        raise RequestError(
            f"{shown(beginning)} is the beginning of {many} jobs", hint=f"say which: {names}{more}"
        )
    return next(iter(mine.values()), None)


# --- pages ---------------------------------------------------------------------------------------------


async def page(live: PoolState, past: JobArchive, asked: JobQuery, owner: Owner) -> JobPage:
    """Return a page of jobs: live ones in the order of submission, then finished ones, newest first.

    Raises PermissionRefused or RequestError.
    """
    if asked.everybody and not (owner.admin or owner.root_of):
        raise PermissionRefused(
            "only administrators see the jobs of others", hint="leave --all out for your own"
        )
    if asked.array:
        array = array_called(live, asked.array, owner) or asked.array
        whose = await _whose(live, past, array, owner)
        return await _of_array(live, past, replace(asked, array=array), whose)
    kind, place = asked.token[:1], asked.token[1:]
    if kind == OVER_MARK:
        return await _over(past, asked, owner, place, asked.limit)
    first = await _first(live, asked, owner, _number(place))
    if len(first) > asked.limit:
        return JobPage(tuple(first[:-1]), f"{LIVE}{first[-2].sequence}")
    if not asked.ended:
        return JobPage(tuple(first))
    over = await _over(past, asked, owner, "", asked.limit - len(first))
    return JobPage((*first, *over.jobs), over.next_token)


async def _first(live: PoolState, asked: JobQuery, owner: Owner, after: int) -> list[Job]:
    """Return a page of unfinished jobs after a number, and one more, in steps."""
    asker = replace(owner, admin=False)
    jobs = iter(live.jobs.values() if asked.everybody else live.beginning("", asker, over=False))
    first: list[Job] = []
    while some := list(islice(jobs, WALKED)):
        later = (job for job in _own(some, asked, owner) if job.sequence > after)
        first = nsmallest(asked.limit + 1, chain(first, later), key=_sequence)
        await asyncio.sleep(0)
    return first


async def _over(past: JobArchive, asked: JobQuery, owner: Owner, token: str, limit: int) -> JobPage:
    """Return a page of finished jobs, which may be short or empty if few of the read jobs are the owner's."""
    if limit <= 0:
        return JobPage((), f"{OVER_MARK}{token}")
    found: list[Job] = []
    for _ in range(MAX_SCANNED):
        newest = await past.page(MAX_LISTED, token)
        for job in _own(newest.jobs, asked, owner):
            found.append(job)
            if len(found) == limit:
                return JobPage(tuple(found), OVER_MARK + _place(job))
        token = newest.next_token
        if not token:
            return JobPage(tuple(found))
    return JobPage(tuple(found), OVER_MARK + token)


async def _whose(live: PoolState, past: JobArchive, array: str, owner: Owner) -> Owner:
    """Return the owner for whom to list the array: an administrator with jobs in it sees only these.

    Other users could give their jobs the ids that older releases gave by chance.
    """
    alone = replace(owner, admin=False)
    if owner.admin and (await _of_array(live, past, JobQuery(ended=True, array=array, limit=1), alone)).jobs:
        return alone
    return owner


async def _of_array(live: PoolState, past: JobArchive, asked: JobQuery, owner: Owner) -> JobPage:
    """Return a page of an array's jobs in the order of their ids, so that a page costs only its length.

    The page may have fewer jobs than the limit, even none, if other users' finished jobs bear the array's id
    too.
    """
    beginning, after, end = f"{asked.array}_", asked.token.removeprefix(ARRAY), ""
    going = live.beginning(beginning, owner, over=False, after=after)
    jobs = {job.id: job for job in islice(going, asked.limit + 1)}
    over: list[Job] = []
    for _ in range(MAX_SCANNED if asked.ended else 0):
        page = await past.like(beginning, asked.limit + 1, end or after)
        over += (job for job in page.jobs if may_see(job, owner))
        end = page.next_token
        if not end or len(over) > asked.limit:
            break
    jobs = {job.id: job for job in over} | jobs
    found = [jobs[name] for name in sorted(jobs) if not end or name <= end]
    if len(found) > asked.limit:
        return JobPage(tuple(found[: asked.limit]), f"{ARRAY}{found[asked.limit - 1].id}")
    return JobPage(tuple(found), end and ARRAY + end)


def _own(jobs: Iterable[Job], asked: JobQuery, owner: Owner) -> Iterator[Job]:
    if asked.everybody and owner.admin:
        return iter(jobs)
    return (job for job in jobs if is_own(job, owner) or (asked.everybody and is_of_node(job, owner)))


def is_own(job: Job, owner: Owner) -> bool:
    return job.spec.owner.person == owner.person


def is_of_node(job: Job, root: Owner) -> bool:
    """Return True if the job is of a user for whom the node of this root speaks, or runs or ran on that node.

    Root there could ask as such a user anyhow, and sees what runs on the node.
    """
    if not root.root_of:
        return False
    return job.spec.owner.realm == root.realm or root.root_of in job.nodes


def _sequence(job: Job) -> int:
    return job.sequence


def _place(job: Job) -> str:
    """Return the job's place among the finished jobs."""
    assert isinstance(job.state, Ended), "only those that are over are in the archive"
    return over_key(job.state.at, job.id).removeprefix(OVER)


def _number(text: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise RequestError("this page token is none of ours", hint="leave it out to begin anew")
    return int(text or 0)


@dataclass(frozen=True, slots=True)
class Page:
    """Hold a page; the next page begins at ``next_token``, which is empty on the last one."""

    jobs: tuple[Job, ...]
    next_token: str


class Archive:
    """Read finished jobs from the store; ``prune`` writes through its parameter.

    Nodes report attempts that ended up to a month ago. A forgotten job therefore stays known as finished for
    longer, so that nobody takes its attempts for a new job's.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store

    async def get(self, job: JobId) -> Job | None:
        """Return the job, if it is over and not yet forgotten."""
        body = await self._body(job)
        return read_job(ENDED + job, body) if body else None

    async def over(self, jobs: Collection[JobId]) -> frozenset[JobId]:
        """Return the jobs that are over, forgotten ones too."""
        asked, found = sorted(jobs), []
        for at in range(0, len(asked), READS_AT_ONCE):
            some = asked[at : at + READS_AT_ONCE]
            bodies = await asyncio.gather(*map(self._body, some))
            found += [job for job, body in zip(some, bodies, strict=True) if body is not None]
        return frozenset(found)

    async def like(self, beginning: str, limit: int, token: str = "") -> Page:
        """Return finished jobs whose ids begin like this, in the order of the ids, after the id in the token.

        A page leaves out the jobs that are forgotten. A thread decodes the jobs beside the event loop.
        """
        page = await self._store.page(ENDED + beginning, limit, after=ENDED + token if token else "")
        jobs = await asyncio.to_thread(_read, page)
        return Page(jobs, page[-1][0].removeprefix(ENDED) if len(page) == limit > 0 else "")

    async def page(self, limit: int, token: str = "") -> Page:
        """Return the newest finished jobs, or the next older ones after a page's token."""
        index = await self._store.page(OVER, limit, after=OVER + token if token else "", reverse=True)
        jobs: list[Job] = []
        for at in range(0, len(index), READS_AT_ONCE):
            some = [job_of(key) for key, _ in index[at : at + READS_AT_ONCE]]
            jobs += [job for job in await asyncio.gather(*map(self.get, some)) if job is not None]
        more = len(index) == limit > 0
        return Page(tuple(jobs), index[-1][0].removeprefix(OVER) if more else "")

    async def prune(self, write: Write, *, keep: int, ended_before: float, now: float) -> int:
        """Forget the oldest jobs beyond ``keep``, and all that ended before.

        Return how many were forgotten.
        """
        await self._prune_gone(write, now - GONE_KEPT_SECONDS)
        surplus, forgotten = await self._store.count(OVER) - keep, 0
        while True:
            oldest = [key for key, _ in await self._store.page(OVER, PRUNE_STEP)]
            gone = [
                key
                for number, key in enumerate(oldest)
                if forgotten + number < surplus or time_of(key) < ended_before
            ]
            if gone:
                await write(*_forgetting(gone))
            forgotten += len(gone)
            if len(gone) < PRUNE_STEP:
                return forgotten

    async def _prune_gone(self, write: Write, before: float) -> None:
        while True:
            oldest = [key for key, _ in await self._store.page(GONE, PRUNE_STEP)]
            gone = [key for key in oldest if time_of(key) < before]
            if gone:
                await write({}, tuple(one for key in gone for one in (key, ENDED + job_of(key))))
            if len(gone) < PRUNE_STEP:
                return

    async def _body(self, job: JobId) -> bytes | None:
        """Return the job's record: None for an unknown job, empty for a forgotten one."""
        key = ENDED + job
        # Among the keys that begin with this key, the key itself comes first.
        return next((record.value for name, record in await self._store.page(key, 1) if name == key), None)


def _read(page: Sequence[tuple[str, Record]]) -> tuple[Job, ...]:
    return tuple(read_job(key, record.value) for key, record in page if record.value)


def _forgetting(keys: Sequence[str]) -> tuple[dict[str, bytes], tuple[str, ...]]:
    puts = {ENDED + job_of(key): b"" for key in keys}
    return puts | {GONE + key.removeprefix(OVER): b"" for key in keys}, tuple(keys)
