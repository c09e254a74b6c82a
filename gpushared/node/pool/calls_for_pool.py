"""Hand a user's call on to the coordinator where the message asks for the whole pool; else answer it here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import Message

from gpushared.api.v1 import gpus_pb2_grpc, history_pb2, history_pb2_grpc, leases_pb2_grpc
from gpushared.domain.model.request import Caller
from gpushared.net.unary_json import Unary
from gpushared.pool.member.coordinator_calls import CoordinatorCalls

ANSWER_SECONDS = 30.0
_HISTORY = history_pb2.DESCRIPTOR.services_by_name["History"]
_STUBS: Mapping[str, Callable[[grpc.aio.Channel], Any]] = {
    **{
        f"gpushare.v1.History/{method.name}": history_pb2_grpc.HistoryStub
        for method in _HISTORY.methods
        if method.name != "Recent"  # coordinators do not serve it
    },
    "gpushare.v1.Leases/List": leases_pb2_grpc.LeasesStub,
    "gpushare.v1.Gpus/List": gpus_pb2_grpc.GpusStub,
}


def calls_for_pool(own: Mapping[str, Unary], coordinator: CoordinatorCalls) -> dict[str, Unary]:
    """Return the calls that coordinators serve too, each with the choice that its message makes.

    The node only states the caller, in a signed assertion; the coordinator decides what that person may see.
    """
    return {
        name: Unary(unary.request, _either(name, unary.call, coordinator))
        for name, unary in own.items()
        if name in _STUBS
    }


def _either(
    name: str, own: Callable[..., Awaitable[Message]], coordinator: CoordinatorCalls
) -> Callable[[Any, Caller], Awaitable[Message]]:
    method = name.rpartition("/")[2]

    async def call(message: Any, caller: Caller) -> Message:  # each call has the message of its method
        if not asks_pool(message):
            return await own(message, caller)
        answer: Message = await coordinator.call(method, message, caller, ANSWER_SECONDS, stub=_STUBS[name])
        return answer

    return call


def asks_pool(message: Any) -> bool:
    """Return True if the message has the flag ``pool``, itself or in its window."""
    part = message if "pool" in message.DESCRIPTOR.fields_by_name else message.window
    return bool(part.pool)
