"""Write the jobs of a coordinator into its history, and read them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from operator import attrgetter

from gpushared.domain.accounting.job_summary import JobSummary
from gpushared.domain.model.lease import LeaseId
from gpushared.storage.history.history_sources import chosen
from gpushared.storage.history.records import (
    HistoryFilter,
    JobBatch,
    JobHistory,
    JobResumption,
    LeaseWait,
)

_NAMES = [column.name for column in fields(JobSummary)]
_COLUMNS = ", ".join(_NAMES)
_PUT = f"INSERT OR REPLACE INTO job ({_COLUMNS}) VALUES ({', '.join('?' * len(_NAMES))})"  # noqa: S608
_row = attrgetter(*_NAMES)
_CONDITIONS = {
    "owner": "owner = :owner",
    "project": "project = :project",
    "lease_class": "lease_class = :lease_class",
    "job": "job = :job",
    "outcome": "outcome = :outcome",
    "owner_uid": "owner_uid = :owner_uid",
    "node": "',' || nodes || ',' LIKE '%,' || :node || ',%'",
    "lease": "0",
}


def put_jobs(db: sqlite3.Connection, batch: JobBatch) -> None:
    db.execute("UPDATE job_clock SET at_ms = ?, ahead_ms = ?", (batch.at_ms, batch.ahead_ms))
    db.executemany(_PUT, map(_row, batch.jobs))
    db.executemany(
        "INSERT OR REPLACE INTO job_wait VALUES (?, ?, ?)",
        [(job, reason, ms) for (job, reason), ms in batch.waits.items()],
    )


def resumption_of_jobs(db: sqlite3.Connection) -> JobResumption:
    (newest,) = db.execute("SELECT max(ended_at) FROM job").fetchone()
    rows = db.execute(f"SELECT {_COLUMNS} FROM job WHERE ended_at IS NULL")  # noqa: S608 - constants
    open_jobs = {row[0]: JobSummary(*row) for row in rows}
    waits = db.execute(
        "SELECT job, reason, ms FROM job_wait WHERE job IN (SELECT job FROM job WHERE ended_at IS NULL)"
    )
    return JobResumption(newest, open_jobs, {(job, reason): ms for job, reason, ms in waits})


def jobs(db: sqlite3.Connection, query: HistoryFilter, limit: int) -> list[JobHistory]:
    """Return the jobs that ended in the time, the newest end first; with a job's id also if it is not over.

    With a node these are the jobs of which an attempt ran there.
    """
    ahead_ms, at_ms = _clock(db)
    where, values = chosen(_CONDITIONS, query)
    ended = "ended_at * 1000 >= :since AND ended_at * 1000 < :until"
    if query.job:
        ended = f"(ended_at IS NULL OR ({ended}))"
    rows = db.execute(
        f"""SELECT {_COLUMNS} FROM job WHERE {ended} {where}
            ORDER BY ended_at IS NULL DESC, ended_at DESC LIMIT :limit""",  # noqa: S608 - constants
        {
            **values,
            "since": query.since_ms - ahead_ms,
            "until": query.until_ms - ahead_ms,
            "limit": limit,
        },
    ).fetchall()
    return [_history(db, JobSummary(*row), ahead_ms, at_ms) for row in rows]


def with_waits_of_jobs(
    db: sqlite3.Connection, query: HistoryFilter, leases: Sequence[LeaseWait]
) -> list[LeaseWait]:
    """Return the waits of requests, each job as one: its time in the coordinator's queue, and its leases'."""
    ahead_ms, at_ms = _clock(db)
    where, values = chosen(_CONDITIONS, query)
    rows = db.execute(
        f"""SELECT {_COLUMNS} FROM job WHERE submitted_at * 1000 < :until
            AND (ended_at IS NULL OR ended_at * 1000 > :since) {where}""",  # noqa: S608 - constants
        {**values, "since": query.since_ms - ahead_ms, "until": query.until_ms - ahead_ms},
    ).fetchall()
    job_waits = {row[0]: _wait(_history(db, JobSummary(*row), ahead_ms, at_ms), query) for row in rows}
    other_waits: list[LeaseWait] = []
    merged = set[str]()
    for lease in leases:
        wait = job_waits.get(lease.job)
        if wait is None:
            other_waits.append(lease)
        else:
            job_waits[lease.job] = replace(
                wait,
                waited_ms=wait.waited_ms + lease.waited_ms,
                waits_still=wait.waits_still or lease.waits_still,
                reasons=Counter(wait.reasons) + Counter(lease.reasons),
            )
            merged.add(lease.job)
    counted = [
        wait
        for wait in job_waits.values()
        if wait.waited_ms or wait.began_ms >= query.since_ms or wait.job in merged
    ]
    return [*other_waits, *counted]


def _clock(db: sqlite3.Connection) -> tuple[int, int]:
    at_ms, ahead_ms = db.execute("SELECT at_ms, ahead_ms FROM job_clock").fetchone()
    return ahead_ms, at_ms


def _history(db: sqlite3.Connection, job: JobSummary, ahead_ms: int, at_ms: int) -> JobHistory:
    reasons = dict(db.execute("SELECT reason, ms FROM job_wait WHERE job = ?", (job.job,)).fetchall())
    waits_now = 0 if job.queued_since is None else max(0, at_ms - round(job.queued_since * 1000))

    def day(at: float | None) -> int | None:
        return None if at is None else round(at * 1000) + ahead_ms

    return JobHistory(
        job,
        round(job.submitted_at * 1000) + ahead_ms,
        day(job.started_at),
        day(job.ended_at),
        job.waited_ms + waits_now,
        reasons,
    )


def _wait(history: JobHistory, query: HistoryFilter) -> LeaseWait:
    """Return the job's wait within the time; a wait in several pieces is taken for one from its submission."""
    job = history.summary
    begin, end = history.submitted_ms, history.submitted_ms + history.waited_ms
    return LeaseWait(
        node="",
        lease=LeaseId(job.job),
        owner=job.owner,
        project=job.project,
        lease_class=job.lease_class,
        gpu_count=job.gpu_count * job.node_count,
        memory_bytes=job.memory_bytes,
        share_permille=job.memory_permille if job.memory_permille is not None else job.compute_permille,
        began_ms=history.submitted_ms,
        waited_ms=max(0, min(end, query.until_ms) - max(begin, query.since_ms)),
        waits_still=job.queued_since is not None,
        reasons=history.reasons,
        job=job.job,
    )
