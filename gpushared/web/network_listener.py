"""Serve the page to the network: accept connections at ``[web] listen``, and end TLS in front of the page's HTTP.

The HTTP server works on bare sockets. Behind TLS it gets one end of a pair of sockets, and this module copies
between the other end and the browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial

from gpushared.config.web_settings import WebConfig
from gpushared.daemon.tasks import TaskSet, until_first_ends
from gpushared.daemon.troubles import Troubles
from gpushared.net.limits import UserLimits, UserShare
from gpushared.net.moving_listener import ListenPlace, MovingListener, listen_tcp, tcp_words
from gpushared.net.socket_wire import Wire
from gpushared.web.arrivals import Arrival, ServeArrival
from gpushared.web.certificates import CertificateFiles, ServerCertificate, TlsFiles
from gpushared.web.open_connections import OpenConnections

log = logging.getLogger(__name__)

PART = "web listen"
BACKLOG = 128
HANDSHAKE_SECONDS = 10.0
SHUTDOWN_SECONDS = 2.0
LAST_SECONDS = 10.0
COPY_BYTES = 64 * 1024
BUFFER_BYTES = 64 * 1024

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class NetworkListener:
    """Listen at the address that the settings have now, with the certificate that the files have now."""

    def __init__(
        self,
        settings: Callable[[], WebConfig],
        serve: ServeArrival,
        troubles: Troubles,
        now: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._serve = serve
        place = ListenPlace(PART, "the page", self._address, partial(listen_tcp, backlog=BACKLOG), tcp_words)
        self._listener = MovingListener(place, self._arrived, troubles, self._log_address)
        self._files = CertificateFiles(self._tls_files, troubles, now, changed=self._listener.reload)
        self._tasks = TaskSet("a browser's connection failed")
        self._open = OpenConnections()
        self._turns = UserShare(UserLimits())

    @property
    def certificate(self) -> ServerCertificate | None:
        """Return the certificate that new connections get; None without TLS."""
        return self._files.current

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._tasks)

    def reload(self) -> None:
        """Look at the settings and at the files again."""
        self._files.reload()
        self._listener.reload()

    async def look(self) -> None:
        """Read the certificate, if there is one."""
        await self._files.look()

    async def run(self) -> None:
        """Serve for ever."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._files.run())
                group.create_task(self._listener.run())
        finally:
            await self._tasks.cancel()

    def _tls_files(self) -> TlsFiles | None:
        web = self._settings()
        return TlsFiles(web.certificate, web.key, web.proxy_ca) if web.listen and web.certificate else None

    def _address(self) -> tuple[str, int] | None:
        """Return where to listen; nowhere before the certificate could be read."""
        web = self._settings()
        return None if web.certificate and self.certificate is None else web.address

    def _log_address(self, address: tuple[str, int]) -> None:
        log.info("serving the page address=%s port=%d tls=%s", *address, self.certificate is not None)

    def _arrived(self, sock: socket.socket) -> None:
        address = _address_of(sock)
        if not address or not self._open.has_room(address):
            sock.close()
            return
        task = self._tasks.start(self._converse(sock, address), sock.close)
        self._open.add(address, task)
        task.add_done_callback(partial(self._open.remove, address))

    async def _converse(self, sock: socket.socket, address: str) -> None:
        certificate = self.certificate
        try:
            if certificate is None:
                if _is_remote(sock):
                    return  # the certificate was just taken out of the settings
                await self._serve(Wire(sock), Arrival(address, is_secure=False))
            else:
                # A flood of connections, each with work for TLS, must leave the loop to others in between.
                await self._turns.turn()
                await self._behind_tls(await _handshake(sock, certificate.context), address)
        except (OSError, ssl.SSLError, TimeoutError) as error:
            log.debug("browser lost: %s", error)

    async def _behind_tls(self, browser: Streams, address: str) -> None:
        # A certificate that TLS has not verified never gets here: the handshake fails.
        has_certificate = bool(browser[1].get_extra_info("peercert"))
        authority = self._settings().proxy_ca

        def is_proxy() -> bool:
            return self._settings().proxy_ca == authority

        arrival = Arrival(address, is_secure=True, is_proxy=is_proxy if has_certificate else None)
        try:
            near, far = socket.socketpair()
            near.setblocking(False)
            try:
                page = await asyncio.open_unix_connection(sock=far)
            except BaseException:
                near.close()
                raise
            served = asyncio.create_task(_as_task(self._serve(Wire(near), arrival)))
            copying = asyncio.create_task(_splice(browser, page))
            try:
                await asyncio.wait({served, copying}, return_when=asyncio.FIRST_COMPLETED)
                # Once the server has ended, the browser gets what is still on the way, if it reads.
                await asyncio.wait({copying}, timeout=LAST_SECONDS)
            finally:
                # This comes before any wait, which the listener's end may cancel.
                page[1].close()
                await _ended(served, copying)
        finally:
            browser[1].close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await browser[1].wait_closed()


async def _as_task(work: Awaitable[None]) -> None:
    await work


async def _ended(served: asyncio.Task[None], copying: asyncio.Task[None]) -> None:
    """Wait for the server of a connection that was closed; end the server if this task is cancelled."""
    copying.cancel()
    try:
        await asyncio.wait({served, copying})
    except asyncio.CancelledError:
        served.cancel()
        raise
    served.result()


async def _handshake(sock: socket.socket, context: ssl.SSLContext) -> Streams:
    """Return the streams behind TLS. Raises OSError or SSLError, in bounded time."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=BUFFER_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol,
        sock,
        ssl=context,
        ssl_handshake_timeout=HANDSHAKE_SECONDS,
        ssl_shutdown_timeout=SHUTDOWN_SECONDS,
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _splice(one: Streams, other: Streams) -> None:
    """Copy both ways until one of them is over: a browser that ends its side wants no more."""
    await until_first_ends(_copy(one[0], other[1]), _copy(other[0], one[1]))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while data := await reader.read(COPY_BYTES):
            writer.write(data)
            await writer.drain()


def _is_remote(sock: socket.socket) -> bool:
    return not ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def _address_of(sock: socket.socket) -> str:
    """Return the other end's address as it is counted; empty if the other end is gone already.

    A site gives each machine of IPv6 a whole network of 64 bits.
    """
    try:
        address = ipaddress.ip_address(sock.getpeername()[0].partition("%")[0])
    except (OSError, ValueError):
        return ""
    return str(ipaddress.IPv6Network((address, 64), strict=False) if address.version == 6 else address)  # noqa: PLR2004
