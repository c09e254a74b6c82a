"""Handle requests about a confined caller's own networks and volumes, and the engine's own networks."""

from __future__ import annotations

from urllib.parse import quote

from gpushared.domain.model.errors import NotFound, StateConflict
from gpushared.domain.model.request import Caller
from gpushared.gate.api.body import Body, objects, section, serialise, text
from gpushared.gate.api.fields import CONNECT_TABLE, NETWORK_TABLE, VOLUME_CREATE_TABLE
from gpushared.gate.api.routes import RouteAction, own_only
from gpushared.gate.containers.filtered_views import SHARED_NETWORKS, shown_network
from gpushared.gate.containers.ownership import (
    CREATED,
    OK,
    NotYours,
    check_name,
    check_unused,
    find_container,
    find_network,
    find_owned,
    inspect,
    name_in_listing,
    networks_of,
    own_containers,
    owns,
)
from gpushared.gate.handlers.call import Call
from gpushared.gate.handlers.context import Handler, HandlerContext, with_json
from gpushared.gate.policy.admission import judge_endpoint, judge_network, judge_volume

ACTIVE = frozenset({"running", "paused", "restarting"})


class Networks:
    """Handle requests about networks."""

    def __init__(self, handler_context: HandlerContext) -> None:
        self._handler_context = handler_context

    def for_judged(self) -> dict[RouteAction, Handler]:
        """Return the handlers for trusted callers as well if everybody is confined."""
        return {RouteAction.NETWORK_CREATE: self._create, RouteAction.NETWORK_CONNECT: self._connect}

    def for_confined(self) -> dict[RouteAction, Handler]:
        return {
            **self.for_judged(),
            RouteAction.NETWORK: self._network,
            RouteAction.NETWORK_LIST: self._list,
            RouteAction.NETWORK_INSPECT: self._inspect,
            RouteAction.NETWORK_PRUNE: self._prune,
        }

    async def _network(self, call: Call) -> None:
        network = await find_owned(self._handler_context.engine, "networks", call.match.name, call.caller)
        await check_unused(self._handler_context.engine, network, call.caller)
        await self._handler_context.send(call, call.renamed(network["Id"]))

    async def _list(self, call: Call) -> None:
        answer = await self._handler_context.ask(call, call.target)
        if answer.status == OK:
            own = await self._own_ids(call)
            shown = [shown_network(each, own) for each in answer.json() if _is_shown(each, call.caller)]
            answer = with_json(answer, shown)
        await call.answer(answer)

    async def _inspect(self, call: Call) -> None:
        network = await inspect(self._handler_context.engine, "networks", call.match.name)
        if network is None or not _is_shown(network, call.caller):
            raise (NotFound if network is None else NotYours)(f"No such network: {call.match.name}")
        answer = await self._handler_context.ask(call, call.renamed(network["Id"]).without("verbose"))
        if answer.status == OK:
            shown = shown_network(answer.json(), await self._own_ids(call))
            answer = with_json(answer, shown)
        await call.answer(answer)

    async def _own_ids(self, call: Call) -> set[str]:
        return {str(each["Id"]) for each in await own_containers(self._handler_context.engine, call.caller)}

    async def _prune(self, call: Call) -> None:
        """Prune networks, unless a stopped container of the caller's needs one.

        The engine prunes every network without a running container; a stopped container will look for its
        network.
        """
        own = await own_containers(self._handler_context.engine, call.caller)
        busy = {name for each in own if each.get("State") in ACTIVE for name in networks_of(each)}
        for each in own:
            if waiting := sorted(networks_of(each) - busy):
                raise StateConflict(
                    f"the network {waiting[0]} is the container {name_in_listing(each)}'s",
                    hint="docker container prune first",
                )
        filters = own_only(call.target.get("filters"), call.caller)
        await self._handler_context.send(call, call.target.with_query(filters=filters).without("stream"))

    async def _create(self, call: Call) -> None:
        body = judge_network(
            await self._handler_context.read(call, NETWORK_TABLE), self._handler_context.plain_context(call)
        )
        await check_name(text(body, "Name"), self._handler_context.engine, call.caller)
        # If engines allowed two networks with one name, neither could be used by that name.
        body["CheckDuplicate"] = True
        await self._handler_context.send(call, body=serialise(self._handler_context.labelled(call, body)))

    async def _connect(self, call: Call) -> None:
        body = judge_endpoint(
            await self._handler_context.read(call, CONNECT_TABLE), self._handler_context.plain_context(call)
        )
        network = await find_network(self._handler_context.engine, call.match.name, call.caller)
        container = await find_container(
            self._handler_context.engine, str(body.get("Container") or ""), call.caller
        )
        body["Container"] = container.id
        await self._handler_context.send(call, call.renamed(network["Id"]), serialise(body))


def _is_shown(network: Body, caller: Caller) -> bool:
    return owns(caller, section(network, "Labels")) or network.get("Name") in SHARED_NETWORKS


class Volumes:
    """Handle requests about volumes."""

    def __init__(self, handler_context: HandlerContext) -> None:
        self._handler_context = handler_context

    def for_judged(self) -> dict[RouteAction, Handler]:
        """Return the handlers for trusted callers as well if everybody is confined."""
        return {RouteAction.VOLUME_CREATE: self._create}

    def for_confined(self) -> dict[RouteAction, Handler]:
        return {
            **self.for_judged(),
            RouteAction.VOLUME: self._volume,
            RouteAction.VOLUME_LIST: self._filtered,
            RouteAction.VOLUME_PRUNE: self._prune,
        }

    async def _volume(self, call: Call) -> None:
        # A request for another user's volume need not wait; an own volume may become another's during a wait.
        await find_owned(self._handler_context.engine, "volumes", call.match.name, call.caller)
        async with self._handler_context.volume_locks.of(call.match.name):
            volume = await find_owned(self._handler_context.engine, "volumes", call.match.name, call.caller)
            await self._handler_context.send(call, call.renamed(volume["Name"]))

    async def _prune(self, call: Call) -> None:
        filters = quote(own_only("", call.caller))
        answer = await self._handler_context.engine.call("GET", f"/volumes?filters={filters}".encode())
        own = objects(answer.json(), "Volumes") if answer.status == OK else []
        async with self._handler_context.volume_locks.of_all(str(each["Name"]) for each in own):
            await self._filtered(call)

    async def _filtered(self, call: Call) -> None:
        filters = own_only(call.target.get("filters"), call.caller)
        await self._handler_context.send(call, call.target.with_query(filters=filters).without("stream"))

    async def _create(self, call: Call) -> None:
        """Create a volume. The engine answers with an existing volume of the name, whoever owns it.

        The answer is refused if the volume is not the caller's.
        """
        body = await self._handler_context.read(call, VOLUME_CREATE_TABLE)
        body = self._handler_context.labelled(
            call, judge_volume(body, self._handler_context.plain_context(call))
        )
        # During another user's create with the name, the engine would fill the volume from that user's image.
        async with self._handler_context.volume_locks.of_all(filter(None, [text(body, "Name")])):
            answer = await self._handler_context.ask(call, call.target, serialise(body))
        if answer.status == CREATED and not owns(call.caller, section(answer.json(), "Labels")):
            raise StateConflict(
                f"the name {body.get('Name')} is taken by a volume that is not yours", hint="choose another"
            )
        await call.answer(answer)
