"""Run the loop: the one place where the node's state changes.

Events come in through ``send``; a batch of events is written in one transaction of the journal.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpushared.daemon.measures import Totals
from gpushared.daemon.troubles import Troubles
from gpushared.daemon.write_ahead_loop import SentEvent, WriteAheadLoop
from gpushared.domain.leases import events as m
from gpushared.domain.leases.explain import Waiting, waiting
from gpushared.domain.leases.forecast import Start, in_order_of_start, starts
from gpushared.domain.leases.granting import decisions
from gpushared.domain.leases.instructions import Instruction
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_rules import Rules
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.model.errors import Code, GpushareError, JournalUnavailable, TimedOut
from gpushared.domain.model.lease import Lease, LeaseId
from gpushared.domain.scheduling.outcome import Decision
from gpushared.ports import Clock, Journal, JournalWrite

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outlook:
    """Hold the newest pass's decision for each waiting lease, and the time at which each may start."""

    decisions: Mapping[LeaseId, Decision]
    starts: Mapping[LeaseId, Start]


QUEUE = "queue"
"""The part with the trouble of a pass that failed."""
CALM_SECONDS = 5.0
"""The journal's trouble is over once no write has failed for so long. On a full disk small writes still succeed
between the larger ones that fail."""

_Sent = SentEvent[m.Event, Step]


class Loop(WriteAheadLoop[NodeState, m.Event, Step]):
    """Own the state. ``perform`` is called with each instruction after its cause is on disk."""

    def __init__(self, state: NodeState, journal: Journal, clock: Clock, troubles: Troubles) -> None:
        super().__init__(state, clock, "the daemon")
        self.perform: Callable[[Instruction], None] = _nothing_yet
        self.after_recovery: Callable[[], None] = lambda: None
        self.refusals = Totals(len(Code) * 4)
        """The refused requests for leases, by the kind of their error."""
        self._journal = journal
        self._journal_failed_at = 0.0
        self._troubles = troubles
        self._decided: tuple[NodeState, Sequence[Decision]] | None = None
        self._outlook: tuple[NodeState, Outlook] | None = None

    async def send(self, event: m.Event) -> Lease | None:
        """Handle and write the event, and return its lease afterwards. Raises errors of the tree."""
        return (await self.take(event)).lease

    def outlook(self) -> Outlook:
        """Return the outlook of the present state; it is computed once for each state."""
        if self._outlook is None or self._outlook[0] is not self.state:
            self._outlook = (self.state, self._new_outlook())
        return self._outlook[1]

    def decisions(self) -> Sequence[Decision]:
        """Return the decision of a pass for each waiting lease; one pass for each state.

        Without any if the pass fails, because lists and records must go on.
        """
        if self._decided is None or self._decided[0] is not self.state:
            try:
                decided = decisions(self.state, self._clock.now())
            except Exception:  # a bug in the pass
                log.exception("no decisions on the queue")
                decided = ()
            self._decided = (self.state, decided)
        return self._decided[1]

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

    def _apply(self, state: NodeState, event: m.Event) -> tuple[Step, NodeState]:
        try:
            with self.pass_seconds.timing():
                step = handle(state, event, self._clock.now())
        except GpushareError as error:
            if isinstance(event, m.RequestSubmitted):
                self.refusals.add(_reason_of(error), 1)
            raise
        except Exception as error:  # noqa: BLE001 - a bug in the pass, whatever it raises
            # Leases must end, and containers be followed, also where a bug in the pass grants nothing.
            self._pass_failed(error)
            step = handle(state, event, self._clock.now(), grants=False)
        else:
            self._troubles.cleared(QUEUE)
        return step, step.state

    def _new_outlook(self) -> Outlook:
        decided = self.decisions()
        try:
            lease_starts = starts(self.state, self._clock.now(), decided) if decided else {}
        except Exception:  # a bug in the pass
            log.exception("no estimate of starts")
            lease_starts = {}
        by_lease = {decision.lease: decision for decision in in_order_of_start(decided, lease_starts)}
        return Outlook(by_lease, lease_starts)

    def _pass_failed(self, error: Exception) -> None:
        text = f"the pass over the queue fails, so that nothing is granted: {error!r}; see the daemon's log"
        if self._troubles.of(QUEUE) != text:
            log.error("the pass over the queue failed", exc_info=error)
        self._troubles.raised(QUEUE, text)

    async def _handle(self, batch: Sequence[_Sent]) -> None:
        before = self.state
        steps, state = self._steps(before, batch)
        try:
            await self._write([step for _, step in steps])
        except (JournalUnavailable, TimedOut) as error:
            for sent, _ in steps:
                sent.refuse(error)
            if isinstance(error, TimedOut):
                raise  # only a load of the journal can show if the transaction was written
            return
        self._publish(state)
        for sent, step in steps:
            self._tell_observers(before, step)
            before = step.state
            self._conclude(sent, step)

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
                step.spans,
            )
            for step in steps
            if step.is_to_write
        ]
        if writes:
            await self._commit(writes)
        elif self._troubles.of("journal"):
            # Otherwise an idle node would show a trouble that is long over.
            with contextlib.suppress(JournalUnavailable):
                await self._commit([JournalWrite((), (), self.state.next_sequence)])

    async def _commit(self, writes: Sequence[JournalWrite]) -> None:
        try:
            with self.commit_seconds.timing():
                await self._journal.commit(writes)
        except JournalUnavailable as error:
            self._journal_failed_at = self._clock.now()
            self._troubles.raised("journal", str(error))
            raise
        if self._troubles.of("journal") and self._clock.now() - self._journal_failed_at >= CALM_SECONDS:
            self._troubles.cleared("journal")
            self.after_recovery()

    def _publish(self, state: NodeState) -> None:
        """Make the new state true. Waiting clients wake only for a change that they could see."""
        before, rules = self.state, self.state.rules
        self.state = state if state.rules is rules else state.with_rules(rules)
        if _shown(before) != _shown(self.state):
            self._wake_waiters()

    def _conclude(self, sent: _Sent, step: Step) -> None:
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


def _reason_of(error: GpushareError) -> str:
    """Return the kind of an error: ``never_fits``, ``no_room`` ..."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", type(error).__name__).lower()


def _nothing_yet(instruction: Instruction) -> None:
    """Do nothing, because before the parts are wired no instruction can be performed.

    The resources of containers are remade afterwards.
    """
    log.debug("not performed yet: %r", instruction)
