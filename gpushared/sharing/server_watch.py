"""Read and watch the servers of one control daemon: their clients, their faults, and their removal."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from gpushared.domain.model.errors import SharingUnavailable
from gpushared.ports import ServerFault

_log = logging.getLogger(__name__)

RECYCLE_SECONDS = 10.0
"""A server without clients may take this long to rebuild itself, and each step of its removal to work."""
_NAMED_CLIENT = re.compile(r"\{(?:PID: )?(\d+), (?:Context ID: )?\d+\}")
"""Servers write a client into their log as ``{PID: 4267, Context ID: 0}``, older ones as ``{4267, 0}``."""
_LOOK_AGAIN_SECONDS = 0.05
_LET_GO_SECONDS = 1.0
"""A client may still be listed this long; no document says that a terminated client leaves the list."""
_GONE = "not found"


class ServerState(StrEnum):
    """Name the answers to ``get_server_status``."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"


@dataclass(frozen=True, slots=True)
class MpsServer:
    """Describe a server.

    ``state`` is None if the daemon does not report it, ``clients`` None if unreliable.
    """

    pid: int
    state: ServerState | None = None
    clients: tuple[int, ...] | None = ()


class QueriedDaemon(Protocol):
    """Describe a control daemon that answers queries. Errors: ``SharingUnavailable``, ``TimedOut``."""

    async def ask(self, *commands: str) -> list[str]: ...

    async def servers(self) -> tuple[int, ...]: ...


async def read_server(control: QueriedDaemon, pid: int) -> MpsServer:
    """Return one server's state and clients; a server that is gone has none."""
    answer = await control.ask(f"get_server_status {pid}", f"get_client_list {pid}")
    lines = [line.strip() for line in answer]
    state = ServerState(lines[0]) if lines and lines[0] in set(ServerState) else None
    return MpsServer(pid, state, client_pids(pid, lines if state is None else lines[1:]))


def client_pids(server: int, lines: Iterable[str]) -> tuple[int, ...] | None:
    """Return the PIDs in a list of clients; None if the list cannot be trusted.

    A control daemon in a PID namespace of its own sees its clients as process 0.
    """
    pids = [pid for line in lines if (pid := line.strip()) and pid != f"Server {server} not found"]
    if not all(pid.isdecimal() and int(pid) > 0 for pid in pids):
        return None
    return tuple(map(int, pids))


def culprit_of(log: Sequence[str], clients: Collection[int]) -> int | None:
    """Return the client that a server's log names for a fault; None if it names none, or more than one.

    For memory faults the log is said to name the client; its wording is not documented. So any line about a
    fault counts, but only for a client of that server.
    """
    named = {
        int(pid)
        for line in log
        if "fault" in line.lower()
        for pid in _NAMED_CLIENT.findall(line)
        if int(pid) in clients
    }
    return named.pop() if len(named) == 1 else None


class WatchedDaemon(QueriedDaemon, Protocol):
    """Describe a control daemon that answers queries, and whose servers' log can be read."""

    def server_log(self) -> list[str]:
        """Return the newest lines."""
        ...

    async def restart_servers(self) -> None:
        """End the daemon and with it its servers; the daemon's keeper starts it again."""
        ...


@dataclass(frozen=True, slots=True)
class _Recycling:
    """Record the number of steps taken to remove a server, and when the last step was taken."""

    steps: int
    at: float


class ServerWatch:
    """Look at the servers of a daemon; a second ``look`` may begin before the first returns."""

    def __init__(self, control: WatchedDaemon, *, recycle_seconds: float = RECYCLE_SECONDS) -> None:
        self.servers: tuple[int, ...] = ()
        self.clients: frozenset[int] = frozenset()
        self.clients_at: float | None = None
        """The time at which the look at the clients began (``time.monotonic``); None if they are unknown."""
        self.served: frozenset[int] = frozenset()
        """The clients in the daemon's last answer."""
        self.faults: tuple[ServerFault, ...] = ()
        self._control = control
        self._recycle_seconds = recycle_seconds
        self._seen: dict[int, MpsServer] = {}
        self._recycling: dict[int, _Recycling] = {}

    async def look(self, is_current: Callable[[], bool]) -> None:
        """Query the daemon anew; the answer is dropped if ``is_current`` returns False by then."""
        began = time.monotonic()
        pids = await self._control.servers()
        servers = [await read_server(self._control, pid) for pid in pids]
        if not is_current():
            self.forget_clients()
        elif self.clients_at is None or began > self.clients_at:
            await self._take(servers, began)

    async def _take(self, servers: list[MpsServer], began: float) -> None:
        self.servers = tuple(server.pid for server in servers)
        before, self._seen = self._seen, {server.pid: server for server in servers}
        lists = [server.clients for server in servers]
        self.served = frozenset(pid for clients in lists for pid in clients or ())
        if None in lists:
            self.forget_clients()
        else:
            self.clients, self.clients_at = self.served, began
        in_fault = [server for server in servers if server.state is ServerState.FAULT]
        log = await asyncio.to_thread(self._control.server_log) if in_fault else []
        self.faults = tuple(self._fault(server, before.get(server.pid), log) for server in in_fault)
        self._recycling = {pid: recycling for pid, recycling in self._recycling.items() if pid in self._seen}

    def _fault(self, server: MpsServer, before: MpsServer | None, log: list[str]) -> ServerFault:
        """Return a server's fault with its victims: at first all clients, then those that are or were there.

        Later looks keep the victims that are there now or were at the look before.
        """
        clients = {*(server.clients or ()), *((before and before.clients) or ())}
        earlier = next((fault for fault in self.faults if fault.server == server.pid), None)
        if earlier is not None:
            return replace(earlier, clients=tuple(sorted(clients & set(earlier.clients))))
        culprit = culprit_of(log, clients)
        _log.warning("mps.fault server=%d clients=%s culprit=%s", server.pid, sorted(clients), culprit)
        return ServerFault(server.pid, tuple(sorted(clients)), culprit)

    def forget(self) -> None:
        """Forget the daemon's facts, because the daemon is gone."""
        self.servers, self.faults, self.served = (), (), frozenset()
        self._seen.clear()
        self._recycling.clear()
        self.forget_clients()

    def forget_clients(self) -> None:
        self.clients, self.clients_at = frozenset(), None

    async def recycle(self, *, wedged: bool) -> None:
        """Remove servers that stay in a fault, and wedged ones; never a server that has clients.

        Each step gets its time: to rebuild itself, to be shut down, to be shut down by force; then the whole
        daemon is started anew.
        """
        now = time.monotonic()
        if any(server.clients != () for server in self._seen.values()):
            self._recycling.clear()
            return
        for server in self._seen.values():
            if server.state is not ServerState.FAULT and not wedged:
                self._recycling.pop(server.pid, None)
                continue
            recycling = self._recycling.setdefault(server.pid, _Recycling(0, now))
            if now - recycling.at >= self._recycle_seconds:
                self._recycling[server.pid] = _Recycling(recycling.steps + 1, now)
                await self._step(server.pid, recycling.steps)

    async def _step(self, server: int, step: int) -> None:
        _log.warning("mps.recycle server=%d step=%d", server, step)
        match step:
            case 0:
                await self._control.ask(f"shutdown_server {server}")
            case 1:
                await self._control.ask(f"shutdown_server {server} -f")
            case _:
                await self._control.restart_servers()


class ClientLister(QueriedDaemon, Protocol):
    """Describe a control daemon whose servers list their clients."""

    async def clients(self, server: int) -> tuple[int, ...] | None: ...


async def detach_clients(control: ClientLister, pids: Collection[int]) -> int:
    """Terminate the clients among these processes (host PIDs), and wait until they are gone.

    Returns how many clients there were. Raises ``SharingUnavailable`` if the daemon refuses, ``TimedOut`` if
    it does not answer.
    """
    detached = 0
    for server in await control.servers():
        clients = await _clients_among(control, server, pids)
        for pid in clients:
            await _terminate(control, server, pid)
        detached += len(clients)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LET_GO_SECONDS):
                while clients and await _clients_among(control, server, clients):  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(_LOOK_AGAIN_SECONDS)
    return detached


async def _clients_among(control: ClientLister, server: int, pids: Collection[int]) -> list[int]:
    return sorted(set(await control.clients(server) or ()) & set(pids))


async def _terminate(control: ClientLister, server: int, pid: int) -> None:
    """Terminate one client. A process that has already ended is no client any more, which is fine too."""
    answer = [line.strip() for line in await control.ask(f"terminate_client {server} {pid}")]
    refused = next((line for line in answer if line and not line.isdecimal() and _GONE not in line), None)
    if refused is not None:
        raise SharingUnavailable(f"the MPS control daemon did not let process {pid} go: {refused}")
