"""What all handlers stand on: the engine, the node, the site's policy, and the way to pass a request on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gpushared.domain.request import Caller
from gpushared.gate.accounts import Account
from gpushared.gate.audit import digest_of
from gpushared.gate.body import Body, section, serialise
from gpushared.gate.call import Call
from gpushared.gate.containers import find_container
from gpushared.gate.desk import Desk
from gpushared.gate.engine import EngineSocket
from gpushared.gate.pins.pins import Pins
from gpushared.gate.policy.judge import Context
from gpushared.gate.policy.site import Policy
from gpushared.gate.proxy import Farewell, forward, nothing
from gpushared.gate.routes import Payload
from gpushared.gate.target import Target
from gpushared.ports import LABEL_OWNER

Handler = Callable[[Call], Awaitable[object]]


class Ground:
    """``policy`` may be replaced at any time; it holds for requests that come after."""

    def __init__(self, engine: EngineSocket, desk: Desk, policy: Policy, pins: Pins | None = None) -> None:
        self.engine = engine
        self.desk = desk
        self.policy = policy
        self.pins = pins or Pins(engine, lambda: self.policy)

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

    async def send_labelled(self, call: Call, body: Body) -> None:
        """To the engine, as something that belongs to the caller."""
        body["Labels"] = {**section(body, "Labels"), LABEL_OWNER: str(call.caller.uid)}
        await self.send(call, body=serialise(body))

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
