"""Run a state machine whose every change is durable before any caller gets an answer.

Events come in one after the other. Events that arrived together are handled together, each on the state after
the one before it. Only when the changes are on disk does the new state become true: then callers are answered
and instructions carried out. A write that fails changes nothing: its callers get the error, and the state
stays.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpushared.daemon.measures import SHORT_SECONDS, Distribution
from gpushared.daemon.tasks import within
from gpushared.domain.model.errors import GpushareError, LimitReached, Unavailable
from gpushared.ports import Clock

log = logging.getLogger(__name__)

MAX_PENDING = 4096
MAX_BATCH = 256

StateT = TypeVar("StateT")
EventT = TypeVar("EventT")
StepT = TypeVar("StepT")


@dataclass(frozen=True, slots=True)
class SentEvent(Generic[EventT, StepT]):
    """Hold an event, and the answer for its sender: the step, or an error of the tree."""

    event: EventT
    answer: asyncio.Future[StepT]

    def refuse(self, error: GpushareError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            # Some events, such as a tick, have no caller that awaits the answer; asyncio must not warn then.
            self.answer.exception()


class WriteAheadLoop(ABC, Generic[StateT, EventT, StepT]):
    """Own a state and the queue of its events. A subclass applies an event, and writes a batch of steps."""

    def __init__(self, state: StateT, clock: Clock, daemon_name: str) -> None:
        """Take ``daemon_name``, the name in messages, such as "the coordinator"."""
        self.state = state
        self.pass_seconds = Distribution(SHORT_SECONDS)
        """The durations of the passes over the queue, with the rest of the work on their events."""
        self.commit_seconds = Distribution(SHORT_SECONDS)
        """The durations of the writes to the journal or the store, failed ones too."""
        self.observers: list[Callable[[StateT, StepT], None]] = []
        """Each is called with every step after it is durable, and with the state before it. An observer
        returns at once."""
        self.on_change: Callable[[], None] = lambda: None
        """Call this function when the state has changed in a way that callers can see."""
        self._clock = clock
        self._daemon_name = daemon_name
        self._pending: asyncio.Queue[SentEvent[EventT, StepT]] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # --- methods of a subclass -----------------------------------------------------------------------------

    @abstractmethod
    def _apply(self, state: StateT, event: EventT) -> tuple[StepT, StateT]:
        """Return an event's step and the state after it. Raises errors of the tree."""

    @abstractmethod
    async def _handle(self, batch: Sequence[SentEvent[EventT, StepT]]) -> None:
        """Apply the events, write the steps, and answer. An error that is raised ends the daemon."""

    async def _first_of_batch(self) -> SentEvent[EventT, StepT]:
        """Return the next event; a subclass may send one itself when time alone changes something."""
        return await self._pending.get()

    # --- for all callers -----------------------------------------------------------------------------------

    async def take(self, event: EventT, most_pending: int = MAX_PENDING) -> StepT:
        """Handle and write the event, and return the step. Raises errors of the tree.

        ``most_pending``: with this many events waiting, the event is refused.
        """
        if self._task is not None and self._task.done():
            raise self._ending()
        if self._pending.qsize() >= most_pending:
            raise LimitReached(f"{self._daemon_name} has too much to do", hint="try again in a moment")
        sent = self._sent(event)
        self._pending.put_nowait(sent)
        return await sent.answer

    async def changed(self, timeout_seconds: float) -> bool:
        """Wait until the state may have changed; return False if the time is over first."""
        return await within(self._changed, timeout_seconds)

    @property
    def clock(self) -> Clock:
        """Return the clock by which the state's times are."""
        return self._clock

    def now(self) -> float:
        return self._clock.now()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the loop while the block runs."""
        self._task = asyncio.create_task(self._run(), name=f"loop of {self._daemon_name}")
        try:
            yield
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def ended(self) -> None:
        """Never return, or raise the error after which the daemon cannot go on."""
        assert self._task is not None, "only while running"
        await asyncio.shield(self._task)

    # --- for subclasses --------------------------------------------------------------------------------

    def _sent(self, event: EventT) -> SentEvent[EventT, StepT]:
        return SentEvent(event, asyncio.get_running_loop().create_future())

    def _steps(
        self, state: StateT, batch: Iterable[SentEvent[EventT, StepT]]
    ) -> tuple[list[tuple[SentEvent[EventT, StepT], StepT]], StateT]:
        """Apply the events one after the other, and refuse those that break a rule."""
        steps = []
        for sent in batch:
            try:
                step, state = self._apply(state, sent.event)
            except GpushareError as error:
                sent.refuse(error)
            except Exception as error:  # a bug in a rule must not end the daemon; the state is as before
                log.exception("rule failed event=%r", sent.event)
                sent.refuse(GpushareError(f"{self._daemon_name} made a mistake: {error}", hint="see its log"))
            else:
                steps.append((sent, step))
        return steps, state

    def _tell_observers(self, before: StateT, step: StepT) -> None:
        for observe in self.observers:
            try:
                observe(before, step)
            except Exception:  # a bug in an observer must not end the daemon
                log.exception("an observer of steps failed")

    def _wake_waiters(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self.on_change()

    async def _run(self) -> None:
        batch: list[SentEvent[EventT, StepT]] = []
        try:
            while True:
                batch = [await self._first_of_batch()]
                while len(batch) < MAX_BATCH and not self._pending.empty():
                    batch.append(self._pending.get_nowait())
                await self._handle(batch)
        finally:
            unhandled = [self._pending.get_nowait() for _ in range(self._pending.qsize())]
            for sent in (*batch, *unhandled):
                sent.refuse(self._ending())

    def _ending(self) -> Unavailable:
        return Unavailable(f"{self._daemon_name} is ending", hint="try again in a moment")
