"""A service of unary calls by its descriptor: once for gRPC and for JSON, each call with its caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gpushared.domain.model.request import Caller
from gpushared.net.call_checks import Context, unary_handler
from gpushared.net.unary_json import Unary
from gpushared.pool.coordinator.running_parts import Listener, Service
from gpushared.pool.trust.callers import Callers, PoolCaller

# Any: each handler takes the message of its own call; the descriptor pairs the two.
Handler = Callable[[Any, PoolCaller], Awaitable[Message]]


def unary_service(
    descriptor: ServiceDescriptor,
    handlers: Mapping[str, Handler],
    callers: Callers,
    doors: frozenset[Listener],
) -> Service:
    """``handlers`` by the names of the calls; those that have none are answered ``unimplemented``."""
    methods = {name: descriptor.methods_by_name[name] for name in handlers}
    served = {
        name: _served(f"{descriptor.name}/{name}", methods[name], handler, callers)
        for name, handler in handlers.items()
    }
    generic = grpc.method_handlers_generic_handler(descriptor.full_name, served)
    return Service(
        name=descriptor.full_name,
        doors=doors,
        add=lambda server: server.add_generic_rpc_handlers((generic,)),
        calls={
            f"{descriptor.full_name}/{name}": Unary(
                GetMessageClass(methods[name].input_type), _local(handler, callers)
            )
            for name, handler in handlers.items()
        },
    )


def _served(
    name: str, method: MethodDescriptor, handler: Handler, callers: Callers
) -> grpc.RpcMethodHandler[Any, Any]:
    async def call(message: Message, context: Context[Any, Any]) -> Message:
        return await callers.unary(handler, message, context, name)

    return unary_handler(method, call)


def _local(handler: Handler, callers: Callers) -> Callable[[Any, Caller], Awaitable[Message]]:
    async def call(message: Any, caller: Caller) -> Message:  # one of the descriptor's
        return await handler(message, callers.local(caller))

    return call
