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
MAX_SEARCHED_BY_BEGINNING = 64
"""Read at most this many archived jobs whose ids have a beginning."""
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
    async def like(self, beginning: str, limit: int, token: str = "") -> JobPage: ...
    async def page(self, limit: int, token: str = "") -> JobPage: ...


@dataclass(frozen=True, slots=True)
class JobPage:
    """Hold a page of jobs. The next page begins at ``next_token``, which is empty on the last page."""

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


def known_job(state: PoolState, job: JobId) -> Job | None:
    """Return the job if the state has it, finished or not; the archive may have it in any case."""
    return state.jobs.get(job) or state.ended.get(job)


def may_see(job: Job, owner: Owner) -> bool:
    return owner.may_see_jobs_of(job.spec.owner)


async def find(state: PoolState, archive: JobArchive, reference: str, owner: Owner) -> Job:
    """Find a job by its id, its container's name, the beginning of its id, or its array.

    A beginning must fit one job only, and an array must have one job only. Raises NotFound, also for another
    person's job, and RequestError if the reference names several jobs.
    """
    if not reference:
        raise RequestError("no job is named", hint="`gpushare jobs` lists them")
    job = await _by_id(state, archive, JobId(reference), owner)
    job = job or await _by_array(state, archive, reference, owner) or _by_name(state, reference, owner)
    if job is None and len(reference) >= SHORTEST_BEGINNING and reference.isalnum():
        job = await _by_beginning(state, archive, reference, owner)
    if job is None:
        raise NotFound(f"there is no job {shown(reference)}", hint="`gpushare jobs` lists them")
    return job


async def _by_id(state: PoolState, archive: JobArchive, job_id: JobId, owner: Owner) -> Job | None:
    """Find a job by its id.

    Return None also for another user's job: its id must not hide the owner's names.
    """
    job = known_job(state, job_id)
    if job is None or not may_see(job, owner):
        job = await archive.get(job_id)  # read also another user's job, so that the answer takes as long
    return job if job is not None and may_see(job, owner) else None


def _by_name(state: PoolState, name: str, owner: Owner) -> Job | None:
    """Find the unfinished job of that name, else the newest finished one: a name may be given again.

    Raises RequestError if several unfinished jobs have the name, of several people or on several nodes.
    """
    named = state.named(name, owner)
    unnamed = JobId(name.removeprefix(default_name("")))
    job = known_job(state, unnamed)
    if job is not None and not job.spec.name and name == default_name(unnamed) and may_see(job, owner):
        named.append(job)
    unfinished = [job for job in named if not isinstance(job.state, Ended)]
    if len(unfinished) > 1:
        candidates = ", ".join(f"{job.id} ({job.spec.owner.principal})" for job in unfinished[:5])
        raise RequestError(
            f"{shown(name)} is the name of {len(unfinished)} jobs", hint=f"say which: {candidates}"
        )
    return max(unfinished or named, key=lambda job: job.sequence, default=None)


async def _by_array(state: PoolState, archive: JobArchive, reference: str, owner: Owner) -> Job | None:
    """Return the only job of an array, by the array's id or name. Raises RequestError if it has several."""
    array = array_called(state, reference, owner) or (reference if is_array_id(reference) else "")
    if not array:
        return None
    query = JobQuery(ended=True, array=array, limit=MAX_NAMED + 1)
    jobs = (await _of_array(state, archive, query, await _reader_of_array(state, archive, array, owner))).jobs
    if len(jobs) > 1:
        many, more = (f"more than {MAX_NAMED}", ", ...") if len(jobs) > MAX_NAMED else (len(jobs), "")
        names = ", ".join(job.id for job in jobs[:MAX_NAMED])
        raise RequestError(
            f"{shown(reference)} is an array of {many} jobs",
            hint=f"name one: {names}{more}; or all: $(gpushare jobs -q --array {array})",
        )
    return next(iter(jobs), None)


def array_called(state: PoolState, name: str, owner: Owner) -> str:
    """Return the id of the array of a name, or an empty text if there is none or if a job has the name.

    Raises RequestError if several unfinished arrays have the name.
    """
    not_in_arrays, of_arrays = state.named(name, owner), state.named_in_array(name, owner)
    if any(not isinstance(job.state, Ended) for job in not_in_arrays):
        return ""
    unfinished = {job.spec.array: job for job in of_arrays if not isinstance(job.state, Ended)}
    if len(unfinished) > 1:
        candidates = ", ".join(f"{array} ({job.spec.owner.principal})" for array, job in unfinished.items())
        raise RequestError(
            f"{shown(name)} is the name of {len(unfinished)} arrays", hint=f"say which: {candidates}"
        )
    newest = max([*unfinished.values()] or [*not_in_arrays, *of_arrays], key=_sequence_of, default=None)
    return "" if newest is None or newest in not_in_arrays else newest.spec.array or ""


async def _by_beginning(state: PoolState, archive: JobArchive, beginning: str, owner: Owner) -> Job | None:
    """Find a job by the beginning of its id; among several, read only as many as the error names."""
    jobs: dict[JobId, Job] = {}
    for over in (False, True):
        jobs |= {job.id: job for job in islice(state.beginning(beginning, owner, over=over), MAX_NAMED + 1)}
    if len(jobs) <= MAX_NAMED:
        older = await archive.like(beginning, MAX_SEARCHED_BY_BEGINNING)
        jobs |= {job.id: job for job in older.jobs if may_see(job, owner)}
    if len(jobs) > 1:
        names = ", ".join(sorted(jobs)[:MAX_NAMED])
        many, more = (f"more than {MAX_NAMED}", ", ...") if len(jobs) > MAX_NAMED else (len(jobs), "")
        raise RequestError(
            f"{shown(beginning)} is the beginning of {many} jobs", hint=f"say which: {names}{more}"
        )
    return next(iter(jobs.values()), None)


# --- pages ---------------------------------------------------------------------------------------------


async def page(state: PoolState, archive: JobArchive, query: JobQuery, owner: Owner) -> JobPage:
    """Return a page of jobs: unfinished ones in the order of submission, then finished ones, newest first.

    Raises PermissionRefused or RequestError.
    """
    if query.everybody and not (owner.admin or owner.root_of):
        raise PermissionRefused(
            "only administrators see the jobs of others", hint="leave --all out for your own"
        )
    if query.array:
        array = array_called(state, query.array, owner) or query.array
        reader = await _reader_of_array(state, archive, array, owner)
        return await _of_array(state, archive, replace(query, array=array), reader)
    kind, position = query.token[:1], query.token[1:]
    if kind == OVER_MARK:
        return await _finished_page(archive, query, owner, position, query.limit)
    first = await _unfinished_page(state, query, owner, _sequence_in_token(position))
    if len(first) > query.limit:
        return JobPage(tuple(first[:-1]), f"{LIVE}{first[-2].sequence}")
    if not query.ended:
        return JobPage(tuple(first))
    over = await _finished_page(archive, query, owner, "", query.limit - len(first))
    return JobPage((*first, *over.jobs), over.next_token)


async def _unfinished_page(state: PoolState, query: JobQuery, owner: Owner, after: int) -> list[Job]:
    """Return a page of unfinished jobs after a number, and one more, in steps."""
    asker = replace(owner, admin=False)
    jobs = iter(state.jobs.values() if query.everybody else state.beginning("", asker, over=False))
    first: list[Job] = []
    while some := list(islice(jobs, WALKED)):
        later = (job for job in _own(some, query, owner) if job.sequence > after)
        first = nsmallest(query.limit + 1, chain(first, later), key=_sequence_of)
        await asyncio.sleep(0)
    return first


async def _finished_page(
    archive: JobArchive, query: JobQuery, owner: Owner, token: str, limit: int
) -> JobPage:
    """Return a page of finished jobs, which may be short or empty if few of the read jobs are the owner's."""
    if limit <= 0:
        return JobPage((), f"{OVER_MARK}{token}")
    jobs: list[Job] = []
    for _ in range(MAX_SCANNED):
        newest = await archive.page(MAX_LISTED, token)
        for job in _own(newest.jobs, query, owner):
            jobs.append(job)
            if len(jobs) == limit:
                return JobPage(tuple(jobs), OVER_MARK + _place_in_archive(job))
        token = newest.next_token
        if not token:
            return JobPage(tuple(jobs))
    return JobPage(tuple(jobs), OVER_MARK + token)


async def _reader_of_array(state: PoolState, archive: JobArchive, array: str, owner: Owner) -> Owner:
    """Return the reader to list an array for: without the admin's right if an admin has jobs in the array.

    Other users could give their jobs the ids that older releases gave by chance.
    """
    without_admin = replace(owner, admin=False)
    first = JobQuery(ended=True, array=array, limit=1)
    if owner.admin and (await _of_array(state, archive, first, without_admin)).jobs:
        return without_admin
    return owner


async def _of_array(state: PoolState, archive: JobArchive, query: JobQuery, owner: Owner) -> JobPage:
    """Return a page of an array's jobs in the order of their ids, so that a page costs only its length.

    The page may have fewer jobs than the limit, even none, if other users' finished jobs bear the array's id
    too.
    """
    beginning, after, end = f"{query.array}_", query.token.removeprefix(ARRAY), ""
    unfinished = state.beginning(beginning, owner, over=False, after=after)
    jobs = {job.id: job for job in islice(unfinished, query.limit + 1)}
    over: list[Job] = []
    for _ in range(MAX_SCANNED if query.ended else 0):
        page = await archive.like(beginning, query.limit + 1, end or after)
        over += (job for job in page.jobs if may_see(job, owner))
        end = page.next_token
        if not end or len(over) > query.limit:
            break
    jobs = {job.id: job for job in over} | jobs
    listed = [jobs[name] for name in sorted(jobs) if not end or name <= end]
    if len(listed) > query.limit:
        return JobPage(tuple(listed[: query.limit]), f"{ARRAY}{listed[query.limit - 1].id}")
    return JobPage(tuple(listed), end and ARRAY + end)


def _own(jobs: Iterable[Job], query: JobQuery, owner: Owner) -> Iterator[Job]:
    if query.everybody and owner.admin:
        return iter(jobs)
    return (job for job in jobs if is_own(job, owner) or (query.everybody and is_of_node(job, owner)))


def is_own(job: Job, owner: Owner) -> bool:
    return job.spec.owner.person == owner.person


def is_of_node(job: Job, root: Owner) -> bool:
    """Return True if the job is of a user for whom the node of this root speaks, or runs or ran on that node.

    Root there could ask as such a user anyhow, and sees what runs on the node.
    """
    if not root.root_of:
        return False
    return job.spec.owner.realm == root.realm or root.root_of in job.nodes


def _sequence_of(job: Job) -> int:
    return job.sequence


def _place_in_archive(job: Job) -> str:
    """Return the job's place among the finished jobs."""
    assert isinstance(job.state, Ended), "only those that are over are in the archive"
    return over_key(job.state.at, job.id).removeprefix(OVER)


def _sequence_in_token(text: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise RequestError("this page token is none of ours", hint="leave it out to begin anew")
    return int(text or 0)


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
        in_order, over = sorted(jobs), []
        for at in range(0, len(in_order), READS_AT_ONCE):
            some = in_order[at : at + READS_AT_ONCE]
            bodies = await asyncio.gather(*map(self._body, some))
            over += [job for job, body in zip(some, bodies, strict=True) if body is not None]
        return frozenset(over)

    async def like(self, beginning: str, limit: int, token: str = "") -> JobPage:
        """Return finished jobs whose ids begin like this, in the order of the ids, after the id in the token.

        A page leaves out the jobs that are forgotten. A thread decodes the jobs beside the event loop.
        """
        page = await self._store.page(ENDED + beginning, limit, after=ENDED + token if token else "")
        jobs = await asyncio.to_thread(_read, page)
        return JobPage(jobs, page[-1][0].removeprefix(ENDED) if len(page) == limit > 0 else "")

    async def page(self, limit: int, token: str = "") -> JobPage:
        """Return the newest finished jobs, or the next older ones after a page's token."""
        index = await self._store.page(OVER, limit, after=OVER + token if token else "", reverse=True)
        jobs: list[Job] = []
        for at in range(0, len(index), READS_AT_ONCE):
            some = [job_of(key) for key, _ in index[at : at + READS_AT_ONCE]]
            jobs += [job for job in await asyncio.gather(*map(self.get, some)) if job is not None]
        more = len(index) == limit > 0
        return JobPage(tuple(jobs), index[-1][0].removeprefix(OVER) if more else "")

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
                await write({}, (*gone, *(ENDED + job_of(key) for key in gone)))
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
