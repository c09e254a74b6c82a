"""Networks and volumes of a confined caller's own."""

from __future__ import annotations

from gpushared.gate.body import serialise
from gpushared.gate.call import Call
from gpushared.gate.containers import check_unused, find_container, find_network, find_owned
from gpushared.gate.handlers.ground import Ground, Handler
from gpushared.gate.policy.judge import judge_endpoint, judge_network, judge_volume
from gpushared.gate.routes import Action


class Networks:
    """Handlers of networks."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def confined(self) -> dict[Action, Handler]:
        return {
            Action.NETWORK: self._network,
            Action.NETWORK_CREATE: self._create,
            Action.NETWORK_CONNECT: self._connect,
        }

    async def _network(self, call: Call) -> None:
        network = await find_owned(self._ground.engine, "networks", call.match.name, call.caller)
        await check_unused(self._ground.engine, network, call.caller)
        await self._ground.send(call, call.renamed(network["Id"]))

    async def _create(self, call: Call) -> None:
        await self._ground.send_labelled(call, judge_network(await call.parse(), self._ground.unnamed(call)))

    async def _connect(self, call: Call) -> None:
        body = judge_endpoint(await call.parse(), self._ground.unnamed(call))
        network = await find_network(self._ground.engine, call.match.name, call.caller)
        container = await find_container(self._ground.engine, str(body.get("Container") or ""), call.caller)
        body["Container"] = container.id
        await self._ground.send(call, call.renamed(network["Id"]), serialise(body))


class Volumes:
    """Handlers of volumes."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def confined(self) -> dict[Action, Handler]:
        return {Action.VOLUME: self._volume, Action.VOLUME_CREATE: self._create}

    async def _volume(self, call: Call) -> None:
        volume = await find_owned(self._ground.engine, "volumes", call.match.name, call.caller)
        await self._ground.send(call, call.renamed(volume["Name"]))

    async def _create(self, call: Call) -> None:
        """The engine answers a create of an existing volume with that volume, whoever made it."""
        await self._ground.send_labelled(call, judge_volume(await call.parse(), self._ground.unnamed(call)))
