"""Build the coordinator's services and gRPC servers, one server for each listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from gpushared.api.v1 import (
    audit_pb2,
    gpus_pb2,
    history_pb2,
    jobs_pb2,
    leases_pb2,
    link_pb2,
    pool_pb2,
    pool_pb2_grpc,
)
from gpushared.domain.jobs.job import Owner
from gpushared.domain.jobs.member import Presence
from gpushared.domain.model.errors import ConfigError, GpushareError, NotLeader, RequestError, TimedOut
from gpushared.domain.model.notification import check_allowed
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import first_few
from gpushared.jobs.job_requests import RequestedJobs
from gpushared.jobs.job_search import Archive
from gpushared.jobs.job_views import JobViews, has_simulated, nodes_of, notices_of
from gpushared.jobs.jobs_service import JobsService
from gpushared.net.audit_service import AuditApi
from gpushared.net.call_checks import OPTIONS, Context, abort
from gpushared.net.history_service import HistoryApi, Rights
from gpushared.net.intake import Intake
from gpushared.net.unary_json import Unary
from gpushared.notify.targets import routes_of
from gpushared.pool.coordinator.admin_service import Admin, TrustAdmin
from gpushared.pool.coordinator.job_streams import JobStreams, Tunnels
from gpushared.pool.coordinator.join_service import JoinService
from gpushared.pool.coordinator.node_links import LinkService
from gpushared.pool.coordinator.node_listings import NodeListings
from gpushared.pool.coordinator.running_parts import (
    CoordinatorParts,
    Handler,
    Listener,
    Service,
    unary_service,
)
from gpushared.pool.trust.callers import PoolCaller, unless
from gpushared.pool.trust.token_records import Scope
from gpushared.pool.tunnels.tunnel_frames import from_wire, to_wire
from gpushared.storage.audit.line import NOBODY_HERE

_HISTORY = history_pb2.DESCRIPTOR.services_by_name["History"]
_LEASES = leases_pb2.DESCRIPTOR.services_by_name["Leases"]
_GPUS = gpus_pb2.DESCRIPTOR.services_by_name["Gpus"]
_JOBS = jobs_pb2.DESCRIPTOR.services_by_name["Jobs"]
_TUNNEL_SCOPES = (Scope.SUBMIT, Scope.READ, Scope.LOGS, Scope.CANCEL)
"""A tunnel needs all of these scopes: its client can do all that they permit with the account's containers."""
FIRST_MESSAGE_SECONDS = 30.0
"""A tunnel may be open this long before its first message names its job."""
MAX_NODES_NAMED = 5
"""A notice names at most this many nodes."""
_Request = TypeVar("_Request", bound=Message)
_Answer = TypeVar("_Answer", bound=Message)
EVERYWHERE = frozenset(Listener)
BY_TLS = frozenset({Listener.NODES, Listener.USERS})
_LINK = link_pb2.DESCRIPTOR.services_by_name["NodeLink"].full_name
STOP_SECONDS = 2.0
"""Give open calls this long at the end."""
MAX_CALLS_OF_A_NODE = 8192
"""All users of a node share one connection for their tunnels and waiting calls; the node bounds each of its
users to less."""
_MOST = "grpc.max_concurrent_streams"
_MOST_CONNECTIONS = "grpc.max_allowed_incoming_connections"
_HANDSHAKE = ("grpc.server_handshake_timeout_ms", 10_000)
"""Bound the time in which a silent new connection can block others (120 s without this)."""
_IDLE = ("grpc.max_connection_idle_ms", 30_000)
"""Keep a connection without calls this long. Clients connect again when they call."""
_FIXED_WINDOW = ("grpc.http2.bdp_probe", 0)
"""Without this the window of each stream grows with the data of any one of them, and a call that waits for
its turn may have sent megabytes. Nodes, which pass much data and are known, keep windows that grow."""
_OPTIONS_FOR_USERS = [*OPTIONS, _HANDSHAKE, _IDLE, _FIXED_WINDOW]
_OPTIONS_FOR_NODES = [*(opt for opt in OPTIONS if opt[0] != _MOST), _HANDSHAKE, (_MOST, MAX_CALLS_OF_A_NODE)]


def jobs_services(coordinator: CoordinatorParts) -> Sequence[Service]:
    """Return the service of jobs: the unary calls, and the streams that have no JSON."""
    tunnels = Tunnels(lambda: coordinator.link)
    coordinator.link.tunnels = tunnels
    jobs = _JobsHandlers(coordinator, JobStreams(tunnels))
    unary = unary_service(_JOBS, jobs.handlers(), coordinator.trust.callers, EVERYWHERE)

    def add(server: grpc.aio.Server) -> None:
        unary.add(server)
        server.add_generic_rpc_handlers((jobs.streams(),))

    return (Service(unary.name, unary.listeners, add, unary.calls, jobs.output),)


class _JobsHandlers:
    """Handle the calls of ``Jobs``: the unary ones, and the streams."""

    def __init__(self, coordinator: CoordinatorParts, streams: JobStreams) -> None:
        self._coordinator = coordinator
        self._streams = streams
        self._callers = coordinator.trust.callers
        loop = coordinator.loop
        self._service = JobsService(
            loop,
            Archive(coordinator.store),
            JobViews(lambda: loop.state, loop.now, loop.snapshot),
            presets=lambda: {name: preset.spec for name, preset in coordinator.config().presets.items()},
            check=self._check,
            notices=self._notices,
            why_incomplete=lambda: next(iter(self._notices()), ""),
            simulated=lambda: has_simulated(loop.state),
        )

    # --- unary -----------------------------------------------------------------------------------------

    def handlers(self) -> dict[str, Handler]:
        service = self._service
        return {
            "Submit": _for(Scope.SUBMIT, service.submit),
            "SubmitBatch": _for(Scope.SUBMIT, service.submit_batch),
            "Get": _for(Scope.READ, service.get),
            "List": _for(Scope.READ, service.list_jobs),
            "Wait": _for(Scope.READ, service.wait),
            "Cancel": _for(Scope.CANCEL, service.cancel),
            "Hold": _for(Scope.CANCEL, service.hold),
            "SetPriority": _for(Scope.CANCEL, service.set_priority),
            "Explain": _for(Scope.READ, service.explain),
            "Nodes": _for(Scope.READ, self._nodes),
        }

    async def _check(self, requested: RequestedJobs, _: Owner) -> None:
        """Raise PermissionRefused for a target of notifications that the pool does not allow."""
        targets = requested.jobs[0][1].request.notify
        if targets:
            check_allowed(targets, routes_of(self._coordinator.config().notify, {}).allowed)

    async def _nodes(self, _: jobs_pb2.NodesRequest, owner: Owner) -> jobs_pb2.NodesResponse:
        loop = self._coordinator.loop
        async with self._service.turn(owner):
            nodes = nodes_of(loop.state, loop.now())
            if self._coordinator.standby() is not None:
                for node in nodes:  # nodes report to the leader only
                    node.presence = Presence.UNKNOWN if node.presence == Presence.NEVER else node.presence
            return jobs_pb2.NodesResponse(
                nodes=nodes,
                pool=self._coordinator.trust.pool,
                notices=[*self._notices(), *notices_of(loop.state, loop.now())],
            )

    def _notices(self) -> list[str]:
        """Return at most one sentence on why the listed state is uncertain."""
        standby, state = self._coordinator.standby(), self._coordinator.loop.state
        if standby is not None:
            return [standby.notice()]
        if state.settled:
            return []
        names = first_few(state.missing(), MAX_NODES_NAMED)
        waits = f"; not heard of yet: {names}" if names else ""
        if state.recovering_since is not None:
            return [f"the pool lost some of its memory and asks its nodes what they have{waits}"]
        return [f"the pool has just begun and asks its nodes what they have{waits}"]

    # --- streams ---------------------------------------------------------------------------------------

    def streams(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            _JOBS.full_name,
            {
                "Watch": grpc.unary_stream_rpc_method_handler(
                    self._watch, jobs_pb2.JobRef.FromString, jobs_pb2.Job.SerializeToString
                ),
                "Logs": grpc.unary_stream_rpc_method_handler(
                    self._logs, jobs_pb2.LogsRequest.FromString, jobs_pb2.LogChunk.SerializeToString
                ),
                "Tunnel": grpc.stream_stream_rpc_method_handler(
                    self._tunnel, from_wire(jobs_pb2.TunnelChunk), to_wire(jobs_pb2.TunnelChunk)
                ),
            },
        )

    async def _watch(
        self, message: jobs_pb2.JobRef, context: Context[Any, Any]
    ) -> AsyncIterator[jobs_pb2.Job]:
        async for view in self._callers.stream(self._job_views, message, context, "Jobs/Watch"):
            yield view

    async def _job_views(self, message: jobs_pb2.JobRef, caller: PoolCaller) -> AsyncIterator[jobs_pb2.Job]:
        caller.require(Scope.READ)
        async for view in self._service.watch(message, caller.owner):
            yield view

    async def _logs(
        self, message: jobs_pb2.LogsRequest, context: Context[Any, Any]
    ) -> AsyncIterator[jobs_pb2.LogChunk]:
        async for chunk in self._callers.stream(self._log_chunks, message, context, "Jobs/Logs"):
            yield chunk

    async def output(self, message: jobs_pb2.LogsRequest, caller: Caller) -> AsyncIterator[jobs_pb2.LogChunk]:
        """Yield a job's output for a browser's user or one of the unix socket. Raises errors of the tree."""
        async for chunk in self._log_chunks(message, self._callers.of_json(caller)):
            yield chunk

    async def _log_chunks(
        self, message: jobs_pb2.LogsRequest, caller: PoolCaller
    ) -> AsyncIterator[jobs_pb2.LogChunk]:
        self._callers.check_answers("Jobs/Logs")
        caller.require(Scope.LOGS)
        job = await self._service.find(message.job_id, caller.owner)
        async for chunk in self._streams.logs(job, message, caller.owner):
            yield chunk

    async def _tunnel(self, _: object, context: Context[Any, Any]) -> None:
        """Serve a tunnel with explicit reads and writes, because each direction ends by itself."""
        caller: PoolCaller | None = None
        first: object = None
        try:
            first = await _first_message(context)
            if not isinstance(first, jobs_pb2.TunnelChunk):
                raise RequestError("a tunnel begins with the job that it leads to")
            caller = await self._callers.caller_of(context, first)
            self._callers.check_answers("Jobs/Tunnel")
            for scope in _TUNNEL_SCOPES:
                caller.require(scope)
            job = await self._service.find(first.job_id, caller.owner)
            with self._callers.watching(caller) as gone:
                await unless(gone, self._streams.tunnel(job, first, caller.owner, context))
        except NotLeader as error:
            await abort(context, error)
        except GpushareError as error:
            message = first if isinstance(first, jobs_pb2.TunnelChunk) else None
            await self._callers.refuse("Jobs/Tunnel", message, caller, context, error)


async def _first_message(context: Context[Any, Any]) -> object:
    """Read the first message of a stream. Raises TimedOut."""
    try:
        async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
            return await context.read()
    except TimeoutError:
        raise TimedOut(f"no message came in {FIRST_MESSAGE_SECONDS:.0f} s", hint="try again") from None


def _for(scope: Scope, call: Callable[[_Request, Owner], Awaitable[_Answer]]) -> Handler:
    """Return a handler that makes the call if the caller has the scope."""

    async def handler(message: Any, caller: PoolCaller) -> Message:
        caller.require(scope)
        return await call(message, caller.owner)

    return handler


def admin_services(coordinator: CoordinatorParts) -> Sequence[Service]:
    """Return the services that administrators call, and the one for machines that join."""
    admin = Admin(
        coordinator.loop,
        coordinator.trust.enrolment,
        coordinator.troubles,
        pool=coordinator.trust.pool,
        send_drain=coordinator.link.send_drain,
        store=coordinator.store,
        standby=coordinator.standby,
        registry=coordinator.registry,
    )
    join = JoinService(coordinator.trust, coordinator.nodes_port, audit=coordinator.call_audit)
    return (
        unary_service(
            pool_pb2.DESCRIPTOR.services_by_name["PoolAdmin"],
            {**admin.handlers(), **TrustAdmin(coordinator.trust).handlers()},
            coordinator.trust.callers,
            EVERYWHERE,
        ),
        Service(
            "gpushare.v1.Join", BY_TLS, lambda server: pool_pb2_grpc.add_JoinServicer_to_server(join, server)
        ),
    )


def audit_services(coordinator: CoordinatorParts) -> Sequence[Service]:
    """Return the service that lists administrators' changes to the pool and the calls that were refused."""
    api = AuditApi(coordinator.audit, simulated=False)

    async def list_lines(
        message: audit_pb2.ListAuditRequest, caller: PoolCaller
    ) -> audit_pb2.ListAuditResponse:
        caller.require_admin()
        admin = Caller(NOBODY_HERE, NOBODY_HERE, caller.owner.principal, trusted=True)
        return await api.list_lines(message, admin)

    return (
        unary_service(
            audit_pb2.DESCRIPTOR.services_by_name["Audit"],
            {"List": list_lines},
            coordinator.trust.callers,
            EVERYWHERE,
        ),
    )


def history_services(coordinator: CoordinatorParts) -> Sequence[Service]:
    """Return the service of the history of all nodes, for persons by their names in the pool."""

    async def refresh() -> None:
        await coordinator.gatherer.refresh()
        await coordinator.recorder.flush()

    api = HistoryApi(
        coordinator.history,
        refresh,
        Rights(lambda: coordinator.config().privacy.others, by_name=True),
        simulated=lambda: has_simulated(coordinator.loop.state),
    )
    return (
        unary_service(
            _HISTORY,
            {name.rpartition("/")[2]: _of_person(call) for name, call in api.calls().items()},
            coordinator.trust.callers,
            EVERYWHERE,
        ),
    )


def listing_services(coordinator: CoordinatorParts) -> Sequence[Service]:
    """Return the calls that list the leases and the GPUs of all nodes."""
    listings = NodeListings(
        coordinator.link,
        coordinator.loop,
        coordinator.owners,
        lambda: coordinator.config().privacy.others,
    )
    calls = {_LEASES: _for(Scope.READ, listings.leases), _GPUS: _for(Scope.READ, listings.gpus)}
    return [
        unary_service(service, {"List": call}, coordinator.trust.callers, EVERYWHERE)
        for service, call in calls.items()
    ]


def _of_person(call: Unary) -> Handler:
    async def handler(message: Any, caller: PoolCaller) -> Message:
        caller.require(Scope.READ)
        person = Caller(NOBODY_HERE, NOBODY_HERE, caller.owner.person, trusted=caller.owner.admin)
        return await call.call(message, person)

    return handler


def link_services(coordinator: CoordinatorParts) -> Sequence[Service]:
    """Return the service that nodes dial."""
    link = coordinator.link
    return (
        Service(
            _LINK,
            frozenset({Listener.NODES}),
            lambda server: server.add_generic_rpc_handlers((link_handlers(link),)),
        ),
    )


def link_handlers(link: LinkService) -> grpc.GenericRpcHandler:
    """Return the handlers of the link's calls; tunnels have their own serializer."""
    return grpc.method_handlers_generic_handler(
        _LINK,
        {
            "Connect": grpc.stream_stream_rpc_method_handler(
                link.Connect, link_pb2.Up.FromString, link_pb2.Down.SerializeToString
            ),
            "Serve": grpc.stream_stream_rpc_method_handler(
                link.Serve, from_wire(link_pb2.TunnelData), to_wire(link_pb2.TunnelData)
            ),
        },
    )


class _HealthOnce(health.aio.HealthServicer):
    """Answer health checks once. A stream of answers could stay open to strangers without limit.

    Clients take UNIMPLEMENTED for a server that does not report changes, and go on (gRPC's health protocol).
    """

    async def Watch(  # noqa: N802 - gRPC's name
        self, _: object, context: Context[Any, Any]
    ) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask with Check")


class ListenerServer:
    """Run one gRPC server. Its port is known once bound; only then the server accepts calls."""

    def __init__(
        self,
        listener: Listener,
        address: str,
        credentials: grpc.ServerCredentials | None,
        intake: Intake | None = None,
        max_connections: int = 0,
    ) -> None:
        """Bind the port. ``intake`` runs before all services.

        Raises ConfigError if the address is not available.

        The server closes connections beyond ``max_connections`` as soon as it accepts them; 0 means no bound.
        """
        self._listener = listener
        options = _OPTIONS_FOR_NODES if listener is Listener.NODES else _OPTIONS_FOR_USERS
        bound = [(_MOST_CONNECTIONS, max_connections)] if max_connections else []
        self._server = grpc.aio.server(
            options=[*options, *bound],
            interceptors=[intake] if intake else [],
        )
        try:
            self.port = (
                self._server.add_insecure_port(address)
                if credentials is None
                else self._server.add_secure_port(address, credentials)
            )
        except RuntimeError as error:
            raise ConfigError(
                f"{address} cannot be listened at",
                hint="is another program there (`ss -ltnp`)? is the address one of this machine?",
            ) from error

    @asynccontextmanager
    async def serving(self, services: Sequence[Service]) -> AsyncIterator[None]:
        """Accept calls as long as the block runs."""
        served = [service for service in services if self._listener in service.listeners]
        for service in served:
            service.add(self._server)
        await self._add_health([service.name for service in served])
        await self._server.start()
        try:
            yield
        finally:
            await self._server.stop(grace=STOP_SECONDS)

    async def _add_health(self, names: Sequence[str]) -> None:
        """Add health checks; add reflection, which lists the calls, for administrators only."""
        checker = health.aio.HealthServicer() if self._listener is Listener.LOCAL else _HealthOnce()
        health_pb2_grpc.add_HealthServicer_to_server(checker, self._server)
        for name in ("", *names):
            await checker.set(name, health_pb2.HealthCheckResponse.SERVING)
        if self._listener is Listener.LOCAL:
            reflected = [*names, health.SERVICE_NAME, reflection.SERVICE_NAME]
            reflection.enable_server_reflection(reflected, self._server)
