"""Dial the coordinator by mutual TLS, or the first time with a join token's digest; choose when to retry."""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random

import grpc
from cryptography import x509

from gpushared.api.v1 import pool_pb2, pool_pb2_grpc
from gpushared.domain.model.backoff import backoff_seconds
from gpushared.domain.model.coordinator_addresses import CoordinatorAddresses
from gpushared.domain.model.errors import (
    GpushareError,
    PermissionRefused,
    TimedOut,
    Unavailable,
    WrongCoordinator,
)
from gpushared.net.call_checks import MAX_MESSAGE_BYTES, hint_of
from gpushared.net.identity import peer_of
from gpushared.pool.trust.certificates import TOLERANCE_SECONDS, Address, digest_of, offset_words, pem_of
from gpushared.pool.trust.token_records import JoinToken

KEEPALIVE_SECONDS = 20.0
KEEPALIVE_TIMEOUT_SECONDS = 10.0
"""The node notices a link that was cut silently after both times. Servers refuse more frequent pings."""
RECONNECT_SECONDS = 5.0
"""Override gRPC's own limit of two minutes: until then calls fail although the coordinator is back."""
MAX_DETAILS = 300
PARTING_SECONDS = 24 * 3600.0
"""Calls over a channel may go on for this long after there is a newer channel."""

_TIMED_OUT = ("timed out", "timeout")
"""gRPC's texts when the kernel or a ping has given a connection up: the other end sends nothing any more."""
_TLS_FAILED = ("CERTIFICATE_VERIFY_FAILED", "Ssl handshake failed", "Hostname Verification Check failed")
CONTACT_SECONDS = 15.0
COPY_BYTES = 64 * 1024


def channel_options(server_name: str) -> list[tuple[str, str | int]]:
    """Return the options of a channel to the coordinator whose certificate holds ``server_name``."""
    return [
        ("grpc.ssl_target_name_override", server_name),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", int(KEEPALIVE_SECONDS * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_SECONDS * 1000)),
        # A ping that measures the bandwidth holds back those of the keep-alive, and has 60 s of its own.
        ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_TIMEOUT_SECONDS * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_reconnect_backoff_ms", int(RECONNECT_SECONDS * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        # Without this option channels to one address share a connection and its back-off.
        ("grpc.use_local_subchannel_pool", 1),
        # A site's web proxy must not stand between the machines of a pool.
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
    ]


class Dial:
    """Make channels to the coordinator. Each has its own connection and reads the credentials again."""

    def __init__(
        self,
        addresses: Callable[[], Sequence[str]],
        credentials: Callable[[], grpc.ChannelCredentials],
        server_name: str,
        version: Callable[[], int] = lambda: 0,
    ) -> None:
        """The coordinators' certificates must hold ``server_name``, whatever the address.

        ``credentials`` may read files; it raises errors of the tree. ``version`` changes with the
        credentials.
        """
        self.addresses = CoordinatorAddresses(addresses)
        self._credentials = credentials
        self._server_name = server_name
        self._version = version
        self._shared_channel: grpc.aio.Channel | None = None
        self._shared_target: tuple[str, int] | None = None
        self._making = asyncio.Lock()
        self._retired: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    @property
    def address(self) -> str:
        return self.addresses.present

    async def channel(self, address: str = "") -> grpc.aio.Channel:
        """Return a channel that is not connected yet, by default to the present address.

        The caller closes the channel. Raises ConfigError if the credentials cannot be read.
        """
        credentials = await asyncio.to_thread(self._credentials)
        options = channel_options(self._server_name)
        return grpc.aio.secure_channel(address or self.address, credentials, options)

    async def shared_channel(self) -> grpc.aio.Channel:
        """Return the shared channel for calls beside the link, to the coordinator that answered last.

        A change of the credentials or the address makes a new channel; calls on the previous channel may end
        by themselves. Raises as ``channel`` does.
        """
        async with self._making:
            target = (self.addresses.answering, self._version())
            if self._shared_channel is None or self._shared_target != target:
                before, self._shared_channel = self._shared_channel, await self.channel(target[0])
                self._shared_target = target
                if before is not None:
                    self._retire(before)
            return self._shared_channel

    def _retire(self, channel: grpc.aio.Channel) -> None:
        task = asyncio.create_task(channel.close(PARTING_SECONDS))
        self._retired[task] = channel
        task.add_done_callback(lambda closed: self._retired.pop(closed, None))

    async def close(self) -> None:
        """Close the shared channel and its predecessors."""
        tasks, channels = list(self._retired), list(self._retired.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._shared_channel is not None:
            channels.append(self._shared_channel)
            self._shared_channel = None
        for channel in channels:
            await channel.close()


def fault(address: str, error: grpc.aio.AioRpcError) -> GpushareError:
    """Return the error that explains a failed call to the coordinator at ``address``.

    It is TimedOut if the coordinator fell silent, and Unavailable if the connection was closed or refused.
    """
    details = _one_line(error.details() or error.code().name)
    if error.code() is grpc.StatusCode.INTERNAL:
        # grpcio says no more of a call that was refused while something was written to it.
        details = "it ended the connection"
    if any(sign in details for sign in _TLS_FAILED):
        return WrongCoordinator(
            f"who answers at {address} is not the coordinator of this node's pool: {details}",
            hint="is another coordinator there, made anew by `gpushare pool init`? then join it with "
            "`gpushare node join`; or has its certificate run out, or a clock gone wrong?",
        )
    if hint := hint_of(error):
        return Unavailable(f"the coordinator at {address} refuses the link: {details}", hint=hint)
    kind = TimedOut if any(sign in details for sign in _TIMED_OUT) else Unavailable
    return kind(
        f"the coordinator at {address} does not answer: {details}",
        hint="it is dialled again by itself; jobs and leases here go on meanwhile",
    )


def _one_line(details: str) -> str:
    """Return the end of gRPC's text, which names the cause."""
    cause = details.rpartition("last error: ")[2]
    return "".join(c if c.isprintable() else " " for c in cause)[-MAX_DETAILS:]


@dataclass(frozen=True, slots=True)
class Retry:
    """Hold waits in seconds.

    ``patient`` follows a refusal of the coordinator, which only people can change. While several coordinators
    choose a new leader, for ``brisk``, the waits do not grow.
    """

    first: float = 1.0
    last: float = 30.0
    patient: float = 60.0
    brisk: float = 60.0


class Backoff:
    """Draw waits whose bound doubles, each evenly between nothing and its bound ("full jitter")."""

    def __init__(self, retry: Retry, random: Random) -> None:
        self._retry = retry
        self._random = random
        self._failures = 0

    def after_success(self) -> None:
        self._failures = 0

    def seconds(self, spread: float) -> float:
        """Return the seconds to wait now. The first waits are drawn from 0 to at least ``spread`` seconds."""
        self._failures += 1
        bound = backoff_seconds(self._failures, first=self._retry.first, longest=self._retry.last)
        return self._random.uniform(0.0, max(spread, bound))

    def brisk_seconds(self, spread: float) -> float:
        """Return the seconds to wait while another coordinator may lead in a moment."""
        return self._random.uniform(0.0, min(spread, self._retry.last))

    def patient_seconds(self) -> float:
        return self._retry.patient * self._random.uniform(0.5, 1.0)


async def pinned_anchor(address: Address, token: JoinToken, now: float) -> bytes:
    """Fetch the one anchor that the token names, in PEM, from the server at the address.

    Raises PermissionRefused (another pool's coordinator, or a clock that is wrong), Unavailable, TimedOut.
    """
    trust = await _trust_of(address)
    offset = now - trust.now
    if not abs(offset) <= TOLERANCE_SECONDS:
        raise PermissionRefused(
            f"this machine's clock is {offset_words(offset)} the coordinator's; at most "
            f"{TOLERANCE_SECONDS} s are tolerated",
            hint="set the clock that is wrong, best on both machines by NTP: `timedatectl set-ntp true`",
        )
    for certificate in _certificates(trust.anchors):
        if digest_of(certificate) == token.digest:
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


async def _trust_of(address: Address) -> pool_pb2.Trust:
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
    """Open a local socket that leads to the other end of TLS whose certificate nobody has checked.

    grpc either checks certificates or does not encrypt. Before the node has an anchor for the check, this
    module sends grpc's bytes through its own TLS. The caller believes an answer only as far as the token's
    digest covers it.
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
            writer.close()  # every process can find the socket's name
            return
        ways.add(asyncio.create_task(_copy(reader, far_writer)))
        ways.add(asyncio.create_task(_copy(far_reader, writer)))

    # Use no file: the service may write to few places, and none of them is for sockets.
    name = f"gpushare-join-{secrets.token_hex(16)}"
    server = await asyncio.start_unix_server(accepted, f"\0{name}")
    try:
        yield f"unix-abstract:{name}"
    finally:
        server.close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        # Skip the closing message of TLS, which grpc's servers do not answer.
        for writer in writers:
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(COPY_BYTES):
            writer.write(data)
            await writer.drain()
        writer.close()
