"""Meeting a coordinator for the first time, with nothing to know it by but the digest in a join token."""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc
from cryptography import x509

from gpushared.api.v1 import pool_pb2, pool_pb2_grpc
from gpushared.domain.model.errors import (
    GpushareError,
    PermissionRefused,
    TimedOut,
    Unavailable,
)
from gpushared.net.identity import peer_of
from gpushared.pool.trust.addresses import Address
from gpushared.pool.trust.certificates import TOLERANCE_SECONDS, digest_of, offset_words, pem_of
from gpushared.pool.trust.secret_words import JoinWords

CONTACT_SECONDS = 15.0
COPY_BYTES = 64 * 1024


async def pinned_anchor(address: Address, words: JoinWords, now: float) -> bytes:
    """The one anchor that the token names, in PEM, as whoever answers there presents it.

    Raises PermissionRefused (another pool's coordinator, or a clock that is wrong), Unavailable, TimedOut.
    """
    trust = await _asked(address)
    offset = now - trust.now
    if not abs(offset) <= TOLERANCE_SECONDS:
        raise PermissionRefused(
            f"this machine's clock is {offset_words(offset)} the coordinator's; at most "
            f"{TOLERANCE_SECONDS} s are tolerated",
            hint="set the clock that is wrong, best on both machines by NTP: `timedatectl set-ntp true`",
        )
    for certificate in _certificates(trust.anchors):
        if digest_of(certificate) == words.digest:
            return pem_of(certificate)
    raise PermissionRefused(
        f"who answers at {address} is not the coordinator for which this token was made "
        f"(it says that it is of the pool {trust.pool[:64]!r})",
        hint="is the address right? If the pool's authority was replaced since, make a new token: "
        "gpushare pool token",
    )


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


async def _asked(address: Address) -> pool_pb2.Trust:
    try:
        async with (
            asyncio.timeout(CONTACT_SECONDS),
            _unverified(address) as target,
            grpc.aio.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)]) as channel,
        ):
            stub = pool_pb2_grpc.JoinStub(channel)
            answer: pool_pb2.Trust = await stub.GetTrust(pool_pb2.GetTrustRequest())
            return answer
    except grpc.aio.AioRpcError as error:
        raise _no_coordinator(address, error.details() or error.code().name) from error
    except TimeoutError as error:
        raise TimedOut(
            f"no coordinator answered at {address} within {CONTACT_SECONDS:.0f} s",
            hint="is a firewall between the machines? The coordinator listens on the port for users",
        ) from error


def _no_coordinator(address: Address, why: str) -> GpushareError:
    return Unavailable(
        f"no coordinator of a pool answers at {address}: {why}",
        hint="is it running there (`systemctl status gpushared-pool`), on that port?",
    )


@asynccontextmanager
async def _unverified(address: Address) -> AsyncIterator[str]:
    """A local socket that leads to the other end of TLS whose certificate nobody has checked.

    grpc checks certificates or does not encrypt; before there is an anchor to check by, its bytes go through
    TLS of our own. What comes back is believed only as far as the token's digest covers it.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host = address.host.strip("[]")
    try:
        far_reader, far_writer = await asyncio.open_connection(host, address.port, ssl=context)
    except (OSError, ssl.SSLError) as error:
        raise _no_coordinator(address, getattr(error, "strerror", None) or str(error)) from error
    ways: set[asyncio.Task[None]] = set()
    writers = [far_writer]

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if peer_of(writer.get_extra_info("socket")).pid != os.getpid():
            writer.close()  # everybody can find its name
            return
        ways.add(asyncio.create_task(_copy(reader, far_writer)))
        ways.add(asyncio.create_task(_copy(far_reader, writer)))

    # No file: the service may write to few places, and none of them is for such.
    name = f"gpushare-join-{secrets.token_hex(16)}"
    server = await asyncio.start_unix_server(accepted, f"\0{name}")
    try:
        yield f"unix-abstract:{name}"
    finally:
        server.close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        # Without a farewell of TLS, which grpc's servers do not answer.
        for writer in writers:
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(COPY_BYTES):
            writer.write(data)
            await writer.drain()
        writer.close()
