"""The gate: every Docker request of every caller passes here, judged by its route."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass

from gpushared.domain.errors import NotFound, PermissionRefused, RequestError
from gpushared.domain.request import Caller
from gpushared.gate.accounts import Account, look_up
from gpushared.gate.body import (
    BODY_BYTES,
    Body,
    check_create,
    check_keys,
    parse_object,
    section,
    serialise,
    strings,
)
from gpushared.gate.containers import (
    HOST_NETWORK,
    LABEL_HOST_PATHS,
    Container,
    check_unused,
    find_container,
    find_exec,
    find_network,
    find_owned,
)
from gpushared.gate.create import Creator, Order
from gpushared.gate.desk import Desk
from gpushared.gate.ending import asked_end, asked_stop
from gpushared.gate.engine import Answer, EngineSocket
from gpushared.gate.farewell import as_output
from gpushared.gate.fields import RESOURCES
from gpushared.gate.filters import own_only
from gpushared.gate.http import Exchange
from gpushared.gate.inject import merge_env, strip_env
from gpushared.gate.mounts import check_again, resolve_binds, volumes_of
from gpushared.gate.policy import (
    EXEC,
    Context,
    judge_create,
    judge_endpoint,
    judge_exec,
    judge_network,
    judge_update,
    judge_volume,
    networks_of,
)
from gpushared.gate.proxy import Farewell, forward, nothing
from gpushared.gate.routes import Action, Match, Payload, match_route
from gpushared.gate.site import Policy
from gpushared.gate.target import Target, parse_target
from gpushared.gate.wish import ClaimWish, Wish, take_wish
from gpushared.ports import LABEL_OWNER

NOTHING = frozenset({b"", b"{}", b"null"})
NO_BODY_BYTES = 64 * 1024
OLDEST_VERSION = (1, 24)
"""Before, a start could carry a HostConfig."""
DEVICE_FIELDS = ("Devices", "DeviceRequests", "DeviceCgroupRules")
EXEC_START = frozenset({"Detach", "Tty", "ConsoleSize"})
FIRST_FAILURE = 400
KEPT_HEADERS = frozenset({b"api-version", b"docker-experimental", b"ostype", b"server"})


class Gate:
    """Serves exchanges. Errors of ours reach the client in Docker's form; the HTTP layer sees to that.

    ``policy`` may be replaced at any time; it holds for requests that come after.
    """

    def __init__(self, engine_socket: str, desk: Desk, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self._engine = EngineSocket(engine_socket.removeprefix("unix://"))
        self._desk = desk
        self._creator = Creator(self._engine, desk)
        self._everybody: dict[Action, _Handler] = {
            Action.CREATE: self._create,
            Action.START: self._start,
            Action.RESTART: self._restart,
            Action.END: self._end,
            Action.ATTACH: self._attach,
            Action.UPDATE: self._update,
            Action.EXEC_CREATE: self._exec_create,
        }
        self._confined: dict[Action, _Handler] = {
            **self._everybody,
            Action.PASS: self._pass_judged,
            Action.CONTAINER: self._container,
            Action.ARCHIVE: self._archive,
            Action.EXEC: self._exec,
            Action.CONTAINER_LIST: self._filtered,
            Action.VOLUME_LIST: self._filtered,
            Action.EVENTS: self._filtered,
            Action.PULL: self._pull,
            Action.NETWORK: self._network,
            Action.NETWORK_CREATE: self._network_create,
            Action.NETWORK_CONNECT: self._network_connect,
            Action.VOLUME: self._volume,
            Action.VOLUME_CREATE: self._volume_create,
        }

    async def handle(self, exchange: Exchange) -> None:
        target = parse_target(exchange.target)
        match = match_route(exchange.method, target.path)
        if match is None:
            raise PermissionRefused(
                f"{exchange.method} {target.path} is not served by gpushared",
                hint="trusted users can ask the engine itself",
            )
        if match.route.payload is Payload.NONE:
            await _expect_nothing(exchange)
        call = _Call(exchange, target, match)
        if exchange.caller.trusted:
            await self._everybody.get(match.route.action, self._pass)(call)
            return
        _check_confined(call)
        await self._confined[match.route.action](call)

    async def close(self) -> None:
        """Wait for the creates that hold a lease."""
        await self._creator.close()

    # --- passing on ---

    async def _pass(
        self,
        call: _Call,
        target: Target | None = None,
        body: bytes | None = None,
        farewell: Farewell = nothing,
    ) -> int:
        """To the engine; a body that does not belong to the route was found empty and is not sent."""
        route = call.match.route
        if body is None and route.payload is Payload.NONE:
            body = b""
        encoded = (target or call.target).encode()
        return await forward(
            self._engine, call.exchange, encoded, body=body, hijack=route.hijack, farewell=farewell
        )

    async def _pass_judged(self, call: _Call) -> None:
        stream = call.match.route.payload is Payload.STREAM
        await self._pass(call, body=serialise(await _parse(call)) if stream else None)

    async def _pull(self, call: _Call) -> None:
        """Without a body: as a form it could say what the query does not."""
        await _expect_nothing(call.exchange)
        if not call.target.get("fromImage"):
            raise RequestError("no image is named", hint="images are imported by trusted users")
        await self._pass(call, body=b"")

    async def _filtered(self, call: _Call) -> None:
        filters = own_only(call.target.get("filters"), call.caller)
        await self._pass(call, call.target.with_query(filters=filters))

    # --- containers ---

    async def _create(self, call: _Call) -> None:
        try:
            answer = await self._created(call)
        except NotFound as error:
            # A 404 here means to clients that the image is missing: they would pull it.
            raise RequestError(error.message, hint=error.hint) from error
        await _answer(call, answer)

    async def _created(self, call: _Call) -> Answer:
        body = await _parse(call)
        check_create(body)
        wish = take_wish(body)
        if not call.caller.trusted:
            try:
                body = await self._confine(body, call.caller, wish)
            except (PermissionRefused, RequestError, NotFound):
                await self._creator.forgo(wish, call.caller)
                raise
        return await self._creator.create(Order(call.target, body, call.caller), wish)

    async def _confine(self, body: Body, caller: Caller, wish: Wish | None) -> Body:
        account = await look_up(caller)
        in_gang = isinstance(wish, ClaimWish) and self._desk.in_gang(wish.lease, caller)
        judged = judge_create(body, Context(account, self.policy, in_gang))
        mounts = judged["HostConfig"]["Mounts"]
        for network in networks_of(judged):
            await find_network(self._engine, network, caller)
        for volume in volumes_of(mounts):
            hint = f"mount a directory of your home, or docker volume create {volume}"
            await find_owned(self._engine, "volumes", volume, caller, hint=hint)
        if paths := await resolve_binds(mounts, account, self.policy):
            said = json.dumps([asdict(path) for path in paths])
            judged["Labels"] = {**section(judged, "Labels"), LABEL_HOST_PATHS: said}
        return judged

    async def _container(self, call: _Call) -> None:
        await self._pass(call, await self._own(call))

    async def _archive(self, call: _Call) -> None:
        container = await find_container(self._engine, call.match.name, call.caller)
        if container.host_paths:
            raise PermissionRefused(
                "files cannot be copied in or out while the container has mounted directories",
                hint="copy in the mounted directory itself",
            )
        await self._pass(call, _renamed(call, container.id))

    async def _start(self, call: _Call) -> None:
        container = await self._startable(call)
        if not container.device_name:
            await self._pass(call, _renamed(call, container.id))
            return
        await self._desk.before_start(container.id, call.caller)
        status = FIRST_FAILURE
        try:
            status = await self._pass(call, _renamed(call, container.id))
        finally:
            if status >= FIRST_FAILURE:
                await asyncio.shield(self._desk.start_failed(container.id))

    async def _startable(self, call: _Call) -> Container:
        """The caller's container, whose names and paths still mean what they did when it was created."""
        container = await find_container(self._engine, call.match.name, call.caller)
        if not call.caller.trusted:
            for network in container.networks:
                await self._check_network(network, container, call.caller)
            if paths := container.host_paths:
                await check_again(paths, await look_up(call.caller), self.policy)
        return container

    async def _check_network(self, network: str, container: Container, caller: Caller) -> None:
        if network != HOST_NETWORK:
            await find_network(self._engine, network, caller)
        elif not (self.policy.gangs_on_host_network and self._desk.has_gang(container.id)):
            raise PermissionRefused(
                "this container has the machine's own network, which is for jobs on several nodes only",
                hint="submit it again",
            )

    async def _restart(self, call: _Call) -> None:
        container = await self._startable(call)
        if not container.device_name:
            await self._pass(call, _renamed(call, container.id))
            return
        await self._desk.before_restart(container.id, call.caller)
        try:
            async with self._desk.ending(container.id, asked_stop(call.target)):
                await self._pass(call, _renamed(call, container.id))
        finally:
            await asyncio.shield(self._desk.after_restart(container.id))

    async def _end(self, call: _Call) -> None:
        container = await find_container(self._engine, call.match.name, call.caller)
        asked = asked_end(call.exchange.method, call.target)
        async with AsyncExitStack() as stack:
            if container.device_name and asked is not None:
                await stack.enter_async_context(self._desk.ending(container.id, asked))
            await self._pass(call, _renamed(call, container.id))

    async def _attach(self, call: _Call) -> None:
        """Who watches a container learns at the end why it was ended, where that was not its own doing."""
        if call.caller.trusted and self._desk.last_words(call.match.name) is None:
            await self._pass(call)
            return
        container = await find_container(self._engine, call.match.name, call.caller)
        words = self._desk.last_words(container.id)
        if words is None or not (container.terminal or call.target.flag("stderr")):
            await self._pass(call, _renamed(call, container.id))
            return
        target = _renamed(call, container.id)
        await self._pass(call, target, farewell=lambda: as_output(words(), terminal=container.terminal))

    async def _update(self, call: _Call) -> None:
        body = await _parse(call)
        check_keys(body, RESOURCES, "")
        for name in DEVICE_FIELDS:
            if body.get(name):
                raise PermissionRefused(
                    f"{name} cannot be changed", hint="stop the container and run a new one"
                )
        if not call.caller.trusted:
            body = judge_update(body, self._unnamed(call))
        await self._pass(call, await self._own(call), serialise(body))

    async def _exec_create(self, call: _Call) -> None:
        body = await _parse(call)
        check_keys(body, frozenset(EXEC), "")
        container = await find_container(self._engine, call.match.name, call.caller)
        if not call.caller.trusted:
            body = judge_exec(body, self._unnamed(call))
        if container.device_name:
            env = await self._desk.lease_env(container.id)
            body["Env"] = merge_env(strip_env(strings(body, "Env")), env)
        await self._pass(call, _renamed(call, container.id), serialise(body))

    async def _exec(self, call: _Call) -> None:
        name = await find_exec(self._engine, call.match.name, call.caller)
        body = None
        if call.match.route.payload is Payload.STREAM:
            parsed = await _parse(call)
            unknown = sorted(parsed.keys() - EXEC_START)
            if unknown:
                raise RequestError(f"{unknown[0]} is not a field of exec start")
            body = serialise(parsed)
        await self._pass(call, _renamed(call, name), body)

    # --- networks and volumes ---

    async def _network(self, call: _Call) -> None:
        network = await find_owned(self._engine, "networks", call.match.name, call.caller)
        await check_unused(self._engine, network, call.caller)
        await self._pass(call, _renamed(call, network["Id"]))

    async def _network_create(self, call: _Call) -> None:
        await self._make(call, judge_network(await _parse(call), self._unnamed(call)))

    async def _network_connect(self, call: _Call) -> None:
        body = judge_endpoint(await _parse(call), self._unnamed(call))
        network = await find_network(self._engine, call.match.name, call.caller)
        container = await find_container(self._engine, str(body.get("Container") or ""), call.caller)
        body["Container"] = container.id
        await self._pass(call, _renamed(call, network["Id"]), serialise(body))

    async def _volume(self, call: _Call) -> None:
        volume = await find_owned(self._engine, "volumes", call.match.name, call.caller)
        await self._pass(call, _renamed(call, volume["Name"]))

    async def _volume_create(self, call: _Call) -> None:
        """The engine answers a create of an existing volume with that volume, whoever made it."""
        await self._make(call, judge_volume(await _parse(call), self._unnamed(call)))

    async def _make(self, call: _Call, body: Body) -> None:
        body["Labels"] = {**section(body, "Labels"), LABEL_OWNER: str(call.caller.uid)}
        await self._pass(call, body=serialise(body))

    async def _own(self, call: _Call) -> Target:
        """The target with the full id of the caller's container."""
        container = await find_container(self._engine, call.match.name, call.caller)
        return _renamed(call, container.id)

    def _unnamed(self, call: _Call) -> Context:
        """A context for bodies whose rules need no groups and no home."""
        return Context(Account(call.caller, ()), self.policy)


@dataclass(frozen=True, slots=True)
class _Call:
    exchange: Exchange
    target: Target
    match: Match

    @property
    def caller(self) -> Caller:
        return self.exchange.caller


_Handler = Callable[[_Call], Awaitable[object]]


def _renamed(call: _Call, name: str) -> Target:
    """The judged target with the full id in place of what the client wrote."""
    kind, _, rest = call.target.path.lstrip("/").partition("/")
    return call.target.with_path(f"/{kind}/{name}{rest.removeprefix(call.match.name)}")


def _check_confined(call: _Call) -> None:
    route, target = call.match.route, call.target
    if route.action is Action.TRUSTED:
        raise PermissionRefused(f"{call.exchange.method} {target.path} is for trusted users only")
    names = [name for name, _ in target.query]
    if len(set(names)) < len(names) and "names" not in names:
        raise RequestError("a parameter is given twice")
    unknown = sorted(set(names) - route.query)
    if unknown:
        raise PermissionRefused(f"the parameter {unknown[0]} is not for you")
    if target.version and tuple(map(int, target.version[1:].split("."))) < OLDEST_VERSION:
        raise RequestError(f"API version {target.version[1:]} is too old", hint="upgrade the client")


async def _expect_nothing(exchange: Exchange) -> None:
    """Where no body belongs, an engine of some version may still act on one."""
    if (await exchange.read(NO_BODY_BYTES)).strip() not in NOTHING:
        raise RequestError("this request takes no body")


async def _parse(call: _Call) -> Body:
    return parse_object(await call.exchange.read(BODY_BYTES))


async def _answer(call: _Call, answer: Answer) -> None:
    kept = [(raw, value) for raw, value in answer.headers if raw.lower() in KEPT_HEADERS]
    await call.exchange.respond(answer.status, answer.body, headers=kept)
