"""Handle requests about containers: lists, starts and ends, programs that join, and copies of files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from gpushared.domain.model.errors import (
    GpushareError,
    LeasedAlready,
    NotFound,
    PermissionRefused,
    StateConflict,
)
from gpushared.domain.model.request import Caller
from gpushared.gate.api.body import HOST_NETWORK, check_ports, section, serialise, strings
from gpushared.gate.api.fields import EXEC_SPELLINGS, EXEC_START_TABLE, EXEC_TABLE, UPDATE_TABLE
from gpushared.gate.api.routes import (
    Payload,
    RouteAction,
    asked_end,
    asked_stop,
    check_ps,
    own_only,
    parse_filters,
    with_own,
    write_filters,
)
from gpushared.gate.containers.gpu_request import hints_for_docker
from gpushared.gate.containers.inject import merge_env, strip_env
from gpushared.gate.containers.ownership import (
    STOPPED,
    Container,
    check_name,
    find_container,
    find_exec,
    find_network,
    find_owned,
    hide_holder,
    own_containers,
)
from gpushared.gate.handlers.call import Call, as_output, while_waiting
from gpushared.gate.handlers.context import Handler, HandlerContext
from gpushared.gate.policy.admission import judge_exec, judge_update
from gpushared.net.identity import account_of
from gpushared.ports import LABEL_JOB

DEVICE_FIELDS = ("Devices", "DeviceRequests", "DeviceCgroupRules")
FIRST_FAILURE = 400


class ContainerHandlers:
    """Handle requests about an existing container."""

    def __init__(self, handler_context: HandlerContext) -> None:
        self._handler_context = handler_context
        self._engine = handler_context.engine
        self._lease_service = handler_context.lease_service

    def for_everybody(self) -> dict[RouteAction, Handler]:
        """Return the handlers for trusted callers as well: their containers have leases too."""
        return {
            RouteAction.START: self._start,
            RouteAction.RESTART: self._restart,
            RouteAction.UNPAUSE: self._unpause,
            RouteAction.END: self._end,
            RouteAction.ATTACH: self._attach,
            RouteAction.UPDATE: self._update,
        }

    def for_confined(self) -> dict[RouteAction, Handler]:
        return {
            RouteAction.CONTAINER: self._container,
            RouteAction.RENAME: self._rename,
            RouteAction.TOP: self._top,
        }

    async def _container(self, call: Call) -> None:
        await self._handler_context.send(call, await self._handler_context.own_target(call))

    async def _rename(self, call: Call) -> None:
        name = call.target.get("name")
        await check_name(name, self._engine, call.caller)
        answer = await self._handler_context.ask(call, await self._handler_context.own_target(call), b"")
        await call.answer(await hide_holder(answer, name, self._engine, call.caller))

    async def _top(self, call: Call) -> None:
        check_ps(call.target.get("ps_args"))
        await self._container(call)

    async def _start(self, call: Call) -> None:
        container = await self._startable(call)
        if not container.device_name:
            await self._send_start(call, container)
            return
        async with self._gone_if_refused(call, container):
            with hints_for_docker():
                await while_waiting(
                    call.exchange, self._lease_service.before_start(container.id, call.caller)
                )
        status = FIRST_FAILURE
        try:
            status = await self._send_start(call, container)
        finally:
            if status >= FIRST_FAILURE:
                await asyncio.shield(self._lease_service.start_failed(container.id))

    async def _send_start(self, call: Call, container: Container) -> int:
        async with self._handler_context.container_locks.of(container.id):
            return await self._handler_context.send(call, call.renamed(container.id))

    async def _startable(self, call: Call) -> Container:
        """Return the caller's container if its names and paths still mean the same as at its create."""
        container = await find_container(self._engine, call.match.name, call.caller)
        async with self._gone_if_refused(call, container):
            await self._check_startable(call, container)
        return container

    @asynccontextmanager
    async def _gone_if_refused(self, call: Call, container: Container) -> AsyncIterator[None]:
        """Remove a container whose start is refused, as the engine does: `docker run --rm` waits for that.

        A container that runs stays, and so does one that another request starts.
        """
        try:
            yield
        except LeasedAlready:
            raise
        except GpushareError:
            if container.auto_remove and call.match.route.action is RouteAction.START:
                await self._engine.call("DELETE", f"/containers/{container.id}?v=1".encode())
            raise

    async def _check_startable(self, call: Call, container: Container) -> None:
        if not call.caller.trusted:
            most = self._handler_context.policy.ports_per_user
            check_ports(container.name, container.ports, container.labels, most)
            for network in container.networks:
                await self._check_network(network, container, call.caller)
            for volume in container.volumes:
                await find_owned(self._engine, "volumes", volume, call.caller)
            if paths := container.host_paths:
                await self._handler_context.pins.hold_again(
                    container.pin, await account_of(call.caller), paths
                )
        if self._handler_context.judges(call.caller) and container.owner is not None:
            await self._handler_context.user_containers.check_start(container.owner, container)

    async def _check_network(self, network: str, container: Container, caller: Caller) -> None:
        if network != HOST_NETWORK:
            await find_network(self._engine, network, caller)
        elif not self._may_have_host_network(container):
            raise PermissionRefused(
                "this container has the machine's own network, which is for jobs on several nodes only",
                hint="submit it again",
            )

    def _may_have_host_network(self, container: Container) -> bool:
        policy = self._handler_context.policy
        return policy.host_network or (
            policy.gangs_on_host_network and self._lease_service.has_gang(container.id)
        )

    async def _restart(self, call: Call) -> None:
        container = await self._startable(call)
        if not container.device_name:
            await self._send_start(call, container)
            return
        with hints_for_docker():
            await while_waiting(call.exchange, self._lease_service.before_restart(container.id, call.caller))
        try:
            async with self._lease_service.ending(container.id, asked_stop(call.target)):
                await self._send_start(call, container)
        finally:
            await asyncio.shield(self._lease_service.after_restart(container.id))

    async def _unpause(self, call: Call) -> None:
        container = await find_container(self._engine, call.match.name, call.caller)
        if container.device_name:
            self._lease_service.before_unpause(container.id)
        await self._handler_context.send(call, call.renamed(container.id))

    async def _end(self, call: Call) -> None:
        container = await find_container(self._engine, call.match.name, call.caller)
        requested_end = asked_end(call.exchange.method, call.target)
        async with AsyncExitStack() as stack:
            if container.device_name and requested_end is not None:
                await stack.enter_async_context(self._lease_service.ending(container.id, requested_end))
            await self._handler_context.send(call, call.renamed(container.id))

    async def _attach(self, call: Call) -> None:
        """Attach a client, and explain to it at the end why the container was ended.

        A container that ended by its own program needs no explanation.
        """
        if call.caller.trusted and self._lease_service.last_words(call.match.name) is None:
            await self._handler_context.send(call)
            return
        container = await find_container(self._engine, call.match.name, call.caller)
        explain = self._lease_service.last_words(container.id)
        if explain is None or not (container.terminal or call.target.flag("stderr")):
            await self._handler_context.send(call, call.renamed(container.id))
            return
        target = call.renamed(container.id)
        await self._handler_context.send(
            call, target, exit_notice=lambda: as_output(explain(), terminal=container.terminal)
        )

    async def _update(self, call: Call) -> None:
        body = await self._handler_context.read(call, UPDATE_TABLE)
        for name in DEVICE_FIELDS:
            if body.get(name):
                raise PermissionRefused(
                    f"{name} cannot be changed", hint="stop the container and run a new one"
                )
        if section(body, "RestartPolicy").get("Name") not in {None, "", "no"}:
            await self._refuse_job(call)
        if self._handler_context.judges(call.caller):
            body = judge_update(body, self._handler_context.plain_context(call))
        await self._handler_context.send(call, await self._handler_context.own_target(call), serialise(body))

    async def _refuse_job(self, call: Call) -> None:
        """Refuse a restart policy for a job's container.

        An engine would start the container at a boot, when its pool may have placed the job elsewhere.
        """
        container = await find_container(self._engine, call.match.name, call.caller)
        if container.labels.get(LABEL_JOB):
            raise PermissionRefused(
                "a job's container is not restarted by docker",
                hint="`gpushare submit --retries N` runs it again",
            )


class Execs:
    """Handle ``docker exec``: a program gets the settings of its container's lease."""

    def __init__(self, handler_context: HandlerContext) -> None:
        self._handler_context = handler_context

    def for_everybody(self) -> dict[RouteAction, Handler]:
        return {RouteAction.EXEC_CREATE: self._create}

    def for_confined(self) -> dict[RouteAction, Handler]:
        return {RouteAction.EXEC: self._exec}

    async def _create(self, call: Call) -> None:
        body = await self._handler_context.read(call, EXEC_TABLE, spellings=EXEC_SPELLINGS)
        container = await find_container(self._handler_context.engine, call.match.name, call.caller)
        if self._handler_context.judges(call.caller):
            body = judge_exec(body, self._handler_context.plain_context(call))
        if container.device_name:
            env = await self._handler_context.lease_service.lease_env(container.id)
            body["Env"] = merge_env(strip_env(strings(body, "Env")), env)
        await self._handler_context.send(call, call.renamed(container.id), serialise(body))

    async def _exec(self, call: Call) -> None:
        name = await find_exec(self._handler_context.engine, call.match.name, call.caller)
        body = None
        if call.match.route.payload is Payload.STREAM:
            body = serialise(await self._handler_context.read(call, EXEC_START_TABLE, call.version))
        await self._handler_context.send(call, call.renamed(name), body)


class Listings:
    """Handle requests about all containers."""

    def __init__(self, handler_context: HandlerContext) -> None:
        self._handler_context = handler_context
        self._engine = handler_context.engine

    def for_confined(self) -> dict[RouteAction, Handler]:
        return {RouteAction.CONTAINER_LIST: self._list, RouteAction.CONTAINER_PRUNE: self._prune}

    async def _list(self, call: Call) -> None:
        """List containers. ``before`` and ``since`` may name only the caller's own.

        For other names the engine's answer would reveal if such a container exists.
        """
        filters = parse_filters(call.target.get("filters"))
        for key in ("before", "since"):
            if names := filters.get(key):
                filters[key] = [(await find_container(self._engine, name, call.caller)).id for name in names]
        own = write_filters(with_own(filters, call.caller))
        await self._handler_context.send(call, call.target.with_query(filters=own))

    async def _prune(self, call: Call) -> None:
        for each in await own_containers(self._engine, call.caller):
            if each.get("State") in STOPPED:
                await self._check_prunable(str(each["Id"]), call.caller)
        filters = own_only(call.target.get("filters"), call.caller)
        await self._handler_context.send(call, call.target.with_query(filters=filters).without("stream"))

    async def _check_prunable(self, container: str, caller: Caller) -> None:
        """Refuse a prune that would remove another user's container.

        The engine prunes by labels, and others' containers can have the caller's label from their image.
        """
        try:
            await find_container(self._engine, container, caller)
        except NotFound:
            raise StateConflict(
                "somebody else's container bears your mark", hint="`docker rm` yours by name"
            ) from None
