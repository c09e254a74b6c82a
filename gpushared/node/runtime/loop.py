"""Run the loop: the one place where the node's state changes.

Events come in through ``send``, one after the other. Events that arrived together are handled together and
written in one transaction. Only when the transaction is on disk does the new state become true, are callers
answered and instructions performed. A write that fails changes nothing: its callers get the error, the state
stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gpushared.daemon.troubles import Troubles
from gpushared.domain.leases import events as m
from gpushared.domain.leases.explain import Waiting, waiting
from gpushared.domain.leases.forecast import Start, in_order_of_start, starts
from gpushared.domain.leases.granting import decisions
from gpushared.domain.leases.instructions import Instruction
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.model.errors import (
    GpushareError,
    JournalUnavailable,
    LimitReached,
    TimedOut,
    Unavailable,
)
from gpushared.domain.model.lease import Lease, LeaseId
from gpushared.domain.scheduling.outcome import Decision
from gpushared.ports import Clock, Journal, JournalWrite

log = logging.getLogger(__name__)

MAX_PENDING = 4096
MAX_BATCH = 256


@dataclass(frozen=True, slots=True)
class Outlook:
    """Hold the newest pass's decision for each waiting lease, and the time at which each may start."""

    decisions: Mapping[LeaseId, Decision]
    starts: Mapping[LeaseId, Start]


@dataclass(frozen=True, slots=True)
class _SentEvent:
    event: m.Event
    answer: asyncio.Future[Step]


class Loop:
    """Own the state. ``perform`` is called with each instruction after its cause is on disk."""

    def __init__(self, state: NodeState, journal: Journal, clock: Clock, troubles: Troubles) -> None:
        self.state = state
        self.perform: Callable[[Instruction], None] = _nothing_yet
        self.after_recovery: Callable[[], None] = lambda: None
        self._journal = journal
        self._clock = clock
        self._troubles = troubles
        self._pending: asyncio.Queue[_SentEvent] = asyncio.Queue(MAX_PENDING)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._outlook: tuple[NodeState, Outlook] | None = None

    async def send(self, event: m.Event) -> Lease | None:
        """Have the event handled and written, and return its lease afterwards. Raises errors of the tree."""
        return (await self.take(event)).lease

    async def take(self, event: m.Event) -> Step:
        """Have the event handled and written, as ``send`` does, and return the whole step."""
        if self._task is not None and self._task.done():
            raise Unavailable("the daemon is ending", hint="try again in a moment")
        answer: asyncio.Future[Step] = asyncio.get_running_loop().create_future()
        try:
            self._pending.put_nowait(_SentEvent(event, answer))
        except asyncio.QueueFull:
            raise LimitReached("the daemon has too much to do", hint="try again in a moment") from None
        return await answer

    async def changed(self, timeout_seconds: float) -> bool:
        """Wait until the state may have changed; False when the time is over first."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def outlook(self) -> Outlook:
        """Return the outlook of the present state; it is worked out once for each state."""
        if self._outlook is None or self._outlook[0] is not self.state:
            now = self._clock.now()
            decided = decisions(self.state, now)
            known = starts(self.state, now, decided) if decided else {}
            by_lease = {one.lease: one for one in in_order_of_start(decided, known)}
            self._outlook = (self.state, Outlook(by_lease, known))
        return self._outlook[1]

    def waiting_of(self, lease: Lease) -> Waiting | None:
        """Explain why a lease waits, with its place in the queue; return None if it does not wait."""
        outlook = self.outlook()
        decision = outlook.decisions.get(lease.id)
        if decision is None:
            return None
        return waiting(decision, self.state, len(outlook.decisions), self.now(), outlook.starts)

    def take_rules(self, rules: Rules) -> None:
        """Take new rules from the configuration; they hold from the next event on."""
        self.state = self.state.with_rules(rules)

    def now(self) -> float:
        return self._clock.now()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the loop while the block runs."""
        self._task = asyncio.create_task(self._run(), name="loop")
        try:
            yield
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def ended(self) -> None:
        """Never return, or raise the error after which the daemon cannot go on."""
        assert self._task is not None, "only while running"
        await asyncio.shield(self._task)

    async def _run(self) -> None:
        try:
            while True:
                batch = [await self._pending.get()]
                while len(batch) < MAX_BATCH and not self._pending.empty():
                    batch.append(self._pending.get_nowait())
                await self._handle(batch)
        finally:
            left = [self._pending.get_nowait() for _ in range(self._pending.qsize())]
            _refuse(left, Unavailable("the daemon is ending", hint="try again in a moment"))

    async def _handle(self, batch: Sequence[_SentEvent]) -> None:
        state = self.state
        done: list[tuple[_SentEvent, Step]] = []
        for sent in batch:
            step = self._step(state, sent)
            if step is not None:
                state = step.state
                done.append((sent, step))
        try:
            await self._write([step for _, step in done])
        except JournalUnavailable as error:
            _refuse([sent for sent, _ in done], error)
            return
        except TimedOut as error:
            # Nobody knows if the transaction was written; only a load of the journal can tell.
            _refuse([sent for sent, _ in done], error)
            raise
        self._publish(state)
        for sent, step in done:
            self._conclude(sent, step)

    def _step(self, state: NodeState, sent: _SentEvent) -> Step | None:
        try:
            return handle(state, sent.event, self._clock.now())
        except GpushareError as error:
            _refuse([sent], error)
        except Exception as error:  # a bug in a rule must not end the daemon; the state is as before
            log.exception("rule failed event=%r", sent.event)
            _refuse([sent], GpushareError(f"the daemon made a mistake: {error}", hint="see its log"))
        return None

    async def _write(self, steps: Sequence[Step]) -> None:
        writes = [
            JournalWrite(
                step.changed,
                step.entries,
                step.state.next_sequence,
                step.drained,
                step.accounts,
                step.attempts,
                step.contacts,
                step.forgotten_before,
            )
            for step in steps
            if step.is_to_write
        ]
        if writes:
            await self._commit(writes)
        elif self._troubles.of("journal"):
            # Else an idle node would show a trouble that is long over.
            with contextlib.suppress(JournalUnavailable):
                await self._commit([JournalWrite((), (), self.state.next_sequence)])

    async def _commit(self, writes: Sequence[JournalWrite]) -> None:
        try:
            await self._journal.commit(writes)
        except JournalUnavailable as error:
            self._troubles.raised("journal", str(error))
            raise
        if self._troubles.of("journal"):
            self._troubles.cleared("journal")
            self.after_recovery()

    def _publish(self, state: NodeState) -> None:
        """Make the new state true. Waiting clients wake only for a change that they could be shown."""
        before, rules = self.state, self.state.rules
        self.state = state if state.rules is rules else state.with_rules(rules)
        if _shown(before) != _shown(self.state):
            self._changed.set()
            self._changed = asyncio.Event()

    def _conclude(self, sent: _SentEvent, step: Step) -> None:
        for instruction in step.instructions:
            self.perform(instruction)
        for lease_id, entry in step.entries:
            log.info("lease=%s state=%s %s", lease_id, entry.state, entry.text)
        if not sent.answer.done():
            sent.answer.set_result(step)


def _shown(state: NodeState) -> tuple[object, ...]:
    return (
        state.leases,
        state.gpus,
        state.stray_bytes,
        state.drained,
        state.projects,
        state.ahead_seconds,
    )


def _nothing_yet(instruction: Instruction) -> None:
    """Before the parts are wired nothing can be performed; what containers hold is remade afterwards."""
    log.debug("not performed yet: %r", instruction)


def _refuse(batch: Sequence[_SentEvent], error: GpushareError) -> None:
    for sent in batch:
        if not sent.answer.done():
            sent.answer.set_exception(error)
            # Nobody waits for the answers to some events, such as a tick's: that is no warning.
            sent.answer.exception()
