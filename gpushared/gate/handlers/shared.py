"""What belongs to all users of the machine: images, listings, the engine's own facts."""

from __future__ import annotations

from gpushared.domain.errors import RequestError
from gpushared.gate.body import serialise
from gpushared.gate.call import Call, expect_nothing
from gpushared.gate.filters import own_only
from gpushared.gate.handlers.ground import Ground, Handler
from gpushared.gate.routes import Action, Payload


class Shared:
    """Handlers of what a confined caller sees of it."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def confined(self) -> dict[Action, Handler]:
        return {
            Action.PASS: self._pass,
            Action.PULL: self._pull,
            Action.CONTAINER_LIST: self._filtered,
            Action.VOLUME_LIST: self._filtered,
            Action.EVENTS: self._filtered,
        }

    async def _pass(self, call: Call) -> None:
        stream = call.match.route.payload is Payload.STREAM
        await self._ground.send(call, body=serialise(await call.parse()) if stream else None)

    async def _pull(self, call: Call) -> None:
        """Without a body: as a form it could say what the query does not."""
        await expect_nothing(call.exchange)
        if not call.target.get("fromImage"):
            raise RequestError("no image is named", hint="images are imported by trusted users")
        await self._ground.send(call, body=b"")

    async def _filtered(self, call: Call) -> None:
        filters = own_only(call.target.get("filters"), call.caller)
        await self._ground.send(call, call.target.with_query(filters=filters))
