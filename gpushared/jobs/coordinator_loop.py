"""Run the coordinator's loop: only here the pool's state changes, and its changes are stored.

Events come in through ``send``. The loop writes a batch of events in as few transactions as possible. A step
therefore may take effect before a later step of the same batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from weakref import WeakValueDictionary

from gpushared.daemon.tasks import within
from gpushared.daemon.troubles import Troubles
from gpushared.daemon.write_ahead_loop import MAX_PENDING, SentEvent, WriteAheadLoop
from gpushared.domain.jobs import coordinator_events as events
from gpushared.domain.jobs.cluster_snapshot import ClusterSnapshot
from gpushared.domain.jobs.coordinator import handle
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.coordinator_state import PoolState, PoolStep
from gpushared.domain.jobs.job import Job, Owner
from gpushared.domain.jobs.job_commands import check_whose
from gpushared.domain.jobs.member import Member
from gpushared.domain.jobs.protocol import CancelPart
from gpushared.domain.model.backoff import backoff_seconds
from gpushared.domain.model.errors import (
    GpushareError,
    LimitReached,
    RequestError,
    StateConflict,
    TimedOut,
    Unavailable,
)
from gpushared.domain.model.lease import JobId
from gpushared.domain.scheduling.pass_records import NEVER
from gpushared.jobs.job_records import (
    JOB,
    MEMBER,
    RECOVERING,
    SIGN_OF_LIFE,
    Changes,
    Chunk,
    account_changes,
    cut,
    job_changes,
    member_bytes,
    without,
)
from gpushared.jobs.job_search import Archive, known_job
from gpushared.jobs.standby import Standby
from gpushared.ports import Clock
from gpushared.ports.job_store import Deposed, JobStore, StoreUnavailable, Transaction

log = logging.getLogger(__name__)

MAX_PENDING_SUBMITTED = 3072
"""Accept no new jobs with this many pending: a user who submits without end must not block the events of
nodes."""
RETRY_SECONDS = 1.0
FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 8.0
SLOW_WRITE_SECONDS = 1.0
"""Raise the trouble ``SLOW_STORE`` after a write that took longer."""
SLOW_STORE = "slow store"
DAY_TIME_SECONDS = 1.0
PASS_SHARE = 4
"""Wait this many times the duration of the last pass over the queue before the next, if that is short."""
PASS_PAUSE_SECONDS = 0.001
"""Wait at least this long, so that one pass handles events that come together."""

Subscriber = Callable[[events.PoolInstruction], None]


_Sent = SentEvent[events.PoolEvent, PoolStep]


class PoolLoop(WriteAheadLoop[PoolState, events.PoolEvent, PoolStep]):
    """Own the pool's state, and write its records. Other parts write their own records with ``write``."""

    def __init__(self, state: PoolState, store: JobStore, clock: Clock, troubles: Troubles) -> None:
        """The store leads already, with ``state.epoch``, unless ``standby`` is set before the loop runs."""
        super().__init__(state, clock, "the coordinator")
        self.standby: Standby | None = None
        """How this coordinator stands by; None while it leads."""
        self.revision = state.revision
        """Hold the newest known revision of the store."""
        self.snapshot = ClusterSnapshot()
        """Hold the members' GPUs as the last scheduling passes and explanations saw them."""
        self.archive = Archive(store)
        self._store = store
        self._troubles = troubles
        self._epoch = state.epoch
        self._no_pass_until = 0.0
        self._writer = StepWriter(state)
        self._subscribers: list[Subscriber] = []
        self._on_new_epoch: list[Callable[[], None]] = []
        # The references are weak: the waiting callers hold the events.
        self._job_changed: WeakValueDictionary[JobId, asyncio.Event] = WeakValueDictionary()
        self._healing: asyncio.Task[None] | None = None

    # --- for other parts -------------------------------------------------------------------------------

    async def send(self, event: events.PoolEvent) -> Job | None:
        """Handle and write the event, and return its job as it then is. Raises errors of the tree."""
        if isinstance(event, events.JobSubmitted):
            if await self._is_over(event):
                return await self._finished_job(event.job, event.spec.owner)
            if event.spec.after:
                event = await self._with_past(event)
        elif isinstance(event, events.NodeRegistered):
            event = await self._without_forgotten(event)
        return await self._job_after(event)

    async def take(self, event: events.PoolEvent, most_pending: int = MAX_PENDING) -> PoolStep:
        if self.standby is not None:
            raise self.standby.refusal()
        return await super().take(event, most_pending)

    async def _job_after(self, event: events.PoolEvent) -> Job | None:
        if isinstance(event, events.JobSubmitted):
            return (await self.take(event, MAX_PENDING_SUBMITTED)).job
        return (await self.take(event)).job

    async def write(
        self,
        puts: Mapping[str, bytes],
        deletes: Iterable[str] = (),
        compares: Mapping[str, int] | None = None,
    ) -> int:
        """Write records of other parts in one transaction; return the revision.

        Raises as ``JobStore.commit``.
        """
        if self.standby is not None:
            raise self.standby.refusal()
        while True:
            epoch = self._epoch
            try:
                revision = await self._store.commit(Transaction(epoch, puts, tuple(deletes), compares))
            except Deposed:
                if epoch == self._epoch:
                    raise
            else:
                self.revision = max(self.revision, revision)
                return revision

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call the subscriber with each instruction after its cause is durable.

        Return the unsubscribe function.
        """
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def on_new_epoch(self, renew: Callable[[], None]) -> None:
        """Call ``renew`` when the epoch rises because nodes knew a higher one: their streams must end."""
        self._on_new_epoch.append(renew)

    async def job_changed(self, job: JobId, timeout_seconds: float) -> bool:
        """Wait until this job changes; return False if the time ends first."""
        event = self._job_changed.setdefault(job, asyncio.Event())
        return await within(event, timeout_seconds)

    # --- standing by -----------------------------------------------------------------------------------

    def follow(self, state: PoolState, clock: Clock) -> None:
        """Show the state that another coordinator has written, by its clock; this one stands by."""
        self.state, self.revision, self._clock = state, state.revision, clock
        self._wake_all()

    def begin(self, state: PoolState, clock: Clock) -> None:
        """Lead from now on, with ``state.epoch``, which the store has already, and by this clock."""
        standby, self.standby = self.standby, None
        self._epoch, self._writer = state.epoch, StepWriter(state)
        self.follow(state, clock)
        if standby is not None:
            standby.end()
        # The loop waits without a time limit while it stands by: wake it, so that it sets one.
        self._pending.put_nowait(self._sent(events.PoolTick()))

    def _wake_all(self) -> None:
        for event in list(self._job_changed.values()):
            event.set()
        self._job_changed.clear()
        self._wake_waiters()

    # --- rules -----------------------------------------------------------------------------------------

    def take_rules(self, rules: PoolRules) -> None:
        """Apply new settings of the configuration, which hold from the next event on."""
        self.state = replace(self.state, rules=rules, stale=True)

    @property
    def epoch(self) -> int:
        """Return the newest epoch; the state's epoch follows with its next change."""
        return self._epoch

    # --- running ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the loop and its side tasks while the block runs."""
        side_tasks = [asyncio.create_task(self._follow_day_time(), name="time of day")]
        try:
            async with super().running():
                yield
        finally:
            side_tasks += [self._healing] if self._healing is not None else []
            for task in side_tasks:
                task.cancel()
            await asyncio.gather(*side_tasks, return_exceptions=True)

    async def _run(self) -> None:
        try:
            await super()._run()
        except Deposed as error:
            log.critical("this coordinator must not act any more: %s", error)
            raise

    async def _first_of_batch(self) -> _Sent:
        """Return the next event, or a tick once the state is due for one."""
        try:
            async with asyncio.timeout(self._seconds_to_next_tick()):
                return await self._pending.get()
        except TimeoutError:
            return self._sent(events.PoolTick())

    async def _follow_day_time(self) -> None:
        """Update the state when the machine's time of day was set."""
        while True:
            await asyncio.sleep(DAY_TIME_SECONDS)
            if (ahead := self._clock.ahead()) != self.state.ahead_seconds:
                with contextlib.suppress(GpushareError):
                    await self._job_after(events.PoolDayTimeSet(ahead))

    def _seconds_to_next_tick(self) -> float | None:
        if self.standby is not None:
            return None
        at = self.state.look_again_at
        return None if at == NEVER else max(0.0, max(at, self._no_pass_until) - self._clock.now())

    # --- jobs that the state has forgotten -------------------------------------------------------------

    async def _forgotten(self, jobs: Iterable[JobId]) -> frozenset[JobId]:
        """Return those of the jobs that are over and forgotten by the state: they are not new."""
        unknown = {job for job in jobs if known_job(self.state, job) is None}
        return await self.archive.over(unknown)

    async def _is_over(self, submitted: events.JobSubmitted) -> bool:
        """Return True if a job that a node reports is over and the state no longer knows it.

        Without a request id the node chooses the job's id, which may be the id of another person's job.
        """
        is_doubtful = submitted.old or not submitted.spec.request_id
        return is_doubtful and submitted.job in await self._forgotten([submitted.job])

    async def _with_past(self, submitted: events.JobSubmitted) -> events.JobSubmitted:
        """Add the awaited jobs that the state has forgotten."""
        past_jobs = [
            await self.archive.get(after.job)
            for after in submitted.spec.after
            if known_job(self.state, after.job) is None
        ]
        return replace(submitted, past=tuple(job for job in past_jobs if job is not None))

    async def _finished_job(self, job: JobId, owner: Owner) -> Job:
        finished = await self.archive.get(job)
        if finished is None:
            raise StateConflict(f"job {job} was over so long ago that nothing else is known of it")
        check_whose(finished, owner)
        return finished

    async def _without_forgotten(self, registration: events.NodeRegistered) -> events.NodeRegistered:
        over = await self._forgotten(report.key.job for report in registration.reports)
        if not over:
            return registration
        for report in registration.reports:
            if report.key.job in over and not report.state.is_final:
                grace = self.state.rules.stop_grace_seconds
                self._send_instruction(
                    events.Send(
                        registration.node, CancelPart(report.key, self.state.epoch, grace, "the coordinator")
                    )
                )
        reports = tuple(report for report in registration.reports if report.key.job not in over)
        return replace(registration, reports=reports)

    # --- one batch -------------------------------------------------------------------------------------

    async def _handle(self, batch: Sequence[_Sent]) -> None:
        # Start from the newest revision: other parts write too, and nodes may know the revision of their
        # writes. While the store accepts no writes, no event may start a scheduling pass: the failed write
        # would refuse the event together with the placements.
        planned_at = max(self.state.planned_at, self._no_pass_until)
        state = replace(self.state, revision=self.revision, planned_at=planned_at)
        handled, _ = self._steps(state, batch)
        concluded, is_partly_written = 0, False
        try:
            await self._raise_epoch([step for _, step in handled])
            for chunk in cut(self._writer.changes_of(self.state, [step for _, step in handled])):
                await self._commit(chunk)
                is_partly_written = chunk.concludes == concluded
                self._conclude(handled[concluded : chunk.concludes])
                concluded = chunk.concludes
        except (StoreUnavailable, TimedOut) as error:
            self._in_trouble(error)
            self._no_pass_until = self._clock.now() + RETRY_SECONDS
            self._writer.refused(handled[concluded][1] if is_partly_written else None)
            for sent, _ in handled[concluded:]:
                sent.refuse(error)
        except RequestError as error:
            # The changes exceed what a store accepts. The event at fault must end neither the coordinator nor
            # the other events.
            self._writer.refused(handled[concluded][1] if is_partly_written else None)
            await self._one_by_one([sent for sent, _ in handled[concluded:]], error)

    async def _one_by_one(self, batch: Sequence[_Sent], error: RequestError) -> None:
        """Handle a batch that cannot be stored event by event, and refuse the event at fault."""
        if len(batch) == 1:
            log.warning("an event cannot be kept: %s", error)
            batch[0].refuse(error)
            return
        for sent in batch:
            await self._handle([sent])

    def _apply(self, state: PoolState, event: events.PoolEvent) -> tuple[PoolStep, PoolState]:
        now = self._clock.now()
        step = handle(state, event, now, self.snapshot)
        if step.state.planned_at != state.planned_at:
            self._delay_next_pass(step.state, now)
        return step, step.state

    def _delay_next_pass(self, after: PoolState, began: float) -> None:
        """Put off the next pass over the queue in proportion to the duration of this one.

        In a small pool nobody waits for the pause, and in a large pool half of the time is left for all other
        work.
        """
        ended, usual = self._clock.now(), after.plan_at - after.planned_at
        took = ended - began
        self.pass_seconds.add(took)
        pause = min(max(PASS_PAUSE_SECONDS, PASS_SHARE * took), usual)
        after.planned_at = ended + max(took, pause) - usual

    async def _raise_epoch(self, steps: Sequence[PoolStep]) -> None:
        """Lead with an epoch above every epoch that nodes have seen.

        Otherwise nodes would refuse our orders.
        """
        needed_epoch = max((step.epoch for step in steps if step.epoch is not None), default=0)
        while needed_epoch > self._epoch:
            try:
                self._epoch = await self._store.lead(above=needed_epoch - 1)
            except TimedOut as error:
                # The change may have happened; the store would then refuse every write with the old epoch.
                self._in_trouble(error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                log.warning("nodes know of a higher epoch; this coordinator now leads with %d", self._epoch)

    async def _commit(self, chunk: Chunk) -> None:
        if not chunk.changes:
            return
        transaction, before = chunk.transaction(self._epoch), self.revision
        began = self._clock.now()
        try:
            with self.commit_seconds.timing():
                self.revision = max(self.revision, await self._store.commit(transaction))
        except TimedOut as error:
            self._in_trouble(error)
            await self._settle_in_doubt(transaction, before)
        self._writer.written()
        self._note_write(self._clock.now() - began)

    def _note_write(self, seconds: float) -> None:
        """Note that the store has written, and in what time."""
        self._troubles.cleared("store")
        if seconds <= SLOW_WRITE_SECONDS:
            self._troubles.cleared(SLOW_STORE)
            return
        self._troubles.raised(
            SLOW_STORE,
            f"the store takes more than {SLOW_WRITE_SECONDS:g} s for a write: is its disk, or etcd's, overloaded?",
        )
        self._begin_healing()

    def _in_trouble(self, error: GpushareError) -> None:
        self._troubles.raised("store", str(error))
        self._begin_healing()

    def _begin_healing(self) -> None:
        if self._healing is None or self._healing.done():
            self._healing = asyncio.create_task(self._write_until_well(), name="store healing")

    async def _write_until_well(self) -> None:
        """Write a test record until the store's troubles are cleared: an idle pool writes nothing else."""
        while self._troubles.of("store") or self._troubles.of(SLOW_STORE):
            await asyncio.sleep(RETRY_SECONDS)
            began = self._clock.now()
            with contextlib.suppress(GpushareError):
                await self.write({SIGN_OF_LIFE: b""})
                self._note_write(self._clock.now() - began)

    async def _settle_in_doubt(self, transaction: Transaction, before: int) -> None:
        """Find out if a transaction without an answer was written after the revision ``before``.

        Raises StoreUnavailable if it was not and never will be. After a new epoch no write of the earlier
        epoch can arrive, so that the records read then are final.
        """
        while True:
            try:
                self._epoch = await self._store.lead(above=self._epoch)
                written = await self._is_written(transaction, before)
            except (StoreUnavailable, TimedOut) as error:
                self._in_trouble(error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                break
        if not written:
            raise StoreUnavailable("the store took too long", hint="is its disk healthy? see `dmesg`")

    async def _is_written(self, transaction: Transaction, before: int) -> bool:
        """Return True if the transaction is in the store.

        Only this loop writes these records, and its earlier writes are not newer than the revision
        ``before``.
        """
        key = min(transaction.puts or transaction.deletes)
        record = dict(await self._store.page(key, 1)).get(key)
        if key not in transaction.puts:
            return record is None
        if record is None or record.revision <= before:
            return False
        self.revision = max(self.revision, record.revision)
        return True

    # --- after it is durable ---------------------------------------------------------------------------

    def _conclude(self, handled: Sequence[tuple[_Sent, PoolStep]]) -> None:
        if not handled:
            return
        before, after = self.state, handled[-1][1].state
        self.state = replace(after, rules=before.rules, epoch=self._epoch, revision=self.revision)
        if after.epoch != before.epoch:
            for renew in self._on_new_epoch:
                renew()
        earlier = before
        for sent, step in handled:
            self._tell_observers(earlier, step)
            earlier = step.state
            for instruction in step.instructions:
                self._send_instruction(instruction)
            if not sent.answer.done():
                sent.answer.set_result(step)
        self._wake_callers(before, [step for _, step in handled])

    def _send_instruction(self, instruction: events.PoolInstruction) -> None:
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(instruction)
            except Exception:  # a bug in one subscriber must not keep the instruction from the others
                log.exception("instruction failed %r", instruction)

    def _wake_callers(self, before: PoolState, steps: Sequence[PoolStep]) -> None:
        """Wake the callers that wait for visible changes, but not at each heartbeat."""
        jobs = {job.id for step in steps for job in (*step.jobs, *step.shown)}
        for job in jobs:
            if (event := self._job_changed.pop(job, None)) is not None:
                event.set()
        names = {member.name for step in steps for member in step.members}
        after = self.state
        is_other = any(_looks_other(before.members.get(name), after.members.get(name)) for name in names)
        if jobs or is_other or after.ahead_seconds != before.ahead_seconds:
            self._wake_waiters()


def _looks_other(before: Member | None, after: Member | None) -> bool:
    """Return True if the members differ in more than the field that each heartbeat changes."""
    if before is None or after is None:
        return before is not after
    return replace(before, heard_at=after.heard_at) != after


class StepWriter:
    """Make the record changes of steps. Know the written records, so that heartbeats write nothing."""

    def __init__(self, state: PoolState) -> None:
        """``state`` is the state as the store has it."""
        self._members = {name: member_bytes(member) for name, member in state.members.items()}
        self._projects = set(state.projects)
        self._recovering = state.recovering_since is not None
        self._partly_written: set[JobId] = set()
        """Hold the jobs of partly written steps: the store differs from the state."""

    def changes_of(self, before: PoolState, steps: Sequence[PoolStep]) -> list[list[Changes]]:
        """Return the changes by step; changes that belong together are one ``Changes``."""
        changes = [list(self._step(step)) for step in steps]
        if self._partly_written and changes:
            changes[0][:0] = [_present_record(before, job) for job in sorted(self._partly_written)]
        return changes

    def written(self) -> None:
        """Note that the first transaction of ``changes_of`` was written."""
        self._partly_written.clear()

    def refused(self, partly_written: PoolStep | None) -> None:
        """Note that the last changes were not written, except for a part of ``partly_written``."""
        self._members.clear()
        if partly_written is not None:
            self._partly_written |= {job.id for job in partly_written.jobs}

    def _step(self, step: PoolStep) -> Iterator[Changes]:
        yield from map(without, step.gone)
        yield from map(job_changes, step.jobs)
        for member in step.members:
            body = member_bytes(member)
            if self._members.get(member.name) != body:
                self._members[member.name] = body
                yield {MEMBER + member.name: body}
        if step.accounts is not None:
            yield from account_changes(step.accounts, self._projects)
            if step.accounts.projects is not None:
                self._projects |= step.accounts.projects.keys()
        if (step.state.recovering_since is not None) != self._recovering:
            self._recovering = not self._recovering
            yield {RECOVERING: b"" if self._recovering else None}


def _present_record(state: PoolState, job_id: JobId) -> Changes:
    job = known_job(state, job_id)
    return job_changes(job) if job is not None else {JOB + job_id: None}


async def send_until_taken(
    send: Callable[[events.PoolEvent], Awaitable[object]], event: events.PoolEvent, by: str
) -> None:
    """Send an event until it is written, because nobody repeats it. Raises errors that do not pass."""
    for failures in itertools.count(1):
        try:
            await send(event)
        except (Unavailable, TimedOut, LimitReached) as error:
            log.info("an event of %s is not taken yet: %s", by, error)
            await asyncio.sleep(
                backoff_seconds(failures, first=FIRST_RETRY_SECONDS, longest=LAST_RETRY_SECONDS)
            )
        else:
            return
