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
_Occasions = frozenset[tuple[NotificationKind, str]]


class LeaseNotifier:
    """Add the events of a node's leases and GPUs to its outbox."""

    def __init__(self, loop: Loop, outbox: NotificationOutbox, soon_seconds: Callable[[], int]) -> None:
        self._loop = loop
        self._outbox = outbox
        self._soon_seconds = soon_seconds
        self._notified: dict[str, _Occasions] = {}
        self._has_begun = False
        outbox.live = self._live
        loop.observers.append(self.observe)

    async def run(self) -> None:
        """Notify of the events that a crash prevented, then of leases that end soon, for ever."""
        self.begin(await self._outbox.open())
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            soon, now = self._soon_seconds(), self._loop.now()
            for lease in self._loop.state.leases.values():
                if lease.expires_at is not None and lease.expires_at - now <= soon:
                    self._notify_of_lease(lease, self._loop.state)

    def begin(self, contents: OutboxContents) -> None:
        """Take over the file's record: notify now of the events since its beginning that it does not have."""
        for subject, kind, occasion in contents.known_events:
            occasions = self._notified.get(subject, frozenset())
            self._notified[subject] = occasions | {(NotificationKind(kind), occasion)}
        oldest = max(contents.since, self._loop.now() - RECENT_SECONDS)
        state = self._loop.state
        for lease in (*state.ended.values(), *state.leases.values()):
            self._notify_of_lease(lease, state, oldest)
        self._notify(of_gpus(state, self._notified), oldest)
        live = self._live()
        self._notified = {
            subject: notified for subject, notified in self._notified.items() if subject in live
        }
        self._has_begun = True

    def observe(self, before: NodeState, step: Step) -> None:  # noqa: ARG002 - as the loop calls it
        """Notify of the events in a step that is on disk."""
        if not self._has_begun:
            return  # ``begin`` finds them in the state
        for lease in step.changed:
            self._notify_of_lease(lease, step.state)
        if step.drained is not None:
            self._notify(of_gpus(step.state, self._notified), None)

    def _live(self) -> Collection[str]:
        state = self._loop.state
        return state.leases.keys() | {f"gpu {gpu}" for gpu in state.drained}

    def _notify_of_lease(self, lease: Lease, state: NodeState, oldest: float | None = None) -> None:
        notified, soon = self._notified.get(lease.id, frozenset()), self._soon_seconds()
        self._notify(of_lease(lease, state, self._loop.now(), notified, soon_seconds=soon), oldest)
        if isinstance(lease.state, Ended):
            self._notified.pop(lease.id, None)

    def _notify(self, events: Collection[Notification], oldest: float | None) -> None:
        """Add the events; after a restart events from before ``oldest`` only count as notified."""
        for event in events:
            occasions = self._notified.get(event.subject, frozenset())
            self._notified[event.subject] = occasions | {(event.kind, event.occasion)}
        if oldest is None:
            self._outbox.add(events)
        else:
            self._outbox.add([event for event in events if event.at >= oldest], late=True)
