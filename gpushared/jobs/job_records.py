"""Write a pool's records as bytes and read them back, and cut writes into transactions that a store takes.

``job/ID`` is a job that is not over. ``ended/ID`` is a finished job, and ``over/TIME-ID`` sorts finished jobs
by their end. ``ended/ID`` without a value is a forgotten job, of which only the end is known, and
``gone/TIME-ID`` sorts forgotten jobs. ``member/NAME`` is a node. ``usage/``, ``turn/`` and ``project/`` hold
the accounts of projects.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpushared.domain.jobs.job import Ended, Job
from gpushared.domain.jobs.member import Member
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.lease import JobId
from gpushared.domain.scheduling.project_accounts import AccountsChange, ProjectAccounts, UsageRow
from gpushared.domain.scheduling.projects import Project
from gpushared.jobs.bounds import check_record
from gpushared.ports.job_store import (
    MAX_OPERATIONS,
    MAX_TRANSACTION_BYTES,
    Record,
    StoreUnavailable,
    Transaction,
)
from gpushared.storage.journal.rows import project_from_json, project_to_json
from gpushared.storage.records import RecordError, from_json, to_json

log = logging.getLogger(__name__)

JOB, ENDED, OVER, GONE, MEMBER = "job/", "ended/", "over/", "gone/", "member/"
USAGE, TURN, PROJECT = "usage/", "turn/", "project/"
SIGN_OF_LIFE = "pool/alive"
"""Write this record if nothing else is written, to test if the store accepts writes again."""
RECOVERING = "pool/recovering"
"""This record exists while not all nodes have reported after a loss of memory; it survives a restart."""

Changes = Mapping[str, bytes | None]
"""Map the records to put to their values and, with None, the records to delete, in one transaction."""

MICROSECONDS = 1_000_000


def job_changes(job: Job) -> Changes:
    """Return the record changes for a changed job; a finished job moves to the records of finished jobs."""
    body = to_json(Job, job).encode()
    if not isinstance(job.state, Ended):
        return {JOB + job.id: body}
    return {JOB + job.id: None, ENDED + job.id: body, over_key(job.state.at, job.id): b""}


def without(over: Job) -> Changes:
    """Return the changes that remove all records of a finished job."""
    assert isinstance(over.state, Ended), "others are not kept as such"
    return {ENDED + over.id: None, over_key(over.state.at, over.id): None}


def over_key(at: float, job: JobId) -> str:
    """Return the key that sorts finished jobs by their end."""
    return f"{OVER}{int(at * MICROSECONDS):017d}-{job}"


def job_of(key: str) -> JobId:
    """Return the job of a key below ``over/`` or ``gone/``."""
    return JobId(key.partition("-")[2])


def time_of(key: str) -> float:
    return int(key.partition("/")[2].partition("-")[0]) / MICROSECONDS


def member_bytes(member: Member) -> bytes:
    """Return a member's facts that outlive this coordinator, without facts that only heartbeats report."""
    return to_json(Member, member.unheard()).encode()


def account_changes(change: AccountsChange, known_projects: Iterable[str]) -> Iterator[Changes]:
    """Yield the changes of the accounts; ``known_projects`` have a record already."""
    for name, bucket, amount in change.usage:
        yield {f"{USAGE}{name}/{bucket}": b"%d" % amount}
    for name, at in (change.turns or {}).items():
        yield {f"{TURN}{name}": repr(at).encode()}
    if change.projects is not None:
        for gone in sorted(set(known_projects) - change.projects.keys()):
            yield {PROJECT + gone: None}
        for name, project in change.projects.items():
            yield {PROJECT + name: project_to_json(project).encode()}


def read_job(key: str, body: bytes) -> Job:
    """Read a job. Raises StoreUnavailable."""
    try:
        return from_json(Job, body)
    except RecordError as error:
        raise unreadable(key, error) from error


def read_member(key: str, body: bytes) -> Member:
    """Read a member; leave out an impossible inventory, which the node reports again.

    Raises StoreUnavailable.
    """
    try:
        member = from_json(Member, body)
    except RecordError as error:
        raise unreadable(key, error) from error
    try:
        if member.inventory is not None:
            check_record(member.inventory)
    except RequestError as error:
        log.warning("node=%s what it had is forgotten: %s", member.name, error)
        return replace(member, inventory=None)
    return member


def read_accounts(records: Mapping[str, Record]) -> ProjectAccounts:
    """Read the records of usage, turns and projects. Raises StoreUnavailable."""
    usage: list[UsageRow] = []
    turns: dict[str, float] = {}
    projects: dict[str, Project] = {}
    for key, record in sorted(records.items()):
        kind, _, name = key.partition("/")
        try:
            if kind + "/" == USAGE:
                project, _, bucket = name.rpartition("/")
                usage.append((project, int(bucket), int(record.value)))
            elif kind + "/" == TURN:
                turns[name] = float(record.value)
            elif kind + "/" == PROJECT:
                projects[name] = project_from_json(name, record.value.decode())
        except (ValueError, KeyError, TypeError) as error:
            raise unreadable(key, error) from error
    return ProjectAccounts(tuple(usage), turns, projects)


def unreadable(key: str, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"the store's record {key} is not one that this version can read: {error}",
        hint="install the version that wrote it",
    )


@dataclass(slots=True)
class Chunk:
    """Hold one transaction. With it ``concludes`` steps of the batch are wholly written."""

    changes: dict[str, bytes | None] = field(default_factory=dict)
    concludes: int = 0
    size: int = 0

    def takes(self, more: Sequence[Changes]) -> bool:
        """Return True if all of these changes fit in, too."""
        keys = self.changes.keys() | {key for changes in more for key in changes}
        size = self.size + sum(map(_size, more))
        return len(keys) <= MAX_OPERATIONS and size <= MAX_TRANSACTION_BYTES

    def add(self, changes: Changes) -> None:
        self.changes.update(changes)
        self.size += _size(changes)

    def transaction(self, epoch: int) -> Transaction:
        puts = {key: value for key, value in self.changes.items() if value is not None}
        deletes = tuple(key for key, value in self.changes.items() if value is None)
        return Transaction(epoch, puts, deletes)


def cut(steps: Sequence[Sequence[Changes]]) -> list[Chunk]:
    """Return the fewest transactions that keep the order. Each ``Changes`` stays in one transaction.

    The last change of a record wins. A step that fits in one transaction is not divided. The last transaction
    concludes all steps; it may be empty.
    """
    chunks = [Chunk()]
    for number, step in enumerate(steps, start=1):
        if chunks[-1].changes and not chunks[-1].takes(step):
            chunks.append(Chunk(concludes=number - 1))
        for changes in step:
            if chunks[-1].changes and not chunks[-1].takes([changes]):
                chunks.append(Chunk(concludes=number - 1))
            chunks[-1].add(changes)
        chunks[-1].concludes = number
    return chunks


def _size(changes: Changes) -> int:
    return sum(len(value or b"") for value in changes.values())
