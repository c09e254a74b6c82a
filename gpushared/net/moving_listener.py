"""Listen at an address that may change while the daemon runs, or at none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpushared.daemon.tasks import within
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import ConfigError
from gpushared.net.front import Acceptor

RETRY_SECONDS = 10.0
_Address = TypeVar("_Address")


@dataclass(frozen=True, slots=True)
class ListenPlace(Generic[_Address]):
    """Say where to listen: ``address`` returns the address that holds now, and None for nowhere."""

    part: str
    """Troubles are noted under this name."""
    subject: str
    """The sentence of a trouble begins with this text, such as ``metrics``."""
    address: Callable[[], _Address | None]
    open: Callable[[_Address], socket.socket]
    """This function listens at an address. It may raise OSError or ConfigError."""
    address_text: Callable[[_Address], str]


class MovingListener(Generic[_Address]):
    """Listen where the place says. An address that cannot be had raises a trouble, and is tried again.

    ``arrived`` owns the sockets that it gets; ``listening`` is called with each new address.
    """

    def __init__(
        self,
        listen_place: ListenPlace[_Address],
        arrived: Callable[[socket.socket], None],
        troubles: Troubles,
        listening: Callable[[_Address], None] = lambda _: None,
    ) -> None:
        self._listen_place = listen_place
        self._arrived = arrived
        self._troubles = troubles
        self._listening = listening
        self._reloaded = asyncio.Event()

    def reload(self) -> None:
        """Ask for the address again."""
        self._reloaded.set()

    async def run(self) -> None:
        """Listen for ever."""
        while True:
            self._reloaded.clear()
            await self._listen(self._listen_place.address())

    async def _listen(self, address: _Address | None) -> None:
        """Listen at an address until another one is wanted; return after a pause if it cannot be had."""
        listen_place = self._listen_place
        if address is None:
            self._troubles.cleared(listen_place.part)
            await self._reloaded.wait()
            return
        try:
            listener = listen_place.open(address)
        except (OSError, ConfigError) as error:
            why = error.strerror if isinstance(error, OSError) else error.message
            text = f"{listen_place.subject} cannot be served at {listen_place.address_text(address)}: {why}"
            self._troubles.raised(listen_place.part, text)
            await within(self._reloaded, RETRY_SECONDS)
            return
        self._troubles.cleared(listen_place.part)
        self._listening(address)
        with Acceptor(listener, self._arrived).running():
            while listen_place.address() == address:
                self._reloaded.clear()
                await self._reloaded.wait()


def listen_tcp(address: tuple[str, int], backlog: int) -> socket.socket:
    """Listen at an IP address and a port. Raises OSError."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=backlog)


def tcp_words(address: tuple[str, int]) -> str:
    return f"{address[0]} port {address[1]}"
