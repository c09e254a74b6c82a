"""Follow the engine's events in a thread of its own.

The thread only notes which containers changed. A container that changes again before the reader looked is
noted once: the reader inspects it anyway and sees the newest state. So the waiting notes are bounded by the
number of containers with our label, and beyond ``PENDING_LIMIT`` of them the feed ends with
``EngineUnavailable``, which makes the reader survey everything anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import requests

from gpushared.domain.model.errors import EngineUnavailable, GpushareError
from gpushared.domain.model.lease import ContainerId
from gpushared.engine.container_facts import facts_of_death
from gpushared.engine.workers import Connector
from gpushared.ports import LABEL_DEVICE, ContainerFacts

DESTROY = "destroy"
ACTIONS = ("start", "die", DESTROY, "pause", "unpause", "restart", "rename", "update")
PENDING_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class ContainerChange:
    """Note a container that changed; ``last_words`` if it died, ``destroyed`` if it was removed."""

    container: ContainerId
    last_words: ContainerFacts | None
    destroyed: bool


class EventFeed:
    """Tell which containers changed since ``since`` (epoch seconds). The opener must close the feed."""

    def __init__(self, connector: Connector, since: float) -> None:
        self._connector = connector
        self._since = since
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._lock = threading.Lock()
        self._pending: dict[ContainerId, ContainerChange] = {}
        self._error: GpushareError | None = None
        self._socket: socket.socket | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="engine-events", daemon=True)
        self._thread.start()

    async def next(self) -> ContainerChange:
        """Return the next container that changed; ``EngineUnavailable`` at the end."""
        while True:
            with self._lock:
                if self._pending:
                    return self._pending.pop(next(iter(self._pending)))
                if self._error:
                    raise self._error
                self._news.clear()
            await self._news.wait()

    def close(self) -> None:
        """End the stream and with it the thread; may be called again."""
        with self._lock:
            self._closed = True
            if self._socket is not None:
                # The engine may have hung up at this very moment.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait until the stream has ended; off the event loop."""
        self._thread.join()

    def _run(self) -> None:
        error = EngineUnavailable(f"the Docker engine on {self._connector.place} ended its stream of events")
        try:
            with self._connector.translated("report events"):
                self._follow()
        except GpushareError as reason:
            error = EngineUnavailable(reason.message, hint=reason.hint)
        finally:  # whatever ends this thread, its reader must not wait for ever
            with self._lock:
                self._error = error
            self._wake()

    def _follow(self) -> None:
        with self._connector.open() as client, self._listen(client) as response:
            if self._adopt(response):
                for line in response.iter_lines():
                    self._note(_parsed(line))

    def _listen(self, client: requests.Session) -> requests.Response:
        """Return the open stream. The SDK's own ``events`` waits without limit for an engine that hangs."""
        wanted = {"type": ["container"], "label": [LABEL_DEVICE], "event": ACTIONS}
        response = client.get(
            f"{client.base_url}/v{client.api_version}/events",  # type: ignore[attr-defined]
            params={"filters": json.dumps(wanted), "since": f"{self._since:.6f}"},
            stream=True,
            timeout=self._connector.timeout_seconds,
        )
        response.raise_for_status()
        return response

    def _adopt(self, response: requests.Response) -> bool:
        """Keep the stream's socket so that ``close`` can end it; False if the feed is closed already."""
        connection = response.raw.connection
        if connection is None or connection.sock is None:
            raise EngineUnavailable(
                f"the Docker engine on {self._connector.place} keeps no stream of events open"
            )
        with self._lock:
            self._socket = connection.sock
            self._socket.settimeout(None)  # from here on silence is no fault
            return not self._closed

    def _note(self, event: Mapping[str, Any]) -> None:
        try:
            container, death = ContainerId(event["Actor"]["ID"]), facts_of_death(event)
            destroyed = event["Action"] == DESTROY
        except (KeyError, TypeError, AttributeError) as error:
            raise EngineUnavailable(
                f"the Docker engine reports events in unknown words: {error!r}"
            ) from error
        with self._lock:
            before = self._pending.get(container)
            last_words = death or (before.last_words if before else None)
            self._pending[container] = ContainerChange(container, last_words, destroyed)
            crowded = len(self._pending) > PENDING_LIMIT
        if crowded:
            raise EngineUnavailable(f"more than {PENDING_LIMIT} containers changed at once")
        self._wake()

    def _wake(self) -> None:
        # A loop that is closed has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._news.set)


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise EngineUnavailable(f"the Docker engine reports events that are no JSON: {error}") from error
    return event if isinstance(event, dict) else {}
