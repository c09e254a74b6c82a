"""Tunnels that end on this node: its gate, reached by whoever the coordinator vouches for.

The connection is made as the account that the job runs as, so it reaches what that user could reach here by
themselves, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

import grpc

from gpushared.api.v1 import link_pb2
from gpushared.domain.errors import GpushareError, LimitReached, NotFound, PermissionRefused
from gpushared.domain.jobs.attempt import Attempt
from gpushared.domain.jobs.model import AttemptKey, JobId, Owner
from gpushared.domain.request import Caller
from gpushared.pool.tunnel_bytes import pump
from gpushared.pool.tunnel_frames import Data, Frame, frame, from_wire, to_wire

log = logging.getLogger(__name__)

MAX_TUNNELS = 1024
PARTING_SECONDS = 10.0
Call = grpc.aio.StreamStreamCall[Data, Data]


class TunnelEnds:
    """Answers ``OpenTunnel``: calls the coordinator, and joins the call with a connection to the gate."""

    def __init__(
        self,
        channel: Callable[[], Awaitable[grpc.aio.Channel]],
        attempt_of: Callable[[AttemptKey], Attempt | None],
        account_of: Callable[[Owner], Awaitable[Caller]],
        connect_as: Callable[[Caller], socket.socket],
        told: Callable[[link_pb2.OpenTunnel, GpushareError | None], None] = lambda _, __: None,
    ) -> None:
        """``channel``: one to the coordinator for tunnels, kept by whoever gives it.

        ``account_of``: as whom an owner's containers run here now. ``connect_as`` and it may raise errors of
        the tree. ``told``: of each tunnel that is opened, or refused.
        """
        self._channel = channel
        self._attempt_of = attempt_of
        self._account_of = account_of
        self._connect_as = connect_as
        self._told = told
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, wanted: link_pb2.OpenTunnel) -> None:
        """Comes back at once."""
        task = asyncio.create_task(self._serve(wanted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, wanted: link_pb2.OpenTunnel) -> None:
        try:
            call = _called(await self._channel())
            try:
                await self._join(wanted, call)
            finally:
                call.cancel()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError, GpushareError) as error:
            log.info("tunnel of job=%s ended: %s", wanted.job_id, error)

    async def _join(self, wanted: link_pb2.OpenTunnel, call: Call) -> None:
        try:
            sock = await self._gate_for(wanted)
        except GpushareError as error:
            self._told(wanted, error)
            await call.write(
                link_pb2.TunnelData(
                    tunnel_id=wanted.tunnel_id,
                    error_code=error.code,
                    error_message=error.message,
                    error_hint=error.hint,
                )
            )
            await call.done_writing()
            async with asyncio.timeout(PARTING_SECONDS):
                await call.code()  # a call that is cancelled may not have sent what was written
            return
        self._told(wanted, None)
        await call.write(link_pb2.TunnelData(tunnel_id=wanted.tunnel_id))

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

    async def _gate_for(self, wanted: link_pb2.OpenTunnel) -> socket.socket:
        """Raises NotFound, PermissionRefused, LimitReached, Unavailable, TimedOut."""
        if len(self._tasks) > MAX_TUNNELS:
            raise LimitReached("this node has too many tunnels open", hint="close some attached clients")
        attempt = self._attempt_of(AttemptKey(JobId(wanted.job_id), wanted.attempt))
        if attempt is None or attempt.spec is None or attempt.account is None:
            raise NotFound(
                f"job {wanted.job_id} has nothing on this node",
                hint=f"where it is: gpushare why {wanted.job_id}",
            )
        if wanted.person != attempt.spec.owner.person and not wanted.admin:
            raise PermissionRefused(
                f"job {wanted.job_id} is not {wanted.person}'s", hint="only its owner and admins reach it"
            )
        if wanted.admin and wanted.person != attempt.spec.owner.person:
            log.warning("admin=%s reaches the containers of %s", wanted.person, attempt.account.name)
        # The account may have been taken from its owner since: a record of a job is no key to it.
        account = await self._account_of(attempt.spec.owner)
        if account.uid != attempt.account.uid:
            raise PermissionRefused(
                f"{wanted.person} is {account.name} on this node now, and job {wanted.job_id} ran as "
                f"{attempt.account.name}",
                hint="ask the node's admin, who sees [pool.accounts] there",
            )
        return self._connect_as(account)


def _called(channel: grpc.aio.Channel) -> Call:
    """``NodeLink.Serve``."""
    return channel.stream_stream(
        "/gpushare.v1.NodeLink/Serve",
        request_serializer=to_wire(link_pb2.TunnelData),
        response_deserializer=from_wire(link_pb2.TunnelData),
    )()
