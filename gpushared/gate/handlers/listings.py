"""List a confined caller's own containers."""

from __future__ import annotations

from gpushared.domain.model.errors import NotFound, StateConflict
from gpushared.domain.model.request import Caller
from gpushared.gate.api.parameters import own_only, parse_filters, with_own, write_filters
from gpushared.gate.api.routes import RouteAction
from gpushared.gate.containers.ownership import STILL, find_container, own_containers
from gpushared.gate.handlers.call import Call
from gpushared.gate.handlers.context import Handler, HandlerContext


class Listings:
    """Handle requests about all containers."""

    def __init__(self, ground: HandlerContext) -> None:
        self._ground = ground
        self._engine = ground.engine

    def confined(self) -> dict[RouteAction, Handler]:
        return {RouteAction.CONTAINER_LIST: self._list, RouteAction.CONTAINER_PRUNE: self._prune}

    async def _list(self, call: Call) -> None:
        """List containers. ``before`` and ``since`` may name only the caller's own.

        For other names the engine would tell if such a container exists.
        """
        filters = parse_filters(call.target.get("filters"))
        for name in ("before", "since"):
            found = [await find_container(self._engine, each, call.caller) for each in filters.get(name, ())]
            filters |= {name: [each.id for each in found]} if found else {}
        own = write_filters(with_own(filters, call.caller))
        await self._ground.send(call, call.target.with_query(filters=own))

    async def _prune(self, call: Call) -> None:
        for each in await own_containers(self._engine, call.caller):
            if each.get("State") in STILL:
                await self._check_prunable(str(each["Id"]), call.caller)
        filters = own_only(call.target.get("filters"), call.caller)
        await self._ground.send(call, call.target.with_query(filters=filters).without("stream"))

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
