"""Open tunnels that begin on this node: a Docker endpoint for each job that runs on another node.

``DOCKER_HOST`` can only name a socket. Each job that a user wants to reach therefore gets its own socket
here. Only the job's user may connect to the socket, and each connection is a tunnel to the gate of the job's
node.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import shutil
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple

import grpc

from gpushared.api.v1 import jobs_pb2
from gpushared.daemon.tasks import TaskSet, within
from gpushared.domain.model.errors import (
    GpushareError,
    LimitReached,
    NotFound,
    RequestError,
    Unavailable,
    http_status,
)
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import shown
from gpushared.net.error_answers import docker_error
from gpushared.net.identity import peer_of
from gpushared.pool.member.coordinator_calls import Metadata
from gpushared.pool.member.dial import Backoff, Retry
from gpushared.pool.tunnels.tunnel_frames import Chunk, from_wire, to_wire
from gpushared.pool.tunnels.tunnel_streams import CALL_ERRORS, CallCarrier, TunnelStream

log = logging.getLogger(__name__)

MAX_ENDPOINTS = 1024
MAX_ENDPOINTS_PER_USER = 256
MAX_CONNECTIONS_PER_USER = 256
"""Bound the connections of a user over all endpoints, because all users share the daemon's open files."""
IDLE_SECONDS = 3600.0
"""Close an endpoint that nobody used for this long; the next request makes it again."""
READY_TUNNELS = 3
"""``docker run`` makes this many connections. The tunnels are ready when a client learns an endpoint, since
most clients use it at once."""
READY_SECONDS = 5.0
MAX_READY_PER_USER = 12
"""Ready tunnels count in the coordinator's limit of a person; these few leave enough for tunnels in use."""
BACKLOG = 128
TAKE_UP_SECONDS = 600.0
"""Resume a connection whose call broke for this long: coordinators are upgraded and rebooted."""
RETRY = Retry(first=0.2, last=5.0)
FINAL = frozenset(
    {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}
)
"""No later try changes these refusals; a coordinator that starts again may answer any other refusal."""
REFUSAL = (
    b"HTTP/1.1 %d Refused\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
_JOB_ID = re.compile(r"[0-9A-Za-z]{1,32}(_[0-9]{1,7})?")
"""A socket's name may hold only these characters: the coordinator chooses the names of jobs."""
Call = grpc.aio.StreamStreamCall[Chunk, Chunk]
Vouch = Callable[[Caller, jobs_pb2.TunnelChunk], Awaitable[Metadata]]
"""Return the node's assertion of its user, as the metadata of a call."""


_Key = tuple[JobId, int, int, int]
"""The key is the job, the attempt (0 for the current one), the rank and the user."""


class Tunnel(NamedTuple):
    """Hold a call to the coordinator, and the secret name of the connection that it carries."""

    call: Call
    stream_id: str


@dataclass(slots=True, eq=False)
class _ReadyTunnel:
    """Hold a tunnel that nobody uses yet."""

    tunnel: Tunnel
    taken: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Endpoint:
    path: Path
    caller: Caller
    first: jobs_pb2.TunnelChunk
    """Each tunnel of the endpoint begins with this message."""
    listener: socket.socket
    accepting: asyncio.Task[None] | None = None
    open: int = 0
    used_at: float = 0.0
    ready: deque[_ReadyTunnel] = field(default_factory=deque)


class TunnelEndpoints:
    """Make and keep the sockets, one for each job and user."""

    def __init__(
        self,
        folder: Path,
        channel: Callable[[], Awaitable[grpc.aio.Channel]],
        vouch: Vouch,
        fault: Callable[[grpc.aio.AioRpcError], GpushareError],
    ) -> None:
        """``channel`` returns a channel to the coordinator for tunnels.

        ``fault`` converts its failed calls.
        """
        self._folder = folder
        self._channel = channel
        self._vouch = vouch
        self._fault = fault
        self._endpoints: dict[_Key, _Endpoint] = {}
        self._open: Counter[int] = Counter()
        self._ready: Counter[int] = Counter()
        self._is_back = asyncio.Event()
        """This event is set when a broken connection has a call again; later breaks get a new event."""
        self._tasks = TaskSet()

    async def endpoint(self, job: JobId, rank: int, caller: Caller, attempt: int = 0) -> str:
        """Return the path of the socket through which this caller reaches the job's node.

        Raises LimitReached, and RequestError if the name is no job's.
        """
        if _JOB_ID.fullmatch(job) is None:
            raise RequestError(f"{shown(job)} is no name of a job")
        self._close_idle()
        key = (job, attempt, rank, caller.uid)
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            of_user = sum(uid == caller.uid for _, _, _, uid in self._endpoints)
            if len(self._endpoints) >= MAX_ENDPOINTS or of_user >= MAX_ENDPOINTS_PER_USER:
                raise LimitReached("too many jobs elsewhere are reached from this node", hint="try later")
            endpoint = self._endpoints[key] = self._make_endpoint(key, caller)
        endpoint.used_at = asyncio.get_running_loop().time()
        self._prepare(endpoint)
        return str(endpoint.path)

    async def close(self) -> None:
        """End all tunnels, and delete the sockets."""
        await self._tasks.cancel()
        self._endpoints.clear()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _make_endpoint(self, key: _Key, caller: Caller) -> _Endpoint:
        job, attempt, rank, uid = key
        self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        tried, part = f"@{attempt}" if attempt else "", f".{rank}" if rank else ""
        path = self._folder / f"{job}{tried}{part}-{uid}.sock"
        path.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        sock.bind(str(path))
        path.chmod(0o600)
        os.chown(path, caller.uid, caller.gid)
        sock.listen(BACKLOG)
        sock.setblocking(False)
        first = jobs_pb2.TunnelChunk(job_id=job, attempt=attempt, rank=rank)
        endpoint = _Endpoint(path, caller, first, sock)
        endpoint.accepting = self._tasks.start(self._accept(key, endpoint))
        return endpoint

    async def _accept(self, key: _Key, endpoint: _Endpoint) -> None:
        """Accept bare sockets, because asyncio's transports read before the tunnel wants the bytes.

        Only this method closes the listener. Otherwise the event loop would still watch the listener's
        number, which the next socket gets, and would then never watch that next socket.
        """
        loop = asyncio.get_running_loop()
        try:
            while True:
                sock, _ = await loop.sock_accept(endpoint.listener)
                self._tasks.start(self._serve(endpoint, sock))
        except OSError as error:
            log.warning("docker host %s is closed: %s", endpoint.path.name, error)
        finally:
            endpoint.listener.close()
            if self._endpoints.get(key) is endpoint:
                self._forget(key, endpoint)

    def _forget(self, key: _Key, endpoint: _Endpoint) -> None:
        endpoint.path.unlink(missing_ok=True)
        del self._endpoints[key]

    def _close_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        for key, endpoint in list(self._endpoints.items()):
            if not endpoint.open and now - endpoint.used_at > IDLE_SECONDS:
                self._forget(key, endpoint)
                assert endpoint.accepting is not None, "made with it"
                endpoint.accepting.cancel()

    async def _serve(self, endpoint: _Endpoint, sock: socket.socket) -> None:
        uid = endpoint.caller.uid
        if peer_of(sock).uid not in {uid, 0}:
            sock.close()
            return
        if self._open[uid] >= MAX_CONNECTIONS_PER_USER:
            await _refuse(
                sock,
                LimitReached(
                    f"{endpoint.caller.name} has too many connections to other nodes",
                    hint="close some attached clients",
                ),
            )
            sock.close()
            return
        endpoint.open += 1
        self._open[uid] += 1
        try:
            await self._tunnel(endpoint, sock)
        finally:
            self._open[uid] -= 1
            endpoint.open -= 1
            endpoint.used_at = asyncio.get_running_loop().time()

    async def _tunnel(self, endpoint: _Endpoint, sock: socket.socket) -> None:
        stream: TunnelStream | None = None
        try:
            tunnel = self._take_ready(endpoint) or await self._open_tunnel(endpoint)
            stream = TunnelStream(sock, opened_here=True)
            try:
                await _carry(stream, tunnel.call)
            except CALL_ERRORS:
                if not stream.is_kept_there:
                    raise
            if stream.is_kept_there and not stream.is_over:
                await self._take_up(endpoint, stream, tunnel.stream_id)
        except GpushareError as error:
            await self._give_up(endpoint, sock, stream, error)
        except grpc.aio.AioRpcError as error:
            await self._give_up(endpoint, sock, stream, await self._refusal(endpoint, error))
        except asyncio.InvalidStateError as error:
            log.info("tunnel to job=%s ended: %s", endpoint.first.job_id, error)
        finally:
            if stream is not None:
                await stream.close()
            sock.close()

    async def _give_up(
        self, endpoint: _Endpoint, sock: socket.socket, stream: TunnelStream | None, error: GpushareError
    ) -> None:
        """Send the refusal as text only if the tunnel passed nothing on.

        Later the text would be part of an answer.
        """
        log.info("tunnel to job=%s ended: %s", endpoint.first.job_id, error.message)
        if stream is None or not (stream.received or stream.is_done):
            await _refuse(sock, error)

    async def _refusal(self, endpoint: _Endpoint, error: grpc.aio.AioRpcError) -> GpushareError:
        """Return why the coordinator ended a tunnel's call.

        If a client's bytes are written while the coordinator refuses the call, grpcio drops the refusal and
        reports INTERNAL. Nothing is written to a second call, so it gets the refusal.
        """
        if error.code() is not grpc.StatusCode.INTERNAL:
            return self._fault(error)
        with suppress(TimeoutError, asyncio.InvalidStateError):
            try:
                async with asyncio.timeout(READY_SECONDS):
                    tunnel = await self._open_tunnel(endpoint)
                    try:
                        await tunnel.call.read()
                    finally:
                        tunnel.call.cancel()
            except GpushareError as refusal:
                return refusal
            except grpc.aio.AioRpcError as refusal:
                if refusal.code() is not grpc.StatusCode.INTERNAL:
                    return self._fault(refusal)
        return Unavailable(
            "the coordinator ended the connection to the node",
            hint="`gpushare nodes` tells whether it is connected; the job goes on there meanwhile",
        )

    async def _open_tunnel(
        self, endpoint: _Endpoint, stream_id: str = "", received: int | None = None
    ) -> Tunnel:
        """Open a tunnel, and return it once its first message is sent.

        With the name of a connection and the count of its received bytes, resume the connection.
        """
        first = jobs_pb2.TunnelChunk()
        first.CopyFrom(endpoint.first)
        first.stream_id = stream_id or secrets.token_hex(16)
        if received is not None:
            first.received = received
        metadata = await self._vouch(endpoint.caller, first)
        call = _open_call(await self._channel(), metadata)
        try:
            await call.write(first)
        except BaseException:
            call.cancel()
            raise
        return Tunnel(call, first.stream_id)

    # --- connections that outlive their calls --------------------------------------------------------------

    async def _take_up(self, endpoint: _Endpoint, stream: TunnelStream, stream_id: str) -> None:
        """Resume the connection whenever a call can be made for it. Raises Unavailable if that fails."""
        backoff = Backoff(RETRY, SystemRandom())
        until = asyncio.get_running_loop().time() + TAKE_UP_SECONDS
        while not stream.is_over:
            log.info("tunnel to job=%s broke, and is taken up again", endpoint.first.job_id)
            try:
                async with asyncio.timeout_at(until):
                    await self._until_back(backoff.seconds(0.0))
                    tunnel = await self._open_tunnel(endpoint, stream_id, stream.received)
                    received = await _count(tunnel.call)
            except (*CALL_ERRORS, Unavailable) as error:
                if isinstance(error, grpc.aio.AioRpcError) and error.code() in FINAL:
                    raise
                log.debug("tunnel to job=%s is not there yet: %s", endpoint.first.job_id, error)
                continue
            except TimeoutError:
                raise Unavailable(
                    "the coordinator was away for too long", hint="run the command again; the job goes on"
                ) from None
            backoff.after_success()
            self._is_back.set()
            self._is_back = asyncio.Event()
            with suppress(*CALL_ERRORS):
                await _carry(stream, tunnel.call, received)
            if not stream.is_done:
                until = asyncio.get_running_loop().time() + TAKE_UP_SECONDS

    async def _until_back(self, seconds: float) -> None:
        """Wait for this time, or until another connection has a call again.

        A program's output and its exit code come on two connections. Their reader takes a connection for
        broken if it returns much later than the other.
        """
        await within(self._is_back, seconds)

    # --- tunnels that are ready --------------------------------------------------------------------------

    def _prepare(self, endpoint: _Endpoint) -> None:
        """Open tunnels ahead, because a client that learned an endpoint soon connects to it."""
        uid = endpoint.caller.uid
        for _ in range(len(endpoint.ready), READY_TUNNELS):
            if self._ready[uid] < MAX_READY_PER_USER:
                self._ready[uid] += 1
                self._tasks.start(self._keep_ready(endpoint))

    async def _keep_ready(self, endpoint: _Endpoint) -> None:
        """Keep a tunnel ready until a client takes it, or until no client took it for a while."""
        try:
            ready = _ReadyTunnel(await self._open_tunnel(endpoint))
            endpoint.ready.append(ready)
            try:
                async with asyncio.timeout(READY_SECONDS):
                    await ready.taken.wait()
            finally:
                if not ready.taken.is_set():
                    endpoint.ready.remove(ready)
                    ready.tunnel.call.cancel()
        except (TimeoutError, GpushareError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            log.debug("no tunnel to job=%s is ready: %s", endpoint.first.job_id, error)
        finally:
            self._ready[endpoint.caller.uid] -= 1

    def _take_ready(self, endpoint: _Endpoint) -> Tunnel | None:
        """Take a ready tunnel that did not fail meanwhile, or return None."""
        while endpoint.ready:
            ready = endpoint.ready.popleft()
            ready.taken.set()
            if not ready.tunnel.call.done():
                return ready.tunnel
        return None


def _open_call(channel: grpc.aio.Channel, metadata: Metadata) -> Call:
    """Call ``Jobs.Tunnel``."""
    return channel.stream_stream(
        "/gpushare.v1.Jobs/Tunnel",
        request_serializer=to_wire(jobs_pb2.TunnelChunk),
        response_deserializer=from_wire(jobs_pb2.TunnelChunk),
    )(metadata=metadata)


async def _carry(stream: TunnelStream, call: Call, sent_from: int = 0) -> None:
    try:
        await stream.carry(CallCarrier(call, jobs_pb2.TunnelChunk), sent_from)
    finally:
        call.cancel()


async def _count(call: Call) -> int:
    """Return how many bytes the other end has.

    Raises NotFound if the other end no longer has the connection, or CALL_ERRORS.
    """
    message = await call.read()
    if isinstance(message, jobs_pb2.TunnelChunk) and message.HasField("received"):
        return message.received
    call.cancel()
    if isinstance(message, jobs_pb2.TunnelChunk) and message.over:
        raise NotFound(
            "the node does not have this connection any more", hint="run the command again; the job goes on"
        )
    raise Unavailable("the coordinator ended the call")


async def _refuse(sock: socket.socket, error: GpushareError) -> None:
    """Send the refusal in Docker's format, because docker reads it."""
    with suppress(OSError):
        body = docker_error(str(error))
        head = REFUSAL % (http_status(error), len(body))
        await asyncio.get_running_loop().sock_sendall(sock, head + body)
        sock.shutdown(socket.SHUT_WR)
