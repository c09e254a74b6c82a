"""Handle requests about things of all users: the engine's own facts, its events, its plugins."""

from __future__ import annotations

from gpushared.domain.model.errors import NotFound
from gpushared.gate.api.body import serialise
from gpushared.gate.api.fields import AUTH_TABLE
from gpushared.gate.api.parameters import own_only
from gpushared.gate.api.routes import Payload, RouteAction
from gpushared.gate.containers.filtered_views import shown_info, with_nvidia_runtime
from gpushared.gate.containers.ownership import OK, own_containers
from gpushared.gate.handlers.call import Call
from gpushared.gate.handlers.context import Handler, HandlerContext, showing


class Shared:
    """Show a confined caller its part of these things."""

    def __init__(self, ground: HandlerContext) -> None:
        self._ground = ground

    def everybody(self) -> dict[RouteAction, Handler]:
        return {RouteAction.INFO: self._info}

    def confined(self) -> dict[RouteAction, Handler]:
        return {
            RouteAction.PASS: self._pass,
            RouteAction.EVENTS: self._events,
            RouteAction.PLUGIN: self._plugin,
        }

    async def _pass(self, call: Call) -> None:
        stream = call.match.route.payload is Payload.STREAM
        body = serialise(await self._ground.read(call, AUTH_TABLE)) if stream else None
        await self._ground.send(call, body=body)

    async def _info(self, call: Call) -> None:
        answer = await self._ground.ask(call, call.target)
        if answer.status == OK:
            leases = await self._ground.desk.gpu_count() > 0
            told = with_nvidia_runtime(answer.json(), leases=leases)
            if not call.caller.trusted:
                told = shown_info(told, await own_containers(self._ground.engine, call.caller))
            answer = showing(answer, told)
        await call.answer(answer)

    async def _events(self, call: Call) -> None:
        """Stream the events of the caller's containers: only containers' events have the owner's label."""
        filters = own_only(call.target.get("filters"), call.caller)
        await self._ground.send(call, call.target.with_query(filters=filters))

    async def _plugin(self, call: Call) -> None:
        raise NotFound(f"No such plugin: {call.match.name}")
