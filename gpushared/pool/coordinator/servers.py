"""The coordinator's gRPC servers: one a door, each with the services that belong there, and health."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from gpushared.domain.model.errors import ConfigError
from gpushared.net.call_checks import OPTIONS, Context
from gpushared.net.intake import Intake
from gpushared.pool.coordinator.running_parts import Listener, Service

STOP_SECONDS = 2.0
"""How long calls that are under way may take at the end."""
MAX_CALLS_OF_A_NODE = 8192
"""All users of a node, with their tunnels and whatever they wait for, come over one connection; the node
holds each of them to less."""
_MOST = "grpc.max_concurrent_streams"
_MOST_CONNECTIONS = "grpc.max_allowed_incoming_connections"
_HANDSHAKE = ("grpc.server_handshake_timeout_ms", 10_000)
"""Who connects and says nothing is in nobody's way for longer (120 s without this)."""
_IDLE = ("grpc.max_connection_idle_ms", 30_000)
"""So long a connection stays on which nothing is called. Clients connect again when they call."""
_FIXED_WINDOW = ("grpc.http2.bdp_probe", 0)
"""Else the window of each stream grows with what one of them passes, and a call that waits for its turn may
have sent megabytes. Nodes, which pass much and are known, keep windows that grow."""
_OPTIONS_FOR_USERS = [*OPTIONS, _HANDSHAKE, _IDLE, _FIXED_WINDOW]
_OPTIONS_FOR_NODES = [*(one for one in OPTIONS if one[0] != _MOST), _HANDSHAKE, (_MOST, MAX_CALLS_OF_A_NODE)]


class _HealthOnce(health.aio.HealthServicer):
    """Answers once. A stream of answers would be open to strangers for as long as they like.

    Clients take UNIMPLEMENTED for a server that does not tell changes, and go on (gRPC's health protocol).
    """

    async def Watch(  # noqa: N802 - gRPC's name
        self, _: object, context: Context[Any, Any]
    ) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask with Check")


class ListenerServer:
    """One gRPC server. Its port is known once it is bound, and only then does it take calls."""

    def __init__(
        self,
        door: Listener,
        address: str,
        credentials: grpc.ServerCredentials | None,
        intake: Intake | None = None,
        max_connections: int = 0,
    ) -> None:
        """Binds. ``intake``: before all services. Raises ConfigError where the address is not to be had.

        ``max_connections``: more are closed as soon as they are accepted; 0 = no bound.
        """
        self._door = door
        options = _OPTIONS_FOR_NODES if door is Listener.NODES else _OPTIONS_FOR_USERS
        bound = [(_MOST_CONNECTIONS, max_connections)] if max_connections else []
        self._server = grpc.aio.server(
            options=[*options, *bound],
            interceptors=[intake] if intake else [],
        )
        try:
            self.port = (
                self._server.add_insecure_port(address)
                if credentials is None
                else self._server.add_secure_port(address, credentials)
            )
        except RuntimeError as error:
            raise ConfigError(
                f"{address} cannot be listened at",
                hint="is another program there (`ss -ltnp`)? is the address one of this machine?",
            ) from error

    @asynccontextmanager
    async def serving(self, services: Sequence[Service]) -> AsyncIterator[None]:
        """Takes calls as long as the block runs."""
        served = [service for service in services if self._door in service.doors]
        for service in served:
            service.add(self._server)
        await self._add_health([service.name for service in served])
        await self._server.start()
        try:
            yield
        finally:
            await self._server.stop(grace=STOP_SECONDS)

    async def _add_health(self, names: Sequence[str]) -> None:
        """Reflection tells what there is to call: administrators only."""
        checker = health.aio.HealthServicer() if self._door is Listener.LOCAL else _HealthOnce()
        health_pb2_grpc.add_HealthServicer_to_server(checker, self._server)
        for name in ("", *names):
            await checker.set(name, health_pb2.HealthCheckResponse.SERVING)
        if self._door is Listener.LOCAL:
            known = [*names, health.SERVICE_NAME, reflection.SERVICE_NAME]
            reflection.enable_server_reflection(known, self._server)
