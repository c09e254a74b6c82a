"""Define the parts of a running coordinator, its listeners, and the form in which its unary calls are served."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gpushared.api.v1 import jobs_pb2
from gpushared.config.pool_settings import CoordinatorConfig
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.request import Caller
from gpushared.jobs.coordinator_loop import PoolLoop
from gpushared.jobs.job_recorder import JobRecorder
from gpushared.jobs.standby import Standby
from gpushared.net.call_audit import CallAudit
from gpushared.net.call_checks import Context, unary_handler
from gpushared.net.unary_json import Unary
from gpushared.pool.coordinator.coordinator_registry import CoordinatorRegistry
from gpushared.pool.coordinator.history_gatherer import HistoryGatherer, LeaseOwners
from gpushared.pool.coordinator.node_links import LinkService
from gpushared.pool.trust.callers import Callers, PersonCaller, PoolCaller, unless
from gpushared.pool.trust.trust import PoolTrust
from gpushared.ports.job_store import JobStore
from gpushared.storage.audit.audit_log import AuditLog
from gpushared.storage.history import SqliteHistory

# Any: each handler takes the message of its own call; the descriptor pairs the two.
Handler = Callable[[Any, PoolCaller], Awaitable[Message]]


class Listener(StrEnum):
    """Name the listeners at which a call may come in."""

    NODES = "nodes"
    """This listener uses TLS; each connection has a node's certificate."""
    USERS = "users"
    """This listener uses TLS; no connection has a certificate."""
    LOCAL = "local"
    """This listener is the unix socket, for administrators."""


JobOutput = Callable[[jobs_pb2.LogsRequest, Caller], AsyncIterator[jobs_pb2.LogChunk]]


@dataclass(frozen=True, slots=True)
class Service:
    """Describe a gRPC service. ``calls`` are the unary calls that the unix socket answers also as JSON."""

    name: str
    listeners: frozenset[Listener]
    add: Callable[[grpc.aio.Server], None]
    calls: Mapping[str, Unary] = field(default_factory=dict)
    output: JobOutput | None = None
    """Read the output of a job, for users of browsers and of the unix socket; None for all services but ``Jobs``."""


@dataclass(slots=True)
class CoordinatorParts:
    """Hold the parts that services need. ``config`` returns the newest configuration."""

    config: Callable[[], CoordinatorConfig]
    loop: PoolLoop
    store: JobStore
    trust: PoolTrust
    link: LinkService
    history: SqliteHistory
    gatherer: HistoryGatherer
    recorder: JobRecorder
    owners: LeaseOwners
    troubles: Troubles
    audit: AuditLog
    call_audit: CallAudit
    """Write the lines on calls to ``audit``."""
    nodes_port: Callable[[], int]
    standby: Callable[[], Standby | None]
    """Return how this coordinator stands by, or None while it leads."""
    registry: CoordinatorRegistry | None = None
    """All coordinators of the pool; None with a store that only this one has."""


ServiceFactory = Callable[[CoordinatorParts], Sequence[Service]]
"""Return the services of one part of the program."""


def unary_service(
    descriptor: ServiceDescriptor,
    handlers: Mapping[str, Handler],
    callers: Callers,
    listeners: frozenset[Listener],
) -> Service:
    """Serve the calls in ``handlers`` by name; the service answers other calls with ``unimplemented``."""
    methods = {name: descriptor.methods_by_name[name] for name in handlers}
    served = {
        name: _grpc_handler(f"{descriptor.name}/{name}", methods[name], handler, callers)
        for name, handler in handlers.items()
    }
    generic = grpc.method_handlers_generic_handler(descriptor.full_name, served)
    return Service(
        name=descriptor.full_name,
        listeners=listeners,
        add=lambda server: server.add_generic_rpc_handlers((generic,)),
        calls={
            f"{descriptor.full_name}/{name}": Unary(
                GetMessageClass(methods[name].input_type),
                _json_call(f"{descriptor.name}/{name}", handler, callers),
            )
            for name, handler in handlers.items()
        },
    )


def _grpc_handler(
    name: str, method: MethodDescriptor, handler: Handler, callers: Callers
) -> grpc.RpcMethodHandler[Any, Any]:
    async def call(message: Message, context: Context[Any, Any]) -> Message:
        return await callers.unary(handler, message, context, name)

    return unary_handler(method, call)


def _json_call(name: str, handler: Handler, callers: Callers) -> Callable[[Any, Caller], Awaitable[Message]]:
    async def call(message: Any, caller: Caller) -> Message:  # the message type is the descriptor's
        pool_caller = callers.of_json(caller)
        callers.check_answers(name)
        if not isinstance(caller, PersonCaller):
            return await handler(message, pool_caller)
        with callers.watching(pool_caller) as gone:
            return await unless(gone, handler(message, pool_caller))

    return call
