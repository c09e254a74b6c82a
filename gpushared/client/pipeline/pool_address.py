"""Find the pool's address, and the credentials of a program."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from gpushared.client.api import socket_path
from gpushared.domain.model.coordinator_addresses import divided, joined
from gpushared.domain.model.errors import ConfigError, RequestError

POOL_VARIABLE = "GPUSHARE_POOL"
CA_VARIABLE = "GPUSHARE_POOL_CA"
TOKEN_FILE_VARIABLE = "GPUSHARE_POOL_TOKEN_FILE"  # noqa: S105 - a variable's name
USERS_PORT = 7440
MAX_MESSAGE_BYTES = 4 << 20
MAX_TOKEN_BYTES = 1024
_ORGANIZATION = re.compile(r"'organizationName', 'gpushare pool ([a-z0-9-]{1,32})'")
"""The authorities of pools have such names."""
_CALL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A pool that is cut off without a word is noticed after both times.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A ping that measures the bandwidth holds back those of the keep-alive, and has 60 s of its own.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A channel is idle for at most twice as long, and so closes before the coordinator closes it, which gRPC would
    # print on the terminal.
    ("grpc.client_idle_timeout_ms", 14_000),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # ``patience`` decides which calls are tried again, how long and when.
    ("grpc.enable_retries", 0),
    # A site's web proxy must not get between a program and its pool.
    ("grpc.enable_http_proxy", 0),
)

_CONNECT_SOON = ("grpc.min_reconnect_backoff_ms", 8_000)
"""A machine that is frozen accepts connections, and says nothing more. gRPC would wait for 20 s."""


@dataclass(frozen=True, slots=True)
class PoolAddress:
    """Locate a pool. ``anchors``: PEM certificates; None: a node's unix socket, where the kernel names us.

    ``target`` holds the addresses of all coordinators, with commas between.
    """

    target: str
    anchors: bytes | None = None
    server_name: str = ""
    token_file: Path | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the address of each coordinator, or the node's socket alone."""
        return (self.target,) if self.anchors is None else divided(self.target)

    @property
    def options(self) -> list[tuple[str, int | str]]:
        named = [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []
        several = [_CONNECT_SOON] if len(self.targets) > 1 else []
        return [*_CALL_OPTIONS, *named, *several]

    @property
    def credentials(self) -> grpc.ChannelCredentials | None:
        return None if self.anchors is None else grpc.ssl_channel_credentials(self.anchors)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return a call's metadata, read anew each time: a token may be replaced while a program runs.

        Raises ConfigError.
        """
        if self.token_file is None:
            return ()
        return (("authorization", f"Bearer {read_token(self.token_file)}"),)


def find_pool(
    address: str | None = None,
    *,
    ca_file: str | Path | None = None,
    token_file: str | Path | None = None,
) -> PoolAddress:
    """Return ``HOST[:PORT]`` of a coordinator or ``unix:///PATH`` of a node, else GPUSHARE_POOL's, else ours.

    Several coordinators are written with commas between. The last choice is the node on this machine.
    ``ca_file`` and ``token_file`` default to GPUSHARE_POOL_CA and GPUSHARE_POOL_TOKEN_FILE. Raises
    ConfigError, RequestError.
    """
    address = address or os.environ.get(POOL_VARIABLE) or ""
    if not address or address.startswith("unix:"):
        return PoolAddress(f"unix:{socket_path(address or None)}")
    ca = _file_for(ca_file, CA_VARIABLE, "the pool's authority", "gpushare pool anchors > FILE")
    token = _file_for(
        token_file, TOKEN_FILE_VARIABLE, "an API token", "gpushare pool api-token --person NAME"
    )
    anchors = _read(ca)
    read_token(token)  # a faulty token raises now, not in the middle of a run
    targets = joined(map(_with_port, divided(address) or (address,)))
    return PoolAddress(targets, anchors, f"coordinator.{pool_of(anchors)}.gpushare.internal", token)


def _file_for(path: str | Path | None, variable: str, content: str, how: str) -> Path:
    path = path or os.environ.get(variable)
    if not path:
        raise ConfigError(
            f"a coordinator is asked with {content}, and no file with it was named",
            hint=f"on the coordinator's machine: {how}; then name the file by {variable}",
        )
    return Path(path)


def _with_port(address: str) -> str:
    """Return the address as gRPC writes it. Raises RequestError."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(USERS_PORT)
    if not host or set(host) & set(" /@,") or not port.isdecimal():
        raise RequestError(
            f"{address[:100]!r} is not the address of a pool",
            hint="write HOST or HOST:PORT, several with commas between",
        )
    return f"{host}:{port}"


def pool_of(anchors: bytes) -> str:
    """Return the name of the pool whose authority this is. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=anchors.decode())
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"the pool's authority cannot be read: {error}", hint="make the file anew: gpushare pool anchors"
        ) from error
    for certificate in context.get_ca_certs():
        # A name's parts, each of pairs: ((("organizationName", "..."),), (("commonName", "..."),)).
        match = _ORGANIZATION.search(str(certificate["subject"]))
        if match is not None:
            return match[1]
    raise ConfigError(
        "the file holds no authority of a pool", hint="make the file anew: gpushare pool anchors"
    )


def read_token(path: Path) -> str:
    """Return the token in a file. Raises ConfigError."""
    token = _read(path)[:MAX_TOKEN_BYTES].decode(errors="replace").strip()
    if not token.isascii() or not token.isprintable() or not token:
        raise ConfigError(
            f"{path} holds no API token", hint="gpushare pool api-token --person NAME -q > FILE"
        )
    return token


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="is the path right?") from error
