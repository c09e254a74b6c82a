"""Choose which comes first when a container is to end: the end of its MPS clients, or its own signal.

The end of a client with work under way is undefined for its server and so for its neighbours. Therefore
clients are terminated before signals that end processes. The exception is a program that catches the signal:
by that it asks to end by itself, perhaps with a checkpoint that needs its GPU. Pure.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

_HARMLESS = frozenset(
    {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGSTOP}
    | {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)
"""These signals end no process, however it handles them (signal(7))."""
DEFAULT_SIGNAL = signal.SIGTERM
MOST_LEAD_SECONDS = 3.0


class ClientStopOrder(StrEnum):
    """Say when the clients are terminated: at once, before the kill that ends the grace, or never.

    Never is for signals that end only processes which would end by themselves.
    """

    CLIENTS_FIRST = "clients-first"
    CLIENTS_LAST = "clients-last"
    NOT_AT_ALL = "not-at-all"


@dataclass(frozen=True, slots=True)
class SignalHandling:
    """Record how a process handles signals (the masks of /proc/PID/status), with its children.

    ``init``: the process is one of the small inits, which forward signals to their child. ``first``: the
    process is the first of its PID namespace, on which signals that it does not catch have no effect, but for
    SIGKILL.
    """

    caught: int = 0
    blocked: int = 0
    ignored: int = 0
    first: bool = True
    init: bool = False
    children: tuple[SignalHandling, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedEnd:
    """Describe a request for a container's end; an empty field leaves the choice to the container.

    ``signal`` is in Docker's words. ``kill``: SIGKILL follows when the grace is over.
    """

    signal: str = ""
    grace_seconds: int | None = None
    kill: bool = True


KILL = AskedEnd("KILL", kill=False)


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """Describe the end of a container: a signal, then SIGKILL after a grace; no kill if the grace is None."""

    number: int
    grace_seconds: float | None = None


def at_once(request: AskedEnd) -> bool:
    """Return True if the request leaves no choice to the container."""
    return (request.kill and request.grace_seconds == 0) or signal_number(request.signal) == signal.SIGKILL


def ending_of(request: AskedEnd, stop_signal: str, stop_seconds: int) -> ContainerEnd:
    """Return the ending, with the container's own signal and grace unless the request names others."""
    number = signal_number(request.signal or stop_signal) or DEFAULT_SIGNAL
    if not request.kill:
        return ContainerEnd(number)
    grace = stop_seconds if request.grace_seconds is None else request.grace_seconds
    return ContainerEnd(number, None if grace < 0 else grace)


def order_of(ending: ContainerEnd, main: SignalHandling | None) -> ClientStopOrder:
    """Return when to terminate the clients of a container with this main process; None: it is unknown."""
    if ending.number == signal.SIGKILL or ending.grace_seconds == 0:
        return ClientStopOrder.CLIENTS_FIRST
    if ending.number in _HARMLESS and ending.grace_seconds is None:
        return ClientStopOrder.NOT_AT_ALL
    if main is not None and _catches(main, ending.number):
        return ClientStopOrder.NOT_AT_ALL if ending.grace_seconds is None else ClientStopOrder.CLIENTS_LAST
    if ending.grace_seconds is None and not (main is not None and _ends(main, ending.number)):
        return ClientStopOrder.NOT_AT_ALL
    return ClientStopOrder.CLIENTS_FIRST


def lead_seconds(grace_seconds: float) -> float:
    """Return how long before the kill the clients are terminated."""
    return min(MOST_LEAD_SECONDS, grace_seconds / 2)


def _catches(process: SignalHandling, number: int) -> bool:
    """Return True if the process catches the signal, or forwards it to a child that does."""
    if _has(process.caught, number):
        return True
    return _hands_on(process, number) and any(_catches(child, number) for child in process.children)


def _ends(process: SignalHandling, number: int) -> bool:
    """Return True if the signal itself ends processes there."""
    if _hands_on(process, number):
        return any(_ends(child, number) for child in process.children)
    dead_to = process.first or _has(process.ignored | process.blocked | process.caught, number)
    return not dead_to


def _hands_on(process: SignalHandling, number: int) -> bool:
    """Return True if the process forwards signals to its child, as the small inits do.

    While they wait for signals the kernel shows the signals as not blocked, so inits are known by their
    names; other programs that do the same are recognised at moments when they are not waiting.
    """
    quiet = process.init or _has(process.blocked, number)
    return quiet and not _has(process.caught, number) and bool(process.children)


def _has(mask: int, number: int) -> bool:
    return bool(mask >> (number - 1) & 1)


def signal_number(text: str) -> int | None:
    """Return the signal that Docker means by ``15``, ``TERM`` or ``SIGTERM``; None for an unknown one."""
    if text.isascii() and text.isdecimal():
        return int(text) if 0 < int(text) < signal.NSIG else None
    name = text.upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    return next((number.value for number in signal.Signals if number.name == name), None)
