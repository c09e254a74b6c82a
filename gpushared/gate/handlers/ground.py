"""What all handlers stand on: the engine, the node, the site's policy, and the way to pass a request on."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

from gpushared.domain.request import Caller
from gpushared.gate.accounts import Account
from gpushared.gate.audit import digest_of
from gpushared.gate.body import Body, Json, section
from gpushared.gate.call import Call
from gpushared.gate.containers import find_container
from gpushared.gate.desk import Desk
from gpushared.gate.engine import Answer, EngineSocket
from gpushared.gate.passwd import PasswdFiles
from gpushared.gate.pins.pins import Pins
from gpushared.gate.policy.judge import Context
from gpushared.gate.policy.site import Policy
from gpushared.gate.proxy import Farewell, forward, nothing
from gpushared.gate.routes import Payload
from gpushared.gate.target import Target
from gpushared.gate.together import Together
from gpushared.gate.turns import Turns
from gpushared.ports import LABEL_OWNER, UserWalls

ANSWER_SECONDS = 120.0
Handler = Callable[[Call], Awaitable[object]]


def showing(answer: Answer, value: Json) -> Answer:
    """The answer with another body."""
    return replace(answer, body=json.dumps(value).encode())


class Ground:
    """``policy`` may be replaced at any time; it holds for requests that come after."""

    def __init__(
        self,
        engine: EngineSocket,
        desk: Desk,
        policy: Policy,
        pins: Pins | None = None,
        name: str = "",
        walls: UserWalls | None = None,
        passwd: PasswdFiles | None = None,
    ) -> None:
        self.engine = engine
        self.desk = desk
        self.policy = policy
        self.name = name
        self.turns = Turns()
        self.volume_turns = Turns()
        self.pins = pins or Pins(engine, lambda: self.policy)
        self.passwd = passwd or PasswdFiles(engine, None)
        self.together = Together(walls, desk, lambda: self.policy)

    async def send(
        self,
        call: Call,
        target: Target | None = None,
        body: bytes | None = None,
        farewell: Farewell = nothing,
    ) -> int:
        """To the engine; a body that does not belong to the route was found empty and is not sent."""
        route = call.match.route
        if body is None and route.payload is Payload.NONE:
            body = b""
        if body is not None:
            call.record.digest = digest_of(body)
        encoded = (target or call.target).encode()
        return await forward(
            self.engine, call.exchange, encoded, body=body, hijack=route.hijack, farewell=farewell
        )

    async def ask(self, call: Call, target: Target, body: bytes | None = None) -> Answer:
        """The engine's whole answer, which is to be looked at before the client has it."""
        if body is not None:
            call.record.digest = digest_of(body)
        return await self.engine.call(
            call.exchange.method, target.encode(), body, timeout_seconds=ANSWER_SECONDS
        )

    def labelled(self, call: Call, body: Body) -> Body:
        """The body of something that is to belong to the caller."""
        return {**body, "Labels": {**section(body, "Labels"), LABEL_OWNER: str(call.caller.uid)}}

    async def own(self, call: Call) -> Target:
        """The target with the full id of the caller's container."""
        container = await find_container(self.engine, call.match.name, call.caller)
        return call.renamed(container.id)

    def unnamed(self, call: Call) -> Context:
        """A context for bodies whose rules need no groups and no home."""
        return Context(Account(call.caller, ()), self.policy, version=call.version)

    def judges(self, caller: Caller) -> bool:
        """Whether what the caller creates is judged."""
        return self.policy.everybody_confined or not caller.trusted
