"""Forward the daily calls of a pool's administrators from any of its nodes to the coordinator.

The node only states the caller, by its signed word. The coordinator judges by its own table of users if the
caller is an administrator. Tokens, certificates and the authority are for the coordinator's machine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from google.protobuf.message import Message

from gpushared.api.v1 import pool_pb2, pool_pb2_grpc
from gpushared.domain.model.request import Caller
from gpushared.net.unary_json import Unary
from gpushared.pool.member.coordinator_calls import CoordinatorCalls

ANSWER_SECONDS = 10.0
_ASKED: dict[str, type[Message]] = {
    "DrainNode": pool_pb2.DrainNodeRequest,
    "ForgetNode": pool_pb2.ForgetNodeRequest,
    "Status": pool_pb2.PoolStatusRequest,
}


def admin_calls(coordinator: CoordinatorCalls) -> dict[str, Unary]:
    """Return the forwarded calls by their full names."""
    return {
        f"gpushare.v1.PoolAdmin/{name}": Unary(kind, _forwarded(name, coordinator))
        for name, kind in _ASKED.items()
    }


def _forwarded(name: str, coordinator: CoordinatorCalls) -> Callable[[Message, Caller], Awaitable[Message]]:
    async def call(message: Message, caller: Caller) -> Message:
        answer: Message = await coordinator.call(
            name, message, caller, ANSWER_SECONDS, stub=pool_pb2_grpc.PoolAdminStub
        )
        return answer

    return call
