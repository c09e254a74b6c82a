"""Read a control daemon's answers on its servers, by nvidia-cuda-mps-control(1), and else by trial."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

_NAMED_CLIENT = re.compile(r"\{(?:PID: )?(\d+), (?:Context ID: )?\d+\}")
"""Servers write a client into their log as ``{PID: 4267, Context ID: 0}``, older ones as ``{4267, 0}``."""


class ServerState(StrEnum):
    """Name the answers to ``get_server_status``."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"


@dataclass(frozen=True, slots=True)
class MpsServer:
    """Describe a server; ``state`` is None if the daemon is silent on it, ``clients`` None if unsure."""

    pid: int
    state: ServerState | None = None
    clients: tuple[int, ...] | None = ()


class QueriedDaemon(Protocol):
    """Describe a control daemon that can be asked. Errors: ``SharingUnavailable``, ``TimedOut``."""

    async def ask(self, *commands: str) -> list[str]: ...

    async def servers(self) -> tuple[int, ...]: ...


async def read_server(control: QueriedDaemon, pid: int) -> MpsServer:
    """Return one server's state and clients; a server that is gone has none."""
    lines = await control.ask(f"get_server_status {pid}", f"get_client_list {pid}")
    words = [line.strip() for line in lines]
    state = ServerState(words[0]) if words and words[0] in set(ServerState) else None
    return MpsServer(pid, state, client_pids(pid, words if state is None else words[1:]))


def client_pids(server: int, lines: Iterable[str]) -> tuple[int, ...] | None:
    """Return the PIDs in a list of clients; None if the list cannot be trusted.

    A control daemon in a PID namespace of its own sees its clients as process 0.
    """
    words = [line.strip() for line in lines]
    words = [word for word in words if word and word != f"Server {server} not found"]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        return None
    return tuple(map(int, words))


def culprit_of(log: Sequence[str], clients: Collection[int]) -> int | None:
    """Return the client that a server's log names for a fault; None if it names none, or more than one.

    For memory faults the log is said to name the client; its words are not documented. So any line about a
    fault counts, and only a client of that server is believed.
    """
    named = {
        int(pid)
        for line in log
        if "fault" in line.lower()
        for pid in _NAMED_CLIENT.findall(line)
        if int(pid) in clients
    }
    return named.pop() if len(named) == 1 else None
