"""What comes first when a container is to end: its MPS clients' end, or the signal that asks it to end.

The end of a client with work under way is undefined for its server and so for its neighbours. Therefore
clients are terminated before signals that end processes; except where the program catches the signal, for it
has said that it wants to end by itself, perhaps with a checkpoint that needs its GPU. Pure.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

_HARMLESS = frozenset(
    {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGSTOP}
    | {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)
"""Signals that end no process, whatever it makes of them (signal(7))."""
DEFAULT_SIGNAL = signal.SIGTERM
MOST_LEAD_SECONDS = 3.0


class Order(StrEnum):
    """When the clients are terminated: at once, before the kill that ends the grace, or never.

    Never is for signals by which nothing ends that does not end by itself.
    """

    CLIENTS_FIRST = "clients-first"
    CLIENTS_LAST = "clients-last"
    NOT_AT_ALL = "not-at-all"


@dataclass(frozen=True, slots=True)
class Process:
    """What a process makes of signals (the masks of /proc/PID/status), and the same of its children.

    ``init``: it is one of the small inits, which hand signals on to their child. ``first``: it is the first
    process of its PID namespace, to which signals that it does not catch do nothing but for SIGKILL.
    """

    caught: int = 0
    blocked: int = 0
    ignored: int = 0
    first: bool = True
    init: bool = False
    children: tuple[Process, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedEnd:
    """How somebody asked for a container's end; what is left out is the container's own to say.

    ``signal`` in Docker's words. ``kill``: SIGKILL follows when the grace is over.
    """

    signal: str = ""
    grace_seconds: int | None = None
    kill: bool = True


KILL = AskedEnd("KILL", kill=False)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a container is ended: a signal, then SIGKILL after a grace; no kill where that is None."""

    number: int
    grace_seconds: float | None = None


def at_once(asked: AskedEnd) -> bool:
    """Whether nothing is left to the container, whatever it is like."""
    return (asked.kill and asked.grace_seconds == 0) or signal_number(asked.signal) == signal.SIGKILL


def ending_of(asked: AskedEnd, stop_signal: str, stop_seconds: int) -> Ending:
    """With the container's own signal and grace where nothing else was asked for."""
    number = signal_number(asked.signal or stop_signal) or DEFAULT_SIGNAL
    if not asked.kill:
        return Ending(number)
    grace = stop_seconds if asked.grace_seconds is None else asked.grace_seconds
    return Ending(number, None if grace < 0 else grace)


def order_of(ending: Ending, main: Process | None) -> Order:
    """What to do with the clients of a container with this main process; None: nothing is known of it."""
    if ending.number == signal.SIGKILL or ending.grace_seconds == 0:
        return Order.CLIENTS_FIRST
    if ending.number in _HARMLESS and ending.grace_seconds is None:
        return Order.NOT_AT_ALL
    if main is not None and _catches(main, ending.number):
        return Order.NOT_AT_ALL if ending.grace_seconds is None else Order.CLIENTS_LAST
    if ending.grace_seconds is None and not (main is not None and _ends(main, ending.number)):
        return Order.NOT_AT_ALL
    return Order.CLIENTS_FIRST


def lead_seconds(grace_seconds: float) -> float:
    """How long before the kill the clients are terminated."""
    return min(MOST_LEAD_SECONDS, grace_seconds / 2)


def _catches(process: Process, number: int) -> bool:
    """Whether it catches the signal, or hands it on to one that does."""
    if _has(process.caught, number):
        return True
    return _hands_on(process, number) and any(_catches(child, number) for child in process.children)


def _ends(process: Process, number: int) -> bool:
    """Whether the signal itself ends processes there."""
    if _hands_on(process, number):
        return any(_ends(child, number) for child in process.children)
    dead_to = process.first or _has(process.ignored | process.blocked | process.caught, number)
    return not dead_to


def _hands_on(process: Process, number: int) -> bool:
    """As the small inits do: they wait for signals and send them to their child.

    While they wait the kernel shows the signals as not blocked, so they are known by their names; others
    that do the same are recognised when they are not waiting just then.
    """
    quiet = process.init or _has(process.blocked, number)
    return quiet and not _has(process.caught, number) and bool(process.children)


def _has(mask: int, number: int) -> bool:
    return bool(mask >> (number - 1) & 1)


def signal_number(text: str) -> int | None:
    """The signal that Docker means by ``15``, ``TERM`` or ``SIGTERM``; None for what is none."""
    if text.isascii() and text.isdecimal():
        return int(text) if 0 < int(text) < signal.NSIG else None
    name = text.upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    return next((one.value for one in _named(name)), None)


def _named(name: str) -> Iterable[signal.Signals]:
    return (one for one in signal.Signals if one.name == name)
