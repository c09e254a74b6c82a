"""Serve tunnels that end on this node at its gate, for callers whom the coordinator vouches for.

The connection is made as the job's account. It therefore reaches what that user could reach on this node, and
nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf

import grpc

from gpushared.api.v1 import link_pb2
from gpushared.daemon.tasks import TaskSet
from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.job import Owner
from gpushared.domain.model.errors import (
    GpushareError,
    LimitReached,
    NotFound,
    PermissionRefused,
    RequestError,
)
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.request import Caller
from gpushared.pool.tunnels.kept_bytes import KeptBytes
from gpushared.pool.tunnels.tunnel_frames import Data, Frame, frame, from_wire, pump, to_wire
from gpushared.pool.tunnels.tunnel_streams import CALL_ERRORS, CallCarrier, TunnelStream

log = logging.getLogger(__name__)

MAX_TUNNELS = 1024
PARTING_SECONDS = 10.0
KEEP_SECONDS = 660.0
"""Keep a connection whose call broke for this long: a little longer than its other end tries to resume it."""
STALL_SECONDS = 15.0
"""Let a container stand still for this long, because its output finds no room and no call."""
AWAY_SECONDS = 20.0
"""A queued request waits for this long without a call that carries its connection."""
Call = grpc.aio.StreamStreamCall[Data, Data]


@dataclass(slots=True, eq=False)
class _GateConnection:
    """Hold a connection to the gate that outlives its calls. ``task`` is the task that serves it now."""

    stream: TunnelStream
    whose: tuple[str, AttemptKey]
    task: asyncio.Task[None] | None = None


class TunnelEnds:
    """Answer ``OpenTunnel``: call the coordinator, and join the call with a connection to the gate."""

    def __init__(
        self,
        channel: Callable[[], Awaitable[grpc.aio.Channel]],
        attempt_of: Callable[[AttemptKey], Attempt | None],
        account_of: Callable[[Owner], Awaitable[Caller]],
        connect_as: Callable[[Caller, Callable[[], bool]], socket.socket],
        on_tunnel: Callable[[link_pb2.OpenTunnel, GpushareError | None], None] = lambda _, __: None,
        linked_seconds: Callable[[], float] = lambda: inf,
    ) -> None:
        """``channel`` returns a channel to the coordinator for tunnels; its provider closes the channel.

        ``account_of`` returns the account as which an owner's containers run here now. ``connect_as`` gets a
        function that returns True if the connection's client seems to be gone. Both may raise errors of the
        tree. ``on_tunnel`` is called for each tunnel that is opened or refused. ``linked_seconds`` returns for
        how long the link has been up.
        """
        self._channel = channel
        self._attempt_of = attempt_of
        self._account_of = account_of
        self._connect_as = connect_as
        self._on_tunnel = on_tunnel
        self._linked_seconds = linked_seconds
        self._tasks = TaskSet()
        self._connections: dict[str, _GateConnection] = {}
        """Hold the connections by the secret names that their openers gave them."""
        self._kept_bytes = KeptBytes()

    def open(self, request: link_pb2.OpenTunnel) -> None:
        """Start to serve the tunnel, and return at once."""
        self._tasks.start(self._serve(request))

    async def close(self) -> None:
        await self._tasks.cancel()

    async def _serve(self, request: link_pb2.OpenTunnel) -> None:
        try:
            call = _open_call(await self._channel())
            try:
                await self._join(request, call)
            finally:
                call.cancel()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError, GpushareError) as error:
            log.info("tunnel of job=%s ended: %s", request.job_id, error)

    async def _join(self, request: link_pb2.OpenTunnel, call: Call) -> None:
        try:
            account = await self._account_for(request)
            sock = None if request.HasField("received") else self._connect(request, account)
        except GpushareError as error:
            self._on_tunnel(request, error)
            await call.write(
                link_pb2.TunnelData(
                    tunnel_id=request.tunnel_id,
                    error_code=error.code,
                    error_message=error.message,
                    error_hint=error.hint,
                )
            )
            await _part(call)
            return
        self._on_tunnel(request, None)
        await call.write(link_pb2.TunnelData(tunnel_id=request.tunnel_id))
        if sock is None:
            await self._take_up(request, call)
        elif request.stream_id:
            stream = TunnelStream(sock, opened_here=False, is_kept_there=True, kept_bytes=self._kept_bytes)
            connection = _GateConnection(stream, _whose(request))
            self._connections[request.stream_id] = connection
            await self._look_after(request, call, connection)
        else:
            await self._pass_on(call, sock)

    def _connect(self, request: link_pb2.OpenTunnel, account: Caller) -> socket.socket:
        if request.stream_id in self._connections:
            raise RequestError("a connection of that name is there", hint="each connection has its own")
        return self._connect_as(account, partial(self._is_away, request.stream_id))

    def _is_away(self, stream_id: str) -> bool:
        """Return True if no call has come for a connection though the link has been up for long.

        Without the link no client can show that it waits.
        """
        connection = self._connections.get(stream_id)
        if connection is None:
            return False
        return min(connection.stream.seconds_alone(), self._linked_seconds()) >= AWAY_SECONDS

    # --- a connection that outlives its calls --------------------------------------------------------------

    async def _take_up(self, request: link_pb2.OpenTunnel, call: Call) -> None:
        """Resume a connection, or answer that it is over."""
        connection = self._connections.get(request.stream_id)
        if connection is None or connection.whose != _whose(request):
            await CallCarrier(call, link_pb2.TunnelData).write(over=True)
            await _part(call)
            return
        before, connection.task = connection.task, asyncio.current_task()
        if before is not None:
            before.cancel()
            await asyncio.gather(before, return_exceptions=True)
        await self._look_after(request, call, connection)

    async def _look_after(
        self, request: link_pb2.OpenTunnel, call: Call, connection: _GateConnection
    ) -> None:
        """Carry the connection by this call, then keep it until it is over or another call resumes it."""
        connection.task = asyncio.current_task()
        try:
            with suppress(*CALL_ERRORS):
                carrier = CallCarrier(call, link_pb2.TunnelData)
                await carrier.write(received=connection.stream.received)
                await connection.stream.carry(carrier, request.received)
                if connection.stream.is_over:
                    await carrier.write(over=True)
            if connection.stream.is_over:
                await _part(call)
            elif connection.stream.received:  # else the gate has received no request yet
                call.cancel()
                log.info("tunnel of job=%s broke, and is kept for another call", request.job_id)
                await _until_given_up(connection.stream)
        finally:
            if connection.task is asyncio.current_task():
                del self._connections[request.stream_id]
                await connection.stream.close()

    # --- a connection that ends with its call --------------------------------------------------------------

    async def _pass_on(self, call: Call, sock: socket.socket) -> None:
        async def receive() -> bytes | memoryview | None:
            data = await call.read()
            if not isinstance(data, Frame | link_pb2.TunnelData):
                return None
            if data.end:
                sock.shutdown(socket.SHUT_WR)
            return data.data

        async def send(data: bytes, end: bool) -> None:
            await call.write(link_pb2.TunnelData(end=True) if end else frame(data))
            if end:
                await call.done_writing()

        with sock:
            await pump(sock, receive, send)

    # --- the account ---------------------------------------------------------------------------------------

    async def _account_for(self, request: link_pb2.OpenTunnel) -> Caller:
        """Return the account of the requested attempt here.

        Raises NotFound, PermissionRefused, LimitReached, Unavailable or TimedOut.
        """
        if len(self._tasks) > MAX_TUNNELS:
            raise LimitReached("this node has too many tunnels open", hint="close some attached clients")
        attempt = self._attempt_of(AttemptKey(JobId(request.job_id), request.attempt))
        if attempt is None or attempt.spec is None or attempt.account is None:
            raise NotFound(
                f"job {request.job_id} has nothing on this node",
                hint=f"where it is: gpushare why {request.job_id}",
            )
        if request.person != attempt.spec.owner.person and not request.admin:
            raise PermissionRefused(
                f"job {request.job_id} is not {request.person}'s", hint="only its owner and admins reach it"
            )
        if request.admin and request.person != attempt.spec.owner.person:
            log.warning("admin=%s reaches the containers of %s", request.person, attempt.account.name)
        # The owner may have lost the account since; a job's record gives no right to the account.
        account = await self._account_of(attempt.spec.owner)
        if account.uid != attempt.account.uid:
            raise PermissionRefused(
                f"{request.person} is {account.name} on this node now, and job {request.job_id} ran as "
                f"{attempt.account.name}",
                hint="ask the node's admin, who sees [pool.accounts] there",
            )
        return account


def _whose(request: link_pb2.OpenTunnel) -> tuple[str, AttemptKey]:
    return request.person, AttemptKey(JobId(request.job_id), request.attempt)


async def _part(call: Call) -> None:
    """End a call after the other side has read the last message."""
    with suppress(*CALL_ERRORS, TimeoutError):
        await call.done_writing()
        async with asyncio.timeout(PARTING_SECONDS):
            await call.code()


async def _until_given_up(stream: TunnelStream) -> None:
    """Wait until nobody resumes the connection in time, or its program would stand still for too long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(KEEP_SECONDS):
            await stream.stuck.wait()
            await asyncio.sleep(STALL_SECONDS)


def _open_call(channel: grpc.aio.Channel) -> Call:
    """Call ``NodeLink.Serve``."""
    return channel.stream_stream(
        "/gpushare.v1.NodeLink/Serve",
        request_serializer=to_wire(link_pb2.TunnelData),
        response_deserializer=from_wire(link_pb2.TunnelData),
    )()
