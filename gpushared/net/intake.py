"""Admit a call before its message is read: identify its caller, and wait for room to read the message.

gRPC reads a message whole before it calls a handler, up to 4 MiB each, and hundreds at a time on a
connection. Unary calls are therefore served as streams of one message. The connection and the metadata
identify the caller, the caller takes a turn, and only then the message is read, in a bounded time. Unread
bytes stay with the sender, except for the window of the stream (RFC 9113, section 5.2).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from gpushared.domain.model.errors import GpushareError, LimitReached, RequestError, TimedOut
from gpushared.net.call_checks import Context

# Any: handlers of all services pass here, each with messages of its own.
HandlerFunction = Callable[[Any, Context[Any, Any]], Any]
Refuse = Callable[[str, Context[Any, Any], GpushareError], Awaitable[Any]]
"""This function ends a call with an error."""


@dataclass(frozen=True, slots=True)
class IntakeBounds:
    """Bound calls. ``at_once`` bounds all callers' messages that are being read, or are large and unanswered.

    ``of_caller`` bounds one caller's messages. A message of at most ``small_bytes`` frees its turn once it is
    read. ``turn_seconds`` bounds a call's wait for its turn, ``message_seconds`` its wait for its message. A
    caller has at most ``calls`` under way: waiting for a turn, being handled, or waiting for a job.
    """

    at_once: int = 64
    of_caller: int = 8
    calls: int = 2048
    small_bytes: int = 64 * 1024
    turn_seconds: float = 30.0
    message_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """Identify a caller. Its calls are counted by ``name``; ``share`` multiplies its bounds."""

    name: str
    share: int = 1


Admit = Callable[[str, Context[Any, Any]], Admitted]
"""Identify the caller by the call's name, the connection and the metadata. Raises GpushareError."""


class CallsUnderWay:
    """Count the calls of each caller that are not answered yet, streams too."""

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self._calls: Counter[str] = Counter()

    @contextmanager
    def of(self, caller: str, share: int = 1) -> Iterator[None]:
        """Count the call in the block. Raises LimitReached."""
        if self._calls[caller] >= self._max_calls * share:
            raise LimitReached(
                f"{caller} has {self._calls[caller]} calls under way already",
                hint="wait for some of them, or stop some clients",
            )
        self._calls[caller] += 1
        try:
            yield
        finally:
            self._calls[caller] -= 1
            if not self._calls[caller]:
                del self._calls[caller]


class CallerTurns:
    """Give turns at bounded work: ``at_once`` turns in all, ``of_caller`` for each caller."""

    def __init__(self, at_once: int, of_caller: int, seconds: float) -> None:
        """``seconds`` bounds the wait for a turn."""
        self._of_caller = of_caller
        self._seconds = seconds
        self._all = asyncio.Semaphore(at_once)
        self._of: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def of(self, caller: Admitted) -> AsyncIterator[AsyncExitStack]:
        """Hold a turn for as long as the block runs, or until the stack is closed. Raises LimitReached."""
        name = caller.name
        caller_turns = self._of.setdefault(name, asyncio.Semaphore(self._of_caller * caller.share))
        self._users[name] += 1
        try:
            async with AsyncExitStack() as turn:
                await self._take(turn, caller_turns, name)
                yield turn
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._of[name]

    async def _take(self, turn: AsyncExitStack, caller_turns: asyncio.Semaphore, name: str) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await turn.enter_async_context(caller_turns)
                await turn.enter_async_context(self._all)
        except TimeoutError:
            raise LimitReached(
                f"{name} asks for more at a time than is done", hint="send fewer calls at once, and try again"
            ) from None


class Intake(grpc.aio.ServerInterceptor):
    """Admit calls before all services of a server."""

    def __init__(self, admit: Admit, refuse: Refuse, bounds: IntakeBounds | None = None) -> None:
        self._admit = admit
        self._refuse = refuse
        self._bounds = bounds or IntakeBounds()
        self._calls = CallsUnderWay(self._bounds.calls)
        self._turns = CallerTurns(self._bounds.at_once, self._bounds.of_caller, self._bounds.turn_seconds)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of a call, with the admission before it."""
        handler: Any = await continuation(handler_call_details)
        name = handler_call_details.method
        if handler is None:
            return None
        if handler.request_streaming:
            return self._stream_handler(name, handler)
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        served = self._one_message_handler(name, handler.unary_stream or handler.unary_unary)
        return make(served, _reader(handler.request_deserializer), handler.response_serializer)

    def _stream_handler(self, name: str, handler: Any) -> Any:
        """Serve a stream of messages: each is read when its handler requests it."""
        serve_messages: HandlerFunction = handler.stream_stream

        async def serve(messages: AsyncIterator[Any], context: Context[Any, Any]) -> Any:
            try:
                caller = self._admit(name, context)
                with self._calls.of(caller.name, caller.share):
                    return await _send_answers(serve_messages(messages, context), context)
            except GpushareError as error:
                await self._refuse(name, context, error)

        return grpc.stream_stream_rpc_method_handler(
            serve, _reader(handler.request_deserializer), handler.response_serializer
        )

    def _one_message_handler(self, name: str, handler: HandlerFunction) -> HandlerFunction:
        async def serve(messages: AsyncIterator[Any], context: Context[Any, Any]) -> Any:
            try:
                caller = self._admit(name, context)
                with self._calls.of(caller.name, caller.share):
                    return await self._answer(caller, handler, messages, context)
            except GpushareError as error:
                await self._refuse(name, context, error)

        return serve

    async def _answer(
        self,
        caller: Admitted,
        handler: HandlerFunction,
        messages: AsyncIterator[Any],
        context: Context[Any, Any],
    ) -> Any:
        async with self._turns.of(caller) as turn:
            message = await self._read(messages)
            if _size(message) <= self._bounds.small_bytes:
                await turn.aclose()
            return await _send_answers(handler(message, context), context)

    async def _read(self, messages: AsyncIterator[Any]) -> Any:
        try:
            async with asyncio.timeout(self._bounds.message_seconds):
                return await anext(messages)
        except TimeoutError:
            raise TimedOut(
                f"no whole message came in {self._bounds.message_seconds:.0f} s", hint="try again"
            ) from None
        except StopAsyncIteration:
            raise RequestError("the call has no message") from None


def _reader(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Wrap the deserializer to raise an error of the tree: grpcio logs a traceback for any other error."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            raise RequestError(
                f"{len(data)} bytes came that are no message of this call",
                hint="do both sides have the same version, or one that follows the other?",
            ) from None

    return read


async def _send_answers(answers: Any, context: Context[Any, Any]) -> Any:
    """Return a handler's single answer, or write several answers to the stream and return None."""
    if not hasattr(answers, "__aiter__"):
        return await answers
    async for answer in answers:
        await context.write(answer)
    return None


def _size(message: Any) -> int:
    return message.ByteSize() if isinstance(message, Message) else len(message)
