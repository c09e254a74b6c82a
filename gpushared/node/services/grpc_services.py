"""Serve the API as gRPC, on an inner socket that only the front can reach.

Unary calls are the same as in JSON, each served by its descriptor; only streams are written here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from gpushared.api.v1 import (
    audit_pb2,
    gpus_pb2,
    history_pb2,
    jobs_pb2,
    leases_pb2,
    node_pb2,
    policy_pb2,
    projects_pb2,
    web_pb2,
)
from gpushared.domain.model.request import Caller
from gpushared.net.call_checks import OPTIONS, CallAuthenticator, Context, unary_handler
from gpushared.net.unary_json import Unary
from gpushared.node.services.jobs_of_node import NodeJobs
from gpushared.node.services.node_service import Api, is_over

SERVICES: tuple[ServiceDescriptor, ...] = (
    leases_pb2.DESCRIPTOR.services_by_name["Leases"],
    gpus_pb2.DESCRIPTOR.services_by_name["Gpus"],
    projects_pb2.DESCRIPTOR.services_by_name["Projects"],
    node_pb2.DESCRIPTOR.services_by_name["Node"],
    jobs_pb2.DESCRIPTOR.services_by_name["Jobs"],
    audit_pb2.DESCRIPTOR.services_by_name["Audit"],
    policy_pb2.DESCRIPTOR.services_by_name["Policy"],
    history_pb2.DESCRIPTOR.services_by_name["History"],
    web_pb2.DESCRIPTOR.services_by_name["Web"],
)

# Any: each call takes the message of its own method; the descriptor pairs the two.
Source = Callable[[Any, Caller], AsyncIterator[Message]]


@asynccontextmanager
async def serving(
    calls: Mapping[str, Unary], api: Api, jobs: NodeJobs, authenticator: CallAuthenticator, socket_path: str
) -> AsyncIterator[None]:
    """Serve gRPC on the inner socket, with health and reflection, as long as the block runs.

    ``calls``: the unary calls by their full names; those of other services are left out.
    """
    server = grpc.aio.server(options=OPTIONS)
    streams: dict[str, Source] = {
        "gpushare.v1.Leases/Acquire": _until_granted(api),
        "gpushare.v1.Jobs/Watch": jobs.watch,
        "gpushare.v1.Jobs/Logs": jobs.logs,
    }
    for service in SERVICES:
        handlers = {}
        for name, method in service.methods_by_name.items():
            full_name = f"{service.full_name}/{name}"
            if full_name in calls:
                handlers[name] = _unary(method, calls[full_name], authenticator)
            elif full_name in streams:
                handlers[name] = _stream(method, f"{service.name}/{name}", streams[full_name], authenticator)
        if service.name == "Jobs":
            handlers["Tunnel"] = _no_tunnel(service.methods_by_name["Tunnel"])
        generic = grpc.method_handlers_generic_handler(service.full_name, handlers)
        server.add_generic_rpc_handlers((generic,))
    await add_standard_services(server, [service.full_name for service in SERVICES], authenticator)
    server.add_insecure_port(f"unix:{socket_path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace=1.0)


def _unary(
    method: MethodDescriptor, unary: Unary, authenticator: CallAuthenticator
) -> grpc.RpcMethodHandler[Any, Any]:
    async def call(message: Message, context: Context[Any, Any]) -> Message:
        return await authenticator.unary(unary.call, message, context)

    return unary_handler(method, call)


def _stream(
    method: MethodDescriptor, name: str, source: Source, authenticator: CallAuthenticator
) -> grpc.RpcMethodHandler[Any, Any]:
    async def call(message: Message, context: Context[Any, Any]) -> AsyncIterator[Message]:
        async with authenticator.identified(name, message, context) as (caller, _):
            async for answer in source(message, caller):
                yield answer

    return grpc.unary_stream_rpc_method_handler(
        call,
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=GetMessageClass(method.output_type).SerializeToString,
    )


def _until_granted(api: Api) -> Source:
    """Return the stream that sends each change of a requested lease, until the lease is over."""

    async def views(request: leases_pb2.LeaseRequest, caller: Caller) -> AsyncIterator[leases_pb2.Lease]:
        view = await api.request(request, caller)
        yield view
        while not is_over(view):
            again = leases_pb2.WaitRequest(lease_id=view.id, token=view.token, timeout_seconds=60)
            newer = await api.wait(again, caller)
            if newer.token != view.token:
                yield newer
            view = newer

    return views


def _no_tunnel(method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
    async def call(
        chunks: AsyncIterator[Message],  # noqa: ARG001 - gRPC's signature
        context: Context[Any, Any],
    ) -> AsyncIterator[Message]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask a node for a Door, or the coordinator")
        yield jobs_pb2.TunnelChunk()  # never reached; gRPC needs a generator

    return grpc.stream_stream_rpc_method_handler(
        call,
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=GetMessageClass(method.output_type).SerializeToString,
    )


class _Health(health.aio.HealthServicer):
    def __init__(self, authenticator: CallAuthenticator) -> None:
        super().__init__()
        self._authenticator = authenticator

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context[Any, Any]) -> None:
        async with self._authenticator.identified("Health/Watch", request, context):
            await super().Watch(request, context)


class _Reflection(reflection.aio.ReflectionServicer):
    def __init__(self, names: Sequence[str], authenticator: CallAuthenticator) -> None:
        super().__init__(names)
        self._authenticator = authenticator

    async def ServerReflectionInfo(  # type: ignore[override]  # the package's stubs call it a coroutine
        self,
        request_iterator: AsyncIterator[reflection_pb2.ServerReflectionRequest],
        unused_context: Context[Any, Any],
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        answers: Any = super().ServerReflectionInfo(request_iterator, unused_context)
        async with self._authenticator.identified(
            "ServerReflection/ServerReflectionInfo", None, unused_context
        ):
            async for answer in answers:
                yield answer


async def add_standard_services(
    server: grpc.aio.Server, service_names: Sequence[str], authenticator: CallAuthenticator
) -> None:
    """Add health and reflection to a server. ``service_names``: the full names of the server's other services."""
    names = [*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME]
    checker = _Health(authenticator)
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    for name in ("", *names):
        await checker.set(name, health_pb2.HealthCheckResponse.SERVING)
    add_reflection: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server  # it has no types
    add_reflection(_Reflection(names, authenticator), server)
