"""The API as gRPC, on an inner socket that only the front can reach."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from gpushared.api.v1 import (
    audit_pb2,
    audit_pb2_grpc,
    gpus_pb2,
    gpus_pb2_grpc,
    jobs_pb2,
    jobs_pb2_grpc,
    leases_pb2,
    leases_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    projects_pb2,
    projects_pb2_grpc,
)
from gpushared.net.audit_service import AuditApi
from gpushared.net.call_checks import OPTIONS, CallAuthenticator, Context
from gpushared.node.services.jobs_of_node import NodeJobs
from gpushared.node.services.node_service import Api, is_over
from gpushared.node.services.policy_service import PolicyApi

SERVICES = ("Leases", "Gpus", "Projects", "Node", "Jobs", "Audit", "Policy")


class Leases(leases_pb2_grpc.LeasesServicer):
    def __init__(self, api: Api, doors: CallAuthenticator) -> None:
        self._api = api
        self._doors = doors

    async def Request(self, request: leases_pb2.LeaseRequest, context: Context[Any, Any]) -> leases_pb2.Lease:
        return await self._doors.unary(self._api.request, request, context)

    async def Acquire(
        self, request: leases_pb2.LeaseRequest, context: Context[Any, Any]
    ) -> AsyncIterator[leases_pb2.Lease]:
        async with self._doors.called("Leases/Acquire", request, context) as (caller, _):
            view = await self._api.request(request, caller)
            yield view
            while not is_over(view):
                again = leases_pb2.WaitRequest(lease_id=view.id, token=view.token, timeout_seconds=60)
                newer = await self._api.wait(again, caller)
                if newer.token != view.token:
                    yield newer
                view = newer

    async def Wait(self, request: leases_pb2.WaitRequest, context: Context[Any, Any]) -> leases_pb2.Lease:
        return await self._doors.unary(self._api.wait, request, context)

    async def Release(self, request: leases_pb2.LeaseRef, context: Context[Any, Any]) -> leases_pb2.Lease:
        return await self._doors.unary(self._api.release, request, context)

    async def Stop(self, request: leases_pb2.StopRequest, context: Context[Any, Any]) -> leases_pb2.Lease:
        return await self._doors.unary(self._api.stop, request, context)

    async def Resize(
        self, request: leases_pb2.ResizeRequest, context: Context[Any, Any]
    ) -> leases_pb2.ResizeAnswer:
        return await self._doors.unary(self._api.resize, request, context)

    async def Hold(self, request: leases_pb2.HoldRequest, context: Context[Any, Any]) -> leases_pb2.Lease:
        return await self._doors.unary(self._api.hold, request, context)

    async def Extend(self, request: leases_pb2.ExtendRequest, context: Context[Any, Any]) -> leases_pb2.Lease:
        return await self._doors.unary(self._api.extend, request, context)

    async def SetPriority(
        self, request: leases_pb2.PriorityRequest, context: Context[Any, Any]
    ) -> leases_pb2.Lease:
        return await self._doors.unary(self._api.set_priority, request, context)

    async def Pause(self, request: leases_pb2.LeaseRef, context: Context[Any, Any]) -> leases_pb2.Lease:
        return await self._doors.unary(self._api.pause, request, context)

    async def Resume(self, request: leases_pb2.LeaseRef, context: Context[Any, Any]) -> leases_pb2.Lease:
        return await self._doors.unary(self._api.resume, request, context)

    async def Preempt(self, request: leases_pb2.LeaseRef, context: Context[Any, Any]) -> leases_pb2.Lease:
        return await self._doors.unary(self._api.preempt, request, context)

    async def Get(self, request: leases_pb2.LeaseRef, context: Context[Any, Any]) -> leases_pb2.Lease:
        return await self._doors.unary(self._api.get, request, context)

    async def List(
        self, request: leases_pb2.ListLeasesRequest, context: Context[Any, Any]
    ) -> leases_pb2.ListLeasesResponse:
        return await self._doors.unary(self._api.list_leases, request, context)

    async def Explain(
        self, request: leases_pb2.LeaseRef, context: Context[Any, Any]
    ) -> leases_pb2.Explanation:
        return await self._doors.unary(self._api.explain, request, context)

    async def Offer(
        self, request: leases_pb2.LeaseRequest, context: Context[Any, Any]
    ) -> leases_pb2.OfferAnswer:
        return await self._doors.unary(self._api.offer, request, context)


class GpusServicer(gpus_pb2_grpc.GpusServicer):
    def __init__(self, api: Api, doors: CallAuthenticator) -> None:
        self._api = api
        self._doors = doors

    async def List(
        self, request: gpus_pb2.ListGpusRequest, context: Context[Any, Any]
    ) -> gpus_pb2.ListGpusResponse:
        return await self._doors.unary(self._api.list_gpus, request, context)

    async def Drain(self, request: gpus_pb2.DrainRequest, context: Context[Any, Any]) -> gpus_pb2.DrainAnswer:
        return await self._doors.unary(self._api.drains.drain, request, context)

    async def Undrain(
        self, request: gpus_pb2.UndrainRequest, context: Context[Any, Any]
    ) -> gpus_pb2.DrainAnswer:
        return await self._doors.unary(self._api.drains.undrain, request, context)


class ProjectsServicer(projects_pb2_grpc.ProjectsServicer):
    def __init__(self, api: Api, doors: CallAuthenticator) -> None:
        self._api = api
        self._doors = doors

    async def List(
        self, request: projects_pb2.ListProjectsRequest, context: Context[Any, Any]
    ) -> projects_pb2.ListProjectsResponse:
        return await self._doors.unary(self._api.projects.list_projects, request, context)

    async def Set(
        self, request: projects_pb2.SetProjectRequest, context: Context[Any, Any]
    ) -> projects_pb2.Project:
        return await self._doors.unary(self._api.projects.set_project, request, context)


class Node(node_pb2_grpc.NodeServicer):
    def __init__(self, api: Api, doors: CallAuthenticator) -> None:
        self._api = api
        self._doors = doors

    async def Status(
        self, request: node_pb2.NodeStatusRequest, context: Context[Any, Any]
    ) -> node_pb2.NodeStatus:
        return await self._doors.unary(self._api.status, request, context)

    async def Presets(
        self, request: node_pb2.PresetsRequest, context: Context[Any, Any]
    ) -> node_pb2.PresetsResponse:
        return await self._doors.unary(self._api.list_presets, request, context)

    async def Doctor(
        self, request: node_pb2.DoctorRequest, context: Context[Any, Any]
    ) -> node_pb2.DoctorReport:
        return await self._doors.unary(self._api.doctor, request, context)

    async def Join(
        self, request: node_pb2.JoinPoolRequest, context: Context[Any, Any]
    ) -> node_pb2.PoolMembership:
        return await self._doors.unary(self._api.memberships.join, request, context)

    async def Leave(
        self, request: node_pb2.LeavePoolRequest, context: Context[Any, Any]
    ) -> node_pb2.LeftPool:
        return await self._doors.unary(self._api.memberships.leave, request, context)


class Audit(audit_pb2_grpc.AuditServicer):
    def __init__(self, audit: AuditApi, doors: CallAuthenticator) -> None:
        self._audit = audit
        self._doors = doors

    async def List(
        self, request: audit_pb2.ListAuditRequest, context: Context[Any, Any]
    ) -> audit_pb2.ListAuditResponse:
        return await self._doors.unary(self._audit.list_lines, request, context)


class PolicyServicer(policy_pb2_grpc.PolicyServicer):
    def __init__(self, policy: PolicyApi, doors: CallAuthenticator) -> None:
        self._policy = policy
        self._doors = doors

    async def Explain(
        self, request: policy_pb2.ExplainPolicyRequest, context: Context[Any, Any]
    ) -> policy_pb2.PolicyExplanation:
        return await self._doors.unary(self._policy.explain, request, context)

    async def Show(
        self, request: policy_pb2.ShowPolicyRequest, context: Context[Any, Any]
    ) -> policy_pb2.PolicyRules:
        return await self._doors.unary(self._policy.show, request, context)


class JobsServicer(jobs_pb2_grpc.JobsServicer):
    def __init__(self, jobs: NodeJobs, doors: CallAuthenticator) -> None:
        self._jobs = jobs
        self._doors = doors

    async def Submit(
        self, request: jobs_pb2.SubmitRequest, context: Context[Any, Any]
    ) -> jobs_pb2.SubmitAnswer:
        return await self._doors.unary(self._jobs.submit, request, context)

    async def SubmitBatch(
        self, request: jobs_pb2.SubmitBatchRequest, context: Context[Any, Any]
    ) -> jobs_pb2.SubmitBatchAnswer:
        return await self._doors.unary(self._jobs.submit_batch, request, context)

    async def Get(self, request: jobs_pb2.JobRef, context: Context[Any, Any]) -> jobs_pb2.Job:
        return await self._doors.unary(self._jobs.get, request, context)

    async def List(
        self, request: jobs_pb2.ListJobsRequest, context: Context[Any, Any]
    ) -> jobs_pb2.ListJobsResponse:
        return await self._doors.unary(self._jobs.list_jobs, request, context)

    async def Wait(self, request: jobs_pb2.WaitJobRequest, context: Context[Any, Any]) -> jobs_pb2.Job:
        return await self._doors.unary(self._jobs.wait, request, context)

    async def Watch(
        self, request: jobs_pb2.JobRef, context: Context[Any, Any]
    ) -> AsyncIterator[jobs_pb2.Job]:
        async with self._doors.called("Jobs/Watch", request, context) as (caller, _):
            async for view in self._jobs.watch(request, caller):
                yield view

    async def Cancel(self, request: jobs_pb2.CancelJobRequest, context: Context[Any, Any]) -> jobs_pb2.Job:
        return await self._doors.unary(self._jobs.cancel, request, context)

    async def Hold(self, request: jobs_pb2.HoldJobRequest, context: Context[Any, Any]) -> jobs_pb2.Job:
        return await self._doors.unary(self._jobs.hold, request, context)

    async def SetPriority(
        self, request: jobs_pb2.JobPriorityRequest, context: Context[Any, Any]
    ) -> jobs_pb2.Job:
        return await self._doors.unary(self._jobs.set_priority, request, context)

    async def Explain(self, request: jobs_pb2.JobRef, context: Context[Any, Any]) -> jobs_pb2.JobExplanation:
        return await self._doors.unary(self._jobs.explain, request, context)

    async def Logs(
        self, request: jobs_pb2.LogsRequest, context: Context[Any, Any]
    ) -> AsyncIterator[jobs_pb2.LogChunk]:
        async with self._doors.called("Jobs/Logs", request, context) as (caller, _):
            async for chunk in self._jobs.logs(request, caller):
                yield chunk

    async def Tunnel(
        self,
        request_iterator: AsyncIterator[jobs_pb2.TunnelChunk],  # noqa: ARG002 - gRPC's signature
        context: Context[Any, Any],
    ) -> AsyncIterator[jobs_pb2.TunnelChunk]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask a node for a Door, or the coordinator")
        yield jobs_pb2.TunnelChunk()  # never reached; a generator is what gRPC wants

    async def Door(self, request: jobs_pb2.DoorRequest, context: Context[Any, Any]) -> jobs_pb2.DoorAnswer:
        return await self._doors.unary(self._jobs.door, request, context)

    async def Reserve(
        self, request: jobs_pb2.ReserveRequest, context: Context[Any, Any]
    ) -> jobs_pb2.ReserveAnswer:
        return await self._doors.unary(self._jobs.reserve, request, context)

    async def Nodes(
        self, request: jobs_pb2.NodesRequest, context: Context[Any, Any]
    ) -> jobs_pb2.NodesResponse:
        return await self._doors.unary(self._jobs.nodes, request, context)


@asynccontextmanager
async def serving(
    api: Api, jobs: NodeJobs, audit: AuditApi, policy: PolicyApi, doors: CallAuthenticator, socket_path: str
) -> AsyncIterator[None]:
    """A gRPC server on the inner socket, with health and reflection, as long as the block runs."""
    server = grpc.aio.server(options=OPTIONS)
    leases_pb2_grpc.add_LeasesServicer_to_server(Leases(api, doors), server)
    gpus_pb2_grpc.add_GpusServicer_to_server(GpusServicer(api, doors), server)
    projects_pb2_grpc.add_ProjectsServicer_to_server(ProjectsServicer(api, doors), server)
    node_pb2_grpc.add_NodeServicer_to_server(Node(api, doors), server)
    jobs_pb2_grpc.add_JobsServicer_to_server(JobsServicer(jobs, doors), server)
    audit_pb2_grpc.add_AuditServicer_to_server(Audit(audit, doors), server)
    policy_pb2_grpc.add_PolicyServicer_to_server(PolicyServicer(policy, doors), server)
    await add_standard_services(server, [f"gpushare.v1.{service}" for service in SERVICES], doors)
    server.add_insecure_port(f"unix:{socket_path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace=1.0)


class _Health(health.aio.HealthServicer):
    def __init__(self, doors: CallAuthenticator) -> None:
        super().__init__()
        self._doors = doors

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context[Any, Any]) -> None:
        async with self._doors.called("Health/Watch", request, context):
            await super().Watch(request, context)


class _Reflection(reflection.aio.ReflectionServicer):
    def __init__(self, names: Sequence[str], doors: CallAuthenticator) -> None:
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


async def add_standard_services(
    server: grpc.aio.Server, ours: Sequence[str], doors: CallAuthenticator
) -> None:
    """``ours``: the full names of the services that there are besides."""
    names = [*ours, health.SERVICE_NAME, reflection.SERVICE_NAME]
    checker = _Health(doors)
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    for name in ("", *names):
        await checker.set(name, health_pb2.HealthCheckResponse.SERVING)
    add_reflection: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server  # it has no types
    add_reflection(_Reflection(names, doors), server)
