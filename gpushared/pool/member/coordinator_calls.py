"""Send calls of a node's users to the coordinator, each with the node's assertion of its user."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import Message

from gpushared.api.v1 import jobs_pb2_grpc
from gpushared.domain.model.errors import LimitReached, Unavailable
from gpushared.domain.model.request import Caller
from gpushared.net.call_checks import error_of
from gpushared.pool.trust.assertions import ASSERTION_METADATA, Asserter, request_digest

MAX_CALLS_PER_USER = 512
"""Bound the calls of a user at a time, because all users of this node share the connection."""
Metadata = tuple[tuple[str, bytes], ...]


class CoordinatorCalls:
    """Call the coordinator's services, usually ``Jobs``, over one connection that all calls share."""

    def __init__(
        self,
        channel: Callable[[], Awaitable[grpc.aio.Channel]],
        asserter: Callable[[], Asserter],
        principal_of: Callable[[Caller], str],
        groups_of: Callable[[Caller], tuple[str, ...]],
        now: Callable[[], float],
    ) -> None:
        """``channel`` is ``Dial.shared_channel``; it and ``asserter`` raise StateConflict if the node is in no pool."""
        self._channel = channel
        self._asserter = asserter
        self._principal_of = principal_of
        self._groups_of = groups_of
        self._now = now
        self._open: Counter[int] = Counter()
        self._under_way: set[grpc.aio.RpcContext] = set()

    def give_up(self) -> None:
        """End the calls under way: the coordinator fell silent, and calls may go to another one."""
        calls, self._under_way = self._under_way, set()
        for call in calls:
            call.cancel()

    async def call(
        self,
        name: str,
        message: Message,
        caller: Caller,
        timeout_seconds: float,
        *,
        stub: Callable[[grpc.aio.Channel], Any] = jobs_pb2_grpc.JobsStub,
    ) -> Any:
        """Send a unary call by its name.

        Raises Unavailable, TimedOut, LimitReached, and errors that the coordinator answers.
        """
        with self._counted(caller):
            channel = await self._channel()
            metadata = self.assertion_metadata(message, caller)
            call = getattr(stub(channel), name)(message, timeout=timeout_seconds, metadata=metadata)
            with self._until_silent(call):
                return await call

    async def stream(self, name: str, message: Message, caller: Caller) -> AsyncGenerator[Any, None]:
        """Yield the messages of a call that streams its answer, while the caller reads.

        Raises as ``call``.
        """
        with self._counted(caller):
            stub = jobs_pb2_grpc.JobsStub(await self._channel())
            call = getattr(stub, name)(message, metadata=self.assertion_metadata(message, caller))
            try:
                with self._until_silent(call):
                    async for answer in call:
                        yield answer
            finally:
                call.cancel()

    @contextmanager
    def _until_silent(self, call: grpc.aio.RpcContext) -> Iterator[None]:
        """Translate the call's errors, and the cancellation of a call that ``give_up`` ended."""
        self._under_way.add(call)
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise error_of(error, "the pool's coordinator") from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if call in self._under_way or (task is not None and task.cancelling()):
                raise
            raise Unavailable(
                "the pool's coordinator does not answer: it fell silent",
                hint="where there are several, another one may lead in a moment: try again",
            ) from None
        finally:
            self._under_way.discard(call)

    @contextmanager
    def _counted(self, caller: Caller) -> Iterator[None]:
        """Count the caller's open calls. Raises LimitReached."""
        if self._open[caller.uid] >= MAX_CALLS_PER_USER:
            raise LimitReached(
                f"{caller.name} waits for {MAX_CALLS_PER_USER} answers of the pool already",
                hint="each `gpushare wait` and `gpushare logs` is one",
            )
        self._open[caller.uid] += 1
        try:
            yield
        finally:
            self._open[caller.uid] -= 1
            if not self._open[caller.uid]:
                del self._open[caller.uid]

    def assertion_metadata(self, message: Message, caller: Caller) -> Metadata:
        """Sign the metadata for one call with this first message."""
        signed = self._asserter().sign(
            self._principal_of(caller), self._groups_of(caller), request_digest(message), self._now()
        )
        return ((ASSERTION_METADATA, signed),)
