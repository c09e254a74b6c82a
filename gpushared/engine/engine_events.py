"""Follow the engine's events in a thread of its own, and read containers from the engine's JSON.

The thread only notes which containers changed. A container that changes again before the reader looked is
noted once: the reader inspects it anyway and sees the newest state. So the number of waiting notes is at most
the number of containers with our label, and beyond ``PENDING_LIMIT`` of them the feed ends with
``EngineUnavailable``, which makes the reader survey everything anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import requests

from gpushared.domain.model.errors import EngineGone, EngineUnavailable, GpushareError
from gpushared.domain.model.host import ContainerMemory
from gpushared.domain.model.lease import ContainerId
from gpushared.engine.workers import Connector, unknown_words
from gpushared.ports import DEFAULT_STOP_SECONDS, LABEL_DEVICE, LABEL_OWNER, ContainerFacts, ContainerStatus

DESTROY = "destroy"
ACTIONS = ("start", "die", DESTROY, "pause", "unpause", "restart", "rename", "update")
PENDING_LIMIT = 4096
DIE = "die"
START_ERROR_CHARACTERS = 1000
"""Engines quote the command that they could not start, which may be as long as its writer likes."""


@dataclass(frozen=True, slots=True)
class ContainerChange:
    """Note a container that changed; ``last_words`` if it died, ``destroyed`` if it was removed."""

    container: ContainerId
    last_words: ContainerFacts | None
    destroyed: bool


class EventFeed:
    """Report which containers changed since ``since`` (epoch seconds). The opener must close the feed."""

    def __init__(self, connector: Connector, since: float) -> None:
        self._connector = connector
        self._since = since
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._lock = threading.Lock()
        self._pending: dict[ContainerId, ContainerChange] = {}
        self._error: EngineUnavailable | None = None
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

    def check(self) -> None:
        """Raise the stream's error if it has ended: what the engine tells now may be of its next life."""
        with self._lock:
            if self._error:
                raise self._error

    def close(self) -> None:
        """End the stream and with it the thread; may be called again."""
        with self._lock:
            self._closed = True
            if self._socket is not None:
                # The engine may have hung up at this moment.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait until the stream has ended; call this off the event loop."""
        self._thread.join()

    def _run(self) -> None:
        connector = self._connector
        error: EngineUnavailable = EngineGone(
            f"the Docker engine on {connector.address} ended its stream of events"
        )
        try:
            with connector.translated("report events"):
                self._follow()
        except EngineGone as reason:
            error = reason
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
                    self._note(_parse(line))

    def _listen(self, client: requests.Session) -> requests.Response:
        """Return the open stream. The SDK's own ``events`` waits without limit for an engine that hangs."""
        filters = {"type": ["container"], "label": [LABEL_DEVICE], "event": ACTIONS}
        response = client.get(
            f"{client.base_url}/v{client.api_version}/events",  # type: ignore[attr-defined]
            params={"filters": json.dumps(filters), "since": f"{self._since:.6f}"},
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
                f"the Docker engine on {self._connector.address} keeps no stream of events open"
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
            raise unknown_words("reports events", error) from error
        with self._lock:
            before = self._pending.get(container)
            last_words = death or (before.last_words if before else None)
            self._pending[container] = ContainerChange(container, last_words, destroyed)
            crowded = len(self._pending) > PENDING_LIMIT
        if crowded:
            raise EngineUnavailable(f"more than {PENDING_LIMIT} containers changed at once")
        self._wake()

    def _wake(self) -> None:
        # A closed loop has no task left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._news.set)


def _parse(line: bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise EngineUnavailable(f"the Docker engine reports events that are no JSON: {error}") from error
    return event if isinstance(event, dict) else {}


def ids_of_list(answer: Sequence[Mapping[str, Any]]) -> tuple[ContainerId, ...]:
    """Return the ids of containers with a lease device, from ``GET /containers/json``.

    The label alone does not suffice: it is empty on containers of confined users without a lease.
    """
    try:
        return tuple(ContainerId(each["Id"]) for each in answer if each["Labels"].get(LABEL_DEVICE))
    except (KeyError, TypeError, AttributeError) as error:
        raise unknown_words("lists containers", error) from error


def facts_of_inspect(answer: Mapping[str, Any]) -> ContainerFacts:
    """Return the facts of ``GET /containers/<id>/json``."""
    try:
        state, config = answer["State"], answer["Config"]
        labels: dict[str, str] = config.get("Labels") or {}
        return ContainerFacts(
            id=ContainerId(answer["Id"]),
            name=answer["Name"].removeprefix("/"),
            image=config.get("Image") or "",
            status=_status(state),
            exit_code=int(state["ExitCode"]),
            pid=int(state["Pid"]),
            device_name=labels.get(LABEL_DEVICE, ""),
            owner_uid=_uid(labels.get(LABEL_OWNER)),
            restart_policy=answer["HostConfig"]["RestartPolicy"]["Name"] or "no",
            labels=labels,
            stop_signal=config.get("StopSignal") or "",
            stop_seconds=DEFAULT_STOP_SECONDS if (own := config.get("StopTimeout")) is None else int(own),
            memory=ContainerMemory(int(answer["HostConfig"].get("Memory") or 0)),
            start_error=str(state.get("Error") or "")[:START_ERROR_CHARACTERS],
            ran_seconds=_ran_seconds(state),
            started_at=_moment(str(state.get("StartedAt") or "")),
            finished_at=_moment(str(state.get("FinishedAt") or "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unknown_words("describes a container", error) from error


def facts_of_death(event: Mapping[str, Any]) -> ContainerFacts | None:
    """Return the facts of a ``die`` event, for a container that was removed before it could be inspected.

    Containers run with ``--rm`` usually are: their exit code is in this event or nowhere. The engine puts the
    labels and its own words ``name``, ``image``, ``exitCode`` into one map. The result is None if the event
    is no ``die``.
    """
    if event.get("Action") != DIE:
        return None
    actor = event["Actor"]
    labels = dict(actor["Attributes"])
    name, image, code, ran = (labels.pop(key, "") for key in ("name", "image", "exitCode", "execDuration"))
    if not code.isdecimal():
        return None
    return ContainerFacts(
        id=ContainerId(actor["ID"]),
        name=name,
        image=image,
        status=ContainerStatus.EXITED,
        exit_code=int(code),
        pid=0,
        device_name=labels.get(LABEL_DEVICE, ""),
        owner_uid=_uid(labels.get(LABEL_OWNER)),
        restart_policy="no",
        labels=labels,
        ran_seconds=float(ran) if ran.isdecimal() else None,
    )


def _status(state: Mapping[str, Any]) -> ContainerStatus:
    try:
        return ContainerStatus(state["Status"])
    except ValueError:
        # Engines that only speak Docker's API have more states; all of them report if the container runs.
        return ContainerStatus.RUNNING if state["Running"] else ContainerStatus.EXITED


def _ran_seconds(state: Mapping[str, Any]) -> float | None:
    """Return how long the container's last run took; None if it is not over, or never began."""
    if state.get("Running") or state.get("Error"):
        return None
    began, over = (_moment(str(state.get(key) or "")) for key in ("StartedAt", "FinishedAt"))
    return over - began if began is not None and over is not None and over >= began else None


def _moment(text: str) -> float | None:
    """Return a time as the engine writes it in seconds since the epoch; None for year 1, which means never."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.year > 1 and moment.tzinfo is not None else None


def _uid(label: str | None) -> int | None:
    return int(label) if label is not None and label.isascii() and label.isdecimal() else None
