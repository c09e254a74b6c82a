"""Say how a browser's connection came in by one of the listeners."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gpushared.net.socket_wire import Wire


@dataclass(frozen=True, slots=True)
class Arrival:
    """Describe one connection."""

    address: str
    """Tries to log in are counted by this text."""
    is_secure: bool
    """This is True if the browser itself speaks TLS, so that its cookie must be ``Secure``."""
    is_proxy: Callable[[], bool] | None = None
    """The other end names the user of each request, as long as this returns True; None: it is no proxy."""


ServeArrival = Callable[[Wire, Arrival], Awaitable[None]]
"""Serve one connection to its end, and close the wire."""
