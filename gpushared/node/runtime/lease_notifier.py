"""Watch a node's steps, and notify of the events in them, each once, over restarts too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.leases.notifications import of_gpus, of_lease
from gpushared.domain.model.lease import Ended, Lease
from gpushared.domain.model.notification import Notification, NotificationKind
from gpushared.node.runtime.loop import Loop
from gpushared.notify.outbox import RECENT_SECONDS, NotificationOutbox
from gpushared.storage.notification_file import OutboxContents

LOOK_SECONDS = 1.0
_Told = frozenset[tuple[NotificationKind, str]]


class LeaseNotifier:
    """Add the events of a node's leases and GPUs to its outbox."""

    def __init__(self, loop: Loop, outbox: NotificationOutbox, soon_seconds: Callable[[], int]) -> None:
        self._loop = loop
        self._outbox = outbox
        self._soon_seconds = soon_seconds
        self._told: dict[str, _Told] = {}
        self._begun = False
        outbox.live = self._live
        loop.observers.append(self.observe)

    async def run(self) -> None:
        """Tell what a crash kept from being told, then what time alone brings, for ever."""
        self.begin(await self._outbox.open())
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            soon, now = self._soon_seconds(), self._loop.now()
            for lease in self._loop.state.leases.values():
                if lease.expires_at is not None and lease.expires_at - now <= soon:
                    self._look(lease, self._loop.state)

    def begin(self, contents: OutboxContents) -> None:
        """Take over from the file: events since its beginning that it does not know are told now."""
        for subject, kind, occasion in contents.known_events:
            known = self._told.get(subject, frozenset())
            self._told[subject] = known | {(NotificationKind(kind), occasion)}
        oldest = max(contents.since, self._loop.now() - RECENT_SECONDS)
        state = self._loop.state
        for lease in (*state.ended.values(), *state.leases.values()):
            self._look(lease, state, oldest)
        self._tell(of_gpus(state, self._told), oldest)
        live = self._live()
        self._told = {subject: told for subject, told in self._told.items() if subject in live}
        self._begun = True

    def observe(self, before: NodeState, step: Step) -> None:  # noqa: ARG002 - as the loop calls it
        """Tell the events of a step that is on disk."""
        if not self._begun:
            return  # ``begin`` finds them in the state
        for lease in step.changed:
            self._look(lease, step.state)
        if step.drained is not None:
            self._tell(of_gpus(step.state, self._told), None)

    def _live(self) -> Collection[str]:
        state = self._loop.state
        return state.leases.keys() | {f"gpu {gpu}" for gpu in state.drained}

    def _look(self, lease: Lease, state: NodeState, oldest: float | None = None) -> None:
        told, soon = self._told.get(lease.id, frozenset()), self._soon_seconds()
        self._tell(of_lease(lease, state, self._loop.now(), told, soon_seconds=soon), oldest)
        if isinstance(lease.state, Ended):
            self._told.pop(lease.id, None)

    def _tell(self, events: Collection[Notification], oldest: float | None) -> None:
        """Add the events; after a restart those from before ``oldest`` only count as told."""
        for event in events:
            known = self._told.get(event.subject, frozenset())
            self._told[event.subject] = known | {(event.kind, event.occasion)}
        if oldest is None:
            self._outbox.add(events)
        else:
            self._outbox.add([event for event in events if event.at >= oldest], late=True)
