"""Programs that join a container."""

from __future__ import annotations

from gpushared.domain.errors import RequestError
from gpushared.gate.body import check_keys, serialise, strings
from gpushared.gate.call import Call
from gpushared.gate.containers import find_container, find_exec
from gpushared.gate.handlers.ground import Ground, Handler
from gpushared.gate.inject import merge_env, strip_env
from gpushared.gate.policy.judge import EXEC, judge_exec
from gpushared.gate.routes import Action, Payload

EXEC_START = frozenset({"Detach", "Tty", "ConsoleSize"})


class Execs:
    """Handlers of ``docker exec``: a program gets what its container's lease has."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def everybody(self) -> dict[Action, Handler]:
        return {Action.EXEC_CREATE: self._create}

    def confined(self) -> dict[Action, Handler]:
        return {Action.EXEC: self._exec}

    async def _create(self, call: Call) -> None:
        body = await call.parse()
        check_keys(body, frozenset(EXEC), "")
        container = await find_container(self._ground.engine, call.match.name, call.caller)
        if not call.caller.trusted:
            body = judge_exec(body, self._ground.unnamed(call))
        if container.device_name:
            env = await self._ground.desk.lease_env(container.id)
            body["Env"] = merge_env(strip_env(strings(body, "Env")), env)
        await self._ground.send(call, call.renamed(container.id), serialise(body))

    async def _exec(self, call: Call) -> None:
        name = await find_exec(self._ground.engine, call.match.name, call.caller)
        body = None
        if call.match.route.payload is Payload.STREAM:
            parsed = await call.parse()
            unknown = sorted(parsed.keys() - EXEC_START)
            if unknown:
                raise RequestError(f"{unknown[0]} is not a field of exec start")
            body = serialise(parsed)
        await self._ground.send(call, call.renamed(name), body)
