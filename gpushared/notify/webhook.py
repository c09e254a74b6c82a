"""Send a notification as an HTTP request, signed as the Standard Webhooks specification says.

https://www.standardwebhooks.com: the headers ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature``,
which is ``v1,`` and the base64 of the HMAC-SHA256 of ``ID.TIMESTAMP.BODY``. A redirect is not followed: it
could lead to an address that the site does not allow.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import socket
import ssl
import threading
from collections.abc import Sequence
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11

from gpushared import __version__
from gpushared.daemon.files import read_private
from gpushared.daemon.troubles import answer_with
from gpushared.domain.model.errors import ConfigError
from gpushared.notify.attempt import Attempt, Delivered, GivenUp, TryAgain

SECONDS = 15.0
"""A request with its answer may take this long."""
MAX_ADDRESSES = 4
"""Try at most this many addresses of a host."""
HEAD_BYTES = 64 * 1024
SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of keys in the specification
_TRY_LATER = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


async def post(url: str, body: str, identity: str, at: int, secret_file: str) -> Attempt:
    """Send one notification. ``at``: the time of day, in seconds, for the signature."""
    data = body.encode()
    headers = [("webhook-id", identity), ("webhook-timestamp", str(at))]
    if secret_file:
        try:
            key = read_key(Path(secret_file))
        except ConfigError as error:
            return TryAgain(str(error))
        headers.append(("webhook-signature", signature(key, identity, at, data)))
    try:
        async with asyncio.timeout(SECONDS):
            status = await _status(url, data, headers)
    except TimeoutError:
        return TryAgain(f"it does not answer within {SECONDS:.0f} s")
    except ssl.SSLError as error:
        return TryAgain(f"its certificate or its TLS is not accepted: {error.reason or error}")
    except OSError as error:
        return TryAgain(f"it cannot be reached: {error.strerror or error}")
    except (h11.RemoteProtocolError, UnicodeError) as error:
        return TryAgain(f"its answer is not HTTP: {error}")
    return attempt_of_status(status)


def attempt_of_status(status: int) -> Attempt:
    """Return the result of an attempt by the status of its HTTP answer."""
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return Delivered()
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return GivenUp(f"it answers with a redirect ({status}), which is not followed")
    if status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _TRY_LATER:
        return GivenUp(f"it refuses notifications ({status})")
    return TryAgain(f"it answers with {status}")


def signature(key: bytes, identity: str, at: int, body: bytes) -> str:
    """Return the value of the signature's header."""
    signed = f"{identity}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


def read_key(path: Path) -> bytes:
    """Return the key in a file: base64 after ``whsec_``, else the text itself. Raises ConfigError."""
    text = read_private(path).strip()
    if not text.startswith(SECRET_PREFIX.encode()):
        key = text
    else:
        try:
            key = base64.b64decode(text.removeprefix(SECRET_PREFIX.encode()), validate=True)
        except binascii.Error:
            raise ConfigError(
                f"the key in {path} is not base64", hint="behind whsec_ stands base64"
            ) from None
    if not key:
        raise ConfigError(f"{path} is empty", hint=f"openssl rand -base64 32 >{path}")
    return key


async def _status(url: str, data: bytes, headers: Sequence[tuple[str, str]]) -> int:
    parts = urlsplit(url)
    secure, host = parts.scheme == "https", parts.hostname or ""
    port = parts.port or (443 if secure else 80)
    reader, writer = await _connected(host, port, secure=secure)
    try:
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        request = h11.Request(
            method="POST",
            target=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
            headers=[
                ("host", parts.netloc),
                ("user-agent", f"gpushared/{__version__}"),
                ("content-type", "application/json"),
                ("content-length", str(len(data))),
                ("connection", "close"),
                *headers,
            ],
        )
        for event in (request, h11.Data(data=data), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        await writer.drain()
        return await _answered(connection, reader)
    finally:
        writer.transport.abort()


async def _answered(connection: h11.Connection, reader: asyncio.StreamReader) -> int:
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(HEAD_BYTES))
        elif isinstance(event, h11.Response):
            return event.status_code
        elif not isinstance(event, h11.InformationalResponse):
            raise h11.RemoteProtocolError("the connection ended without an answer")


async def _connected(
    host: str, port: int, *, secure: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first of a host's addresses that takes the connection. Raises OSError."""
    failed: OSError = OSError("it has no address")
    for address in (await _addresses(host, port))[:MAX_ADDRESSES]:
        try:
            return await asyncio.open_connection(
                address, port, ssl=_context() if secure else None, server_hostname=host if secure else None
            )
        except OSError as error:
            failed = error
    raise failed


async def _addresses(host: str, port: int) -> list[str]:
    """Look a name up in a thread of its own: a name server that hangs must not fill the daemon's threads."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def look_up() -> list[str]:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in infos))

    threading.Thread(target=answer_with, args=(look_up, answer), name=f"look up {host}", daemon=True).start()
    addresses: list[str] = await answer
    return addresses


@cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()
