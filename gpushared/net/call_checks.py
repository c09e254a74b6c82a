"""Share the work of every gRPC server: identify and limit callers, check gRPC's peer names, map errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gpushared.domain.model.errors import (
    Code,
    ConfigError,
    GpushareError,
    NotLeader,
    PermissionRefused,
    Unavailable,
    kind_of_code,
)
from gpushared.domain.model.request import Caller
from gpushared.net.call_audit import Asker, CallAudit
from gpushared.net.identity import Identities, Peer
from gpushared.net.limits import Shares
from gpushared.storage.audit.line import Origin

HINT_METADATA = "gpushare-hint-bin"
"""This trailing metadata carries the error's hint; it is binary, because hints may hold any character."""
NOT_LEADER_METADATA = "gpushare-not-leader-bin"
"""A refusal with this trailing metadata means that another coordinator is to be asked.

The value is the leader's name, or empty.
"""
LEADER_EPOCH_METADATA = "gpushare-leader-epoch"
"""Such a refusal also has this trailing metadata: the epoch of that leader, or 0."""
MAX_DIGITS = 18

MAX_MESSAGE_BYTES = 4 << 20
MAX_CALLS_PER_CONNECTION = 256
"""Calls beyond this number wait in the client: one user's connection must not use everybody's memory."""

OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A server by default refuses pings that come more often than every 300 s, and ends the connection with
    # too_many_pings (grpc core, doc/keepalive.md). Our clients ping every 20 s.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.so_reuseport", 0),
]

_PEER = re.compile(r"unix-abstract:gpushared/[0-9a-f]+/(\d+)/(\d+)/(\d+)/(\d+)")

STATUS = {code: grpc.StatusCode[code.name] for code in Code}

Context = grpc.aio.ServicerContext
_RequestT = TypeVar("_RequestT")
_AnswerT = TypeVar("_AnswerT")
NOT_REACHED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
ANSWER_SECONDS = 60.0
"""Wait this long for the daemon's own answer: a machine that starts everything at once is slow."""


def peer_name(secret: str, number: int, peer: Peer) -> str:
    """Return the abstract socket name by which the front tells gRPC the caller; see ``caller_of``."""
    return f"gpushared/{secret}/{number}/{peer.uid}/{peer.gid}/{peer.pid}"


class CallAuthenticator:
    """Identify the caller of each gRPC call, and turn errors of the tree into gRPC status."""

    def __init__(
        self,
        identities: Identities,
        secret: str,
        origins: Mapping[int, Origin] | None = None,
        audit: CallAudit | None = None,
        shares: Shares | None = None,
    ) -> None:
        """``origins`` maps the numbers of connections that the front passed on to their processes.

        ``shares`` are the front's own.
        """
        self._identities = identities
        self._secret = secret
        self._origins: Mapping[int, Origin] = {} if origins is None else origins
        self._audit = audit or CallAudit()
        self._shares = shares or Shares()

    async def caller_of(self, context: Context[Any, Any]) -> Caller:
        """Return the caller that the front wrote into its socket's name; grpcio reports it as the peer."""
        _, peer = self._behind(context)
        return await self._identities.caller(peer)

    async def asker_of(self, context: Context[Any, Any]) -> Asker:
        """Return the caller for the audit, with the process and its program."""
        origin, peer = self._behind(context)
        caller = await self._identities.caller(peer)
        return Asker(caller.uid, caller.name, origin)

    def _behind(self, context: Context[Any, Any]) -> tuple[Origin, Peer]:
        match = _PEER.fullmatch(context.peer())
        if match is None or f"/{self._secret}/" not in context.peer():
            raise PermissionRefused("this connection did not come through the front")
        number, uid, gid, pid = (int(part) for part in match.groups())
        return self._origins.get(number, Origin(pid)), Peer(pid, uid, gid)

    async def unary(
        self,
        call: Callable[[_RequestT, Caller], Awaitable[_AnswerT]],
        message: _RequestT,
        context: Context[Any, Any],
    ) -> _AnswerT:
        name = self._audit.name_of(call)
        async with self.identified(name, message, context) as (caller, asker):
            answer = await call(message, caller)
            self._audit.answered(name, message, asker, answer)
            return answer

    @asynccontextmanager
    async def identified(
        self, name: str, message: object, context: Context[Any, Any]
    ) -> AsyncIterator[tuple[Caller, Asker]]:
        """Identify, count and audit the caller of the call in the block, which may answer with a stream.

        ``name`` leaves out the API's name.
        """
        try:
            origin, peer = self._behind(context)
            caller = await self._identities.caller_behind(peer, origin)
            asker = Asker(caller.uid, caller.name, origin)
            share = self._shares.of(self._identities.counted_as(peer.uid))
            with self._audit.auditing_refusal(name, message, asker), share.holding(_size(message)):
                async with share.request():
                    yield caller, asker
        except GpushareError as error:
            await abort(context, error)


def _size(message: object) -> int:
    """Return the message's size in bytes; unknown fields count, because they also use memory."""
    return message.ByteSize() if isinstance(message, Message) else 0


async def abort(context: Context[Any, Any], error: GpushareError) -> NoReturn:
    """End the call with the error's status, its sentence, and its hint in the trailing metadata."""
    hint = ((HINT_METADATA, error.hint.encode()),) if error.hint else ()
    await context.abort(STATUS[error.code], error.message, (*hint, *_leader(error)))


def _leader(error: GpushareError) -> tuple[tuple[str, str | bytes], ...]:
    if not isinstance(error, NotLeader):
        return ()
    return (NOT_LEADER_METADATA, error.leader.encode()), (LEADER_EPOCH_METADATA, str(error.epoch))


def error_of(error: grpc.aio.AioRpcError, subject: str) -> GpushareError:
    """Return the other side's error, or an error that ``subject`` does not answer if it was not reached."""
    kind = kind_of_code(error.code().name.lower())
    details = error.details() or error.code().name
    hint = hint_of(error)
    if error.code() in NOT_REACHED and not hint:
        return kind(f"{subject} does not answer: {details}", hint="is it running, and are the clocks right?")
    return kind(details, hint=hint)


def hint_of(error: grpc.aio.AioRpcError) -> str:
    """Return the hint with which the other side refused; empty if it was not reached, or gave none."""
    hint = _trailing(error, HINT_METADATA)
    return hint.decode(errors="replace") if isinstance(hint, bytes) else ""


def leader_epoch_of(error: grpc.aio.AioRpcError) -> int:
    """Return the leader's epoch from the refusal of a coordinator that does not lead; 0 if it is unknown."""
    return whole_number(_trailing(error, LEADER_EPOCH_METADATA))


def _trailing(error: grpc.aio.AioRpcError, name: str) -> str | bytes | None:
    return next((value for key, value in error.trailing_metadata() or () if key == name), None)


def whole_number(value: str | bytes | None) -> int:
    """Return the number that the other side sends as metadata; 0 if the value is no number."""
    return int(value[:MAX_DIGITS]) if isinstance(value, str) and value.isdecimal() else 0


def unary_handler(
    method: MethodDescriptor, call: Callable[[Any, Context[Any, Any]], Awaitable[Message]]
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return the gRPC handler of a unary call, by the descriptor that names its messages."""
    return grpc.unary_unary_rpc_method_handler(
        call,
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=GetMessageClass(method.output_type).SerializeToString,
    )


async def check_identity(socket_path: str, ask: Callable[[grpc.aio.Channel], Awaitable[object]]) -> None:
    """Call the daemon itself through the front with ``ask``, as its own user, who is admitted.

    Raises ConfigError if the daemon is not recognised, and Unavailable if no answer comes in time. The peer's
    name in ``context.peer()`` is behaviour of gRPC's core, not a promise of its API.
    """
    async with grpc.aio.insecure_channel(f"unix:{socket_path}") as channel:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await ask(channel)
        except TimeoutError as error:
            raise Unavailable(
                f"the daemon did not answer itself within {ANSWER_SECONDS:.0f} s",
                hint="is the machine overloaded? systemd starts the daemon again",
            ) from error
        except grpc.aio.AioRpcError as error:
            raise ConfigError(
                f"gRPC does not tell who is calling, so nobody can be let in: {error}",
                hint="install the grpcio version that this gpushared was tested with",
            ) from error
