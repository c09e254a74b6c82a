"""Serve the page to proxies on this machine, at a unix socket of their own."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from gpushared.config.web_settings import WebConfig
from gpushared.daemon.tasks import TaskSet
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import GpushareError, LimitReached
from gpushared.domain.model.request import Caller
from gpushared.net.front import listen
from gpushared.net.identity import Peer, peer_of
from gpushared.net.limits import Rates
from gpushared.net.moving_listener import ListenPlace, MovingListener
from gpushared.net.socket_wire import Wire
from gpushared.web.arrivals import Arrival, ServeArrival

log = logging.getLogger(__name__)

PART = "web proxy socket"
SOCKET_MODE = 0o666
"""The kernel tells who connects, as at the daemon's own socket."""
MAX_CONNECTIONS = 1024
PROXY = "a proxy"
WARNINGS_BURST = 5
WARNINGS_PER_SECOND = 1 / 60

AccountOf = Callable[[int | str], Awaitable[Caller]]


class ProxySocket:
    """Listen at the socket that the settings name now, for programs of the accounts that they name now."""

    def __init__(
        self,
        settings: Callable[[], WebConfig],
        account: AccountOf,
        serve: ServeArrival,
        troubles: Troubles,
    ) -> None:
        self._settings = settings
        self._account = account
        self._serve = serve
        place = ListenPlace(PART, "the page", self._path, _listen, str)
        self._listener = MovingListener(place, self._arrived, troubles, _log_path)
        self._tasks = TaskSet("a proxy's connection failed")
        self._warnings = Rates(time.monotonic, burst=WARNINGS_BURST, per_second=WARNINGS_PER_SECOND)

    def reload(self) -> None:
        """Look at the settings again."""
        self._listener.reload()

    async def run(self) -> None:
        """Serve for ever."""
        try:
            await self._listener.run()
        finally:
            await self._tasks.cancel()

    def _path(self) -> Path | None:
        text = self._settings().proxy_socket
        return Path(text) if text else None

    def _arrived(self, sock: socket.socket) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS:
            sock.close()
            return
        self._tasks.start(self._converse(sock), sock.close)

    async def _converse(self, sock: socket.socket) -> None:
        try:
            peer = peer_of(sock)
            account = await self._proxy_of(peer)
            if account is None:
                self._warn(peer)
                return
            arrival = Arrival(
                PROXY, is_secure=False, is_proxy=lambda: account in self._settings().proxy_users
            )
            await self._serve(Wire(sock), arrival)
        except OSError as error:
            log.debug("proxy lost: %s", error)

    def _warn(self, peer: Peer) -> None:
        # Everybody may connect, as often as they like.
        with contextlib.suppress(LimitReached):
            self._warnings.spend(str(peer.uid))
            log.warning("not served at the socket of proxies: uid=%d pid=%d", peer.uid, peer.pid)

    async def _proxy_of(self, peer: Peer) -> str | None:
        """Return the name of the account of ``proxy_users`` that the peer has; None if it has none."""
        for name in self._settings().proxy_users:
            try:
                caller = await self._account(name)
            except GpushareError as error:
                log.warning("web.proxy_users: %s", error)
                continue
            if caller.uid == peer.uid:
                return name
        return None


def _listen(path: Path) -> socket.socket:
    return listen(path, SOCKET_MODE)


def _log_path(path: Path) -> None:
    log.info("serving the page to proxies socket=%s", path)
