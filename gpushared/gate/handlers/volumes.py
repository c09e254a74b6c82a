"""Handle requests about a confined caller's own volumes."""

from __future__ import annotations

from urllib.parse import quote

from gpushared.domain.model.errors import StateConflict
from gpushared.gate.api.body import objects, section, serialise, text
from gpushared.gate.api.fields import VOLUME_CREATE_TABLE
from gpushared.gate.api.parameters import own_only
from gpushared.gate.api.routes import RouteAction
from gpushared.gate.containers.ownership import CREATED, OK, find_owned, owns
from gpushared.gate.handlers.call import Call
from gpushared.gate.handlers.context import Handler, HandlerContext
from gpushared.gate.policy.admission import judge_volume


class Volumes:
    """Handle requests about volumes."""

    def __init__(self, ground: HandlerContext) -> None:
        self._ground = ground

    def judged(self) -> dict[RouteAction, Handler]:
        """Return the handlers for trusted callers as well if everybody is confined."""
        return {RouteAction.VOLUME_CREATE: self._create}

    def confined(self) -> dict[RouteAction, Handler]:
        return {
            **self.judged(),
            RouteAction.VOLUME: self._volume,
            RouteAction.VOLUME_LIST: self._filtered,
            RouteAction.VOLUME_PRUNE: self._prune,
        }

    async def _volume(self, call: Call) -> None:
        # Nobody waits for another's volume; during a wait for an own one it may become another's.
        await find_owned(self._ground.engine, "volumes", call.match.name, call.caller)
        async with self._ground.volume_turns.of(call.match.name):
            volume = await find_owned(self._ground.engine, "volumes", call.match.name, call.caller)
            await self._ground.send(call, call.renamed(volume["Name"]))

    async def _prune(self, call: Call) -> None:
        filters = quote(own_only("", call.caller))
        answer = await self._ground.engine.call("GET", f"/volumes?filters={filters}".encode())
        own = objects(answer.json(), "Volumes") if answer.status == OK else []
        async with self._ground.volume_turns.of_all(str(each["Name"]) for each in own):
            await self._filtered(call)

    async def _filtered(self, call: Call) -> None:
        filters = own_only(call.target.get("filters"), call.caller)
        await self._ground.send(call, call.target.with_query(filters=filters).without("stream"))

    async def _create(self, call: Call) -> None:
        """Create a volume. The engine answers with an existing volume of the name, whoever owns it.

        The answer is refused if the volume is not the caller's.
        """
        asked = await self._ground.read(call, VOLUME_CREATE_TABLE)
        body = self._ground.labelled(call, judge_volume(asked, self._ground.unnamed(call)))
        # While another creates a container with the name, the engine would fill it from that one's image.
        async with self._ground.volume_turns.of_all(filter(None, [text(body, "Name")])):
            answer = await self._ground.ask(call, call.target, serialise(body))
        if answer.status == CREATED and not owns(call.caller, section(answer.json(), "Labels")):
            raise StateConflict(
                f"the name {body.get('Name')} is taken by a volume that is not yours", hint="choose another"
            )
        await call.answer(answer)
