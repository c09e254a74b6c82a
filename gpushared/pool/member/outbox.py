"""Keep jobs for the pool that were submitted on this node, until the pool reports their end.

The jobs survive a pool that loses its memory. The outbox also stores the pool's newest state of each job, to
show it while the pool does not answer.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from google.protobuf.message import DecodeError

from gpushared.api.v1 import jobs_pb2, link_pb2
from gpushared.domain.jobs.job import JobSpec
from gpushared.domain.jobs.job_commands import name_taken
from gpushared.domain.model.errors import GpushareError, LimitReached, NotFound
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.request import Process
from gpushared.jobs.job_records import Changes, cut
from gpushared.pool.link.codec import refused
from gpushared.pool.member.node_ports import OutboxJob
from gpushared.pool.trust.assertions import Asserter
from gpushared.storage.records import RecordError, from_json, to_json

log = logging.getLogger(__name__)

OUTBOX = "outbox/"
MAX_KEPT = 50_000
"""Bound the jobs that are not over."""
MAX_KEPT_OF_ONE = 20_000
"""Bound one user's jobs that are not over: two large arrays."""
MAX_OVER = 1000
"""Show this many finished jobs for a while."""
Write = Callable[[Mapping[str, bytes], tuple[str, ...]], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Record that a user wants the job cancelled."""

    grace_seconds: int
    principal: str
    groups: tuple[str, ...] = ()
    acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class PoolRefusal:
    """Record the pool's refusal of a job, as in ``link_pb2.Refuse``."""

    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class OutboxRecord:
    """Record a job.

    ``update`` is its newest ``gpushare.v1.Job`` in base64, stored with the time of arrival.
    """

    job: JobId
    sequence: int
    spec: JobSpec
    held: bool
    priority: int
    principal: str
    groups: tuple[str, ...] = ()
    came_at: float = 0.0
    taken: bool = False
    withdrawal: Withdrawal | None = None
    update: str = ""
    updated_at: float = 0.0
    over: bool = False
    refused: PoolRefusal | None = None
    holder: Process | None = None
    """Identify the process that waits for an interactive job."""

    def mirrored(self) -> jobs_pb2.Job | None:
        """Return the newest state of the job that the pool reported."""
        if not self.update:
            return None
        with contextlib.suppress(DecodeError, ValueError):
            return jobs_pb2.Job.FromString(base64.b64decode(self.update))
        return None


class OutboxSender(Protocol):
    """Send new jobs and cancellations over the link."""

    def submit(self, job: JobId) -> None: ...
    def cancel(self, job: JobId) -> None: ...


class Outbox:
    """Keep the records. ``write`` is one transaction of the store that ``records`` were loaded from.

    Every change raises the errors of ``write``, and then changes nothing.
    """

    def __init__(
        self,
        records: Mapping[str, bytes],
        write: Write,
        asserter: Callable[[], Asserter],
        now: Callable[[], float],
    ) -> None:
        self.sender: OutboxSender | None = None
        self._write = write
        self._asserter = asserter
        self._now = now
        self._records = {record.job: record for record in _read(records)}
        self._attended = {record.job for record in self._records.values() if record.holder is not None}
        self._next = 1 + max((record.sequence for record in self._records.values()), default=0)
        self._changed: dict[JobId, asyncio.Event] = {}
        self._turn = asyncio.Lock()

    # --- for the node's users --------------------------------------------------------------------------

    async def put(
        self,
        jobs: Sequence[tuple[JobId, JobSpec]],
        *,
        principal: str,
        groups: tuple[str, ...] = (),
        held: bool = False,
        priority: int = 0,
        holder: Process | None = None,
    ) -> None:
        """Add the jobs durably, all or none; jobs that are in the outbox already stay unchanged.

        Raises LimitReached, StateConflict.
        """
        async with self._turn:
            new = [(job, spec) for job, spec in jobs if job not in self._records]
            unfinished = [record for record in self._records.values() if not record.over]
            if len(unfinished) + len(new) > MAX_KEPT:
                raise LimitReached(f"this node keeps {MAX_KEPT} jobs for the pool already", hint="try later")
            if sum(record.principal == principal for record in unfinished) + len(new) > MAX_KEPT_OF_ONE:
                raise LimitReached(
                    f"this node keeps {MAX_KEPT_OF_ONE} jobs of {principal} for the pool already",
                    hint="wait for some of them, or cancel some",
                )
            _check_names([spec for _, spec in new if not spec.interactive], principal, unfinished)
            records = [
                OutboxRecord(job, number, spec, held, priority, principal, groups, self._now(), holder=holder)
                for number, (job, spec) in enumerate(new, start=self._next)
            ]
            await self._keep(records)
            self._next += len(records)
        if self.sender is not None:
            for record in records:
                self.sender.submit(record.job)

    async def withdraw(
        self, job: JobId, grace_seconds: int, *, principal: str, groups: tuple[str, ...] = ()
    ) -> None:
        """Cancel the job once the pool can be reached; ignore a job that is not in the outbox."""
        async with self._turn:
            record = self._records.get(job)
            if record is None or record.over:
                return
            before = record.withdrawal
            if before is not None and not before.acknowledged and before.principal == record.principal:
                # The pool may refuse other users' cancellations; they must not replace the owner's own one.
                principal, groups = before.principal, before.groups
            await self._keep([replace(record, withdrawal=Withdrawal(grace_seconds, principal, groups))])
        if self.sender is not None:
            self.sender.cancel(job)

    async def forget(self, job: JobId) -> None:
        """Delete a refused job whose owner got the refusal."""
        async with self._turn:
            if job in self._records:
                await self._write({}, (OUTBOX + job,))
                del self._records[job]
        self._wake(job)

    def record(self, job: JobId) -> OutboxRecord | None:
        """Return the record of a job, over or not."""
        return self._records.get(job)

    def records(self) -> list[OutboxRecord]:
        """Return all records in the order of submission."""
        return sorted(self._records.values(), key=lambda record: record.sequence)

    def attended(self) -> list[OutboxRecord]:
        """Return the records that are not over and for which a known process waits."""
        records = (self._records[job] for job in self._attended if job in self._records)
        attended = [record for record in records if not record.over]
        self._attended = {record.job for record in attended}
        return attended

    async def changed(self, job: JobId, timeout_seconds: float) -> bool:
        """Wait until the job's record changes; return False if the time ends first."""
        event = self._changed.setdefault(job, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                return await event.wait()
        return False

    # --- for the link -----------------------------------------------------------------------------------

    def jobs(self) -> tuple[JobId, ...]:
        return tuple(record.job for record in self.records() if not record.over)

    def job(self, job: JobId) -> OutboxJob | None:
        record = self._records.get(job)
        if record is None or record.over:
            return None
        # A pool that does not have the job yet must not start it before it receives the cancellation.
        withdrawal = record.withdrawal
        is_withdrawn = (
            withdrawal is not None
            and not withdrawal.acknowledged
            and withdrawal.principal == record.principal
        )
        kept_seconds = max(0.0, self._now() - record.came_at) if record.came_at else 0.0
        return OutboxJob(record.spec, record.held or is_withdrawn, record.priority, kept_seconds)

    def cancels(self) -> dict[JobId, int]:
        return {
            record.job: record.withdrawal.grace_seconds
            for record in self.records()
            if record.withdrawal is not None and not record.withdrawal.acknowledged and not record.over
        }

    def vouch(self, job: JobId, digest: bytes) -> bytes:
        """Sign the assertion now: its age does not depend on how long the job waited here."""
        record = self._records[job]
        return self._asserter().sign(record.principal, record.groups, digest, self._now())

    def vouch_cancel(self, job: JobId, digest: bytes) -> bytes:
        withdrawal = self._records[job].withdrawal
        assert withdrawal is not None, "the link cancels only the jobs of ``cancels``"
        return self._asserter().sign(withdrawal.principal, withdrawal.groups, digest, self._now())

    async def taken(self, job: JobId, refusal: GpushareError | None) -> None:
        """Record the coordinator's answer.

        Ignore a refusal of a job that the pool accepted once: it may run.
        """
        async with self._turn:
            record = self._records.get(job)
            if record is None or (refusal is not None and record.taken):
                return
            if refusal is None:
                newer = replace(record, taken=True, refused=None, over=False)
            else:
                pool_refusal = PoolRefusal(refusal.code, refusal.message, refusal.hint)
                newer = replace(record, taken=False, refused=pool_refusal, over=True)
            await self._keep([newer])
        # The pool may have received the cancellation first, when it did not know the job yet.
        if self.sender is not None and job in self.cancels():
            self.sender.cancel(job)

    async def cancelled(self, job: JobId, refusal: GpushareError | None) -> None:
        async with self._turn:
            record = self._records.get(job)
            if record is None or record.withdrawal is None:
                return
            if isinstance(refusal, NotFound) and not record.taken:
                return  # sent again once the pool has the job
            if refusal is not None:
                log.warning("the pool does not cancel job=%s: %s", job, refusal)
            await self._keep([replace(record, withdrawal=replace(record.withdrawal, acknowledged=True))])

    async def updated(self, update: link_pb2.JobUpdate) -> None:
        try:
            job = jobs_pb2.Job.FromString(update.job)
        except DecodeError as error:
            log.warning("the pool's state of a job cannot be read: %s", error)
            return
        async with self._turn:
            record = self._records.get(JobId(job.id))
            if record is None or record.over:
                return
            text = base64.b64encode(update.job).decode()
            newer = replace(record, taken=True, update=text, updated_at=self._now(), over=update.over)
            await self._keep([newer])
            if update.over:
                await self._forget_oldest()

    # --- keeping ---------------------------------------------------------------------------------------

    async def _keep(self, records: Sequence[OutboxRecord]) -> None:
        steps: list[Changes] = [{OUTBOX + each.job: to_json(OutboxRecord, each).encode()} for each in records]
        written: list[str] = []
        try:
            for chunk in cut([[step] for step in steps]):
                puts = {key: value for key, value in chunk.changes.items() if value is not None}
                if puts:
                    await self._write(puts, ())
                written += puts
        except GpushareError:
            gone = [key for key in written if JobId(key.removeprefix(OUTBOX)) not in self._records]
            for first in range(0, len(gone), 100):
                await self._write({}, tuple(gone[first : first + 100]))
            raise
        for record in records:
            self._records[record.job] = record
            if record.holder is not None:
                self._attended.add(record.job)
            self._wake(record.job)

    async def _forget_oldest(self) -> None:
        over = [record for record in self._records.values() if record.over]
        over.sort(key=lambda record: record.updated_at)
        for record in over[: max(0, len(over) - MAX_OVER)]:
            await self._write({}, (OUTBOX + record.job,))
            del self._records[record.job]

    def _wake(self, job: JobId) -> None:
        if (event := self._changed.pop(job, None)) is not None:
            event.set()


def _check_names(specs: Sequence[JobSpec], principal: str, unfinished: Sequence[OutboxRecord]) -> None:
    """Raises StateConflict if a kept job has the name of a new one; the check also works without the pool."""
    names = {spec.name for spec in specs if spec.name}
    if not names:
        return
    for record in unfinished:
        if record.spec.name in names and record.principal == principal:
            raise name_taken(record.spec.name, record.job)


def refusal_of(record: OutboxRecord) -> GpushareError | None:
    """Return the error with which the pool refused the job, or None if it did not."""
    refusal = record.refused
    return None if refusal is None else refused(refusal.code, refusal.message, refusal.hint)


def _read(records: Mapping[str, bytes]) -> list[OutboxRecord]:
    readable: list[OutboxRecord] = []
    for key, value in records.items():
        try:
            readable.append(from_json(OutboxRecord, value))
        except RecordError as error:
            log.warning("the outbox's record %s cannot be read and stays as it is: %s", key, error)
    return readable
