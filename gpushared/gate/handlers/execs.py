"""Handle requests about programs that join a container."""

from __future__ import annotations

from gpushared.gate.api.body import serialise, strings
from gpushared.gate.api.fields import EXEC_SPELLINGS, EXEC_START_TABLE, EXEC_TABLE
from gpushared.gate.api.routes import Payload, RouteAction
from gpushared.gate.containers.inject import merge_env, strip_env
from gpushared.gate.containers.ownership import find_container, find_exec
from gpushared.gate.handlers.call import Call
from gpushared.gate.handlers.context import Handler, HandlerContext
from gpushared.gate.policy.admission import judge_exec


class Execs:
    """Handle ``docker exec``: a program gets the settings of its container's lease."""

    def __init__(self, ground: HandlerContext) -> None:
        self._ground = ground

    def everybody(self) -> dict[RouteAction, Handler]:
        return {RouteAction.EXEC_CREATE: self._create}

    def confined(self) -> dict[RouteAction, Handler]:
        return {RouteAction.EXEC: self._exec}

    async def _create(self, call: Call) -> None:
        body = await self._ground.read(call, EXEC_TABLE, spellings=EXEC_SPELLINGS)
        container = await find_container(self._ground.engine, call.match.name, call.caller)
        if self._ground.judges(call.caller):
            body = judge_exec(body, self._ground.unnamed(call))
        if container.device_name:
            env = await self._ground.desk.lease_env(container.id)
            body["Env"] = merge_env(strip_env(strings(body, "Env")), env)
        await self._ground.send(call, call.renamed(container.id), serialise(body))

    async def _exec(self, call: Call) -> None:
        name = await find_exec(self._ground.engine, call.match.name, call.caller)
        body = None
        if call.match.route.payload is Payload.STREAM:
            body = serialise(await self._ground.read(call, EXEC_START_TABLE, call.version))
        await self._ground.send(call, call.renamed(name), body)
