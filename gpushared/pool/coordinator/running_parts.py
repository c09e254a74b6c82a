"""Define the parts of a running coordinator, its listeners, and the form in which its unary calls are served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gpushared.config.pool_settings import CoordinatorConfig
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.request import Caller
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.net.call_audit import CallAudit
from gpushared.net.call_checks import Context, unary_handler
from gpushared.net.unary_json import Unary
from gpushared.pool.coordinator.node_links import LinkService
from gpushared.pool.trust.callers import Callers, PoolCaller
from gpushared.pool.trust.trust import PoolTrust
from gpushared.ports.job_store import JobStore
from gpushared.storage.audit.audit_log import AuditLog

# Any: each handler takes the message of its own call; the descriptor pairs the two.
Handler = Callable[[Any, PoolCaller], Awaitable[Message]]


class Listener(StrEnum):
    """Name the listeners at which a call may come in."""

    NODES = "nodes"
    """TLS; each connection has a node's certificate."""
    USERS = "users"
    """TLS; nobody has one."""
    LOCAL = "local"
    """The unix socket, for administrators."""


@dataclass(frozen=True, slots=True)
class Service:
    """One gRPC service. ``calls``: those of its unary calls that the unix socket answers as JSON, too."""

    name: str
    listeners: frozenset[Listener]
    add: Callable[[grpc.aio.Server], None]
    calls: Mapping[str, Unary] = field(default_factory=dict)


@dataclass(slots=True)
class CoordinatorParts:
    """Everything that services need. ``config`` gives the newest configuration."""

    config: Callable[[], CoordinatorConfig]
    loop: PoolLoop
    store: JobStore
    trust: PoolTrust
    link: LinkService
    troubles: Troubles
    audit: AuditLog
    of_calls: CallAudit
    """Calls that the audit is to know are told here."""
    nodes_port: Callable[[], int]


Room = Callable[[CoordinatorParts], Sequence[Service]]
"""Makes the services of one part of the program."""


def unary_service(
    descriptor: ServiceDescriptor,
    handlers: Mapping[str, Handler],
    callers: Callers,
    listeners: frozenset[Listener],
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
        listeners=listeners,
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
