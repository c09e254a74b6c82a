"""Keep the instructions for one container in order, so that none overtakes the one under way."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, assert_never

from gpushared.domain.leases.instructions import ResumeContainer, StartContainer, SuspendContainer
from gpushared.domain.model.lease import (
    ContainerId,
    Lease,
    LeaseId,
    LeaseState,
    Resuming,
    Starting,
    Suspending,
)

log = logging.getLogger(__name__)

InTurn = SuspendContainer | ResumeContainer | StartContainer
"""Instructions of which a container takes one at a time."""


class ContainerQueues:
    """One queue a container: an instruction begins when the one before it is over.

    A queue holds the instruction that is under way and one that waits. More is not needed: the newest
    instruction says where the core wants the container by now, and what the core does not want any more when
    its turn comes is left out, which the log tells.

    A stop waits for nothing, so that a container can be ended whatever hangs. Instructions that come after a
    stop wait for it, because it would end what they begin.
    """

    def __init__(
        self,
        leases: Callable[[], Mapping[LeaseId, Lease]],
        perform: Callable[[InTurn], Awaitable[None]],
        begin: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``leases``: those that are not over, as they are now. ``begin`` runs a coroutine as a task."""
        self._leases = leases
        self._perform = perform
        self._begin = begin
        self._queues: dict[ContainerId, deque[InTurn]] = {}
        self._stops: dict[ContainerId, set[asyncio.Task[Any]]] = {}

    def put(self, instruction: InTurn) -> None:
        """Queue an instruction; it begins when the one before it is over."""
        queue = self._queues.get(instruction.container)
        if queue is None:
            self._queues[instruction.container] = deque([instruction])
            self._begin(self._work_off(instruction.container))
            return
        if len(queue) > 1 and (superseded := queue.pop()) != instruction:
            log.info("superseded by %r: %r", instruction, superseded)
        queue.append(instruction)

    @contextmanager
    def stop(self, container: ContainerId) -> Iterator[None]:
        """Note that the running task stops the container at once; later instructions wait for the stop."""
        task = asyncio.current_task()
        assert task is not None, "only in a task"
        stops = self._stops.setdefault(container, set())
        stops.add(task)
        try:
            yield
        finally:
            stops.discard(task)
            if not stops:
                self._stops.pop(container, None)

    async def _work_off(self, container: ContainerId) -> None:
        queue = self._queues[container]
        try:
            while queue:
                while stops := self._stops.get(container):
                    await asyncio.wait(set(stops))
                if self._is_wanted(queue[0]):
                    await self._perform(queue[0])
                else:
                    log.info("not needed any more: %r", queue[0])
                queue.popleft()
        finally:
            del self._queues[container]

    def _is_wanted(self, instruction: InTurn) -> bool:
        lease = self._leases().get(instruction.lease)
        return (
            lease is not None
            and lease.container == instruction.container
            and _asks_for(lease.state, instruction)
        )


def _asks_for(state: LeaseState, instruction: InTurn) -> bool:
    """Return True if a lease in this state waits for the instruction to be done."""
    match instruction:
        case SuspendContainer():
            return isinstance(state, Suspending)
        case ResumeContainer():
            return isinstance(state, Resuming)
        case StartContainer():
            return isinstance(state, Starting) and state.by_node
        case _:
            assert_never(instruction)
