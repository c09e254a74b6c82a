"""gRPC's own services, health and reflection, whose streams count as every other call of their caller's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from gpushared.serving.doors import Context, Doors


class _Health(health.aio.HealthServicer):
    def __init__(self, doors: Doors) -> None:
        super().__init__()
        self._doors = doors

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context[Any, Any]) -> None:
        async with self._doors.called("Health/Watch", request, context):
            await super().Watch(request, context)


class _Reflection(reflection.aio.ReflectionServicer):
    def __init__(self, names: Sequence[str], doors: Doors) -> None:
        super().__init__(names)
        self._doors = doors

    async def ServerReflectionInfo(  # type: ignore[override]  # the package's stubs call it a coroutine
        self,
        request_iterator: AsyncIterator[reflection_pb2.ServerReflectionRequest],
        unused_context: Context[Any, Any],
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        answers: Any = super().ServerReflectionInfo(request_iterator, unused_context)
        async with self._doors.called("ServerReflection/ServerReflectionInfo", None, unused_context):
            async for answer in answers:
                yield answer


async def add_standard_services(server: grpc.aio.Server, ours: Sequence[str], doors: Doors) -> None:
    """``ours``: the full names of the services that there are besides."""
    names = [*ours, health.SERVICE_NAME, reflection.SERVICE_NAME]
    checker = _Health(doors)
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    for name in ("", *names):
        await checker.set(name, health_pb2.HealthCheckResponse.SERVING)
    add_reflection: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server  # it has no types
    add_reflection(_Reflection(names, doors), server)
