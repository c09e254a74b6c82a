"""What all handlers stand on: the engine, the node, the site's policy, and the way to pass a request on."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from gpushared.domain.errors import EngineUnavailable
from gpushared.domain.request import Caller
from gpushared.gate.accounts import Account
from gpushared.gate.audit import digest_of
from gpushared.gate.body import Body, Json, check_create, section
from gpushared.gate.call import Call
from gpushared.gate.containers import find_container
from gpushared.gate.desk import Desk
from gpushared.gate.engine import Answer, EngineSocket
from gpushared.gate.parameters import drop_unknown
from gpushared.gate.passwd import PasswdFiles
from gpushared.gate.pins.pins import Pins
from gpushared.gate.policy.fields import NEWEST
from gpushared.gate.policy.judge import Context
from gpushared.gate.policy.schema import Table, Version, fit, readable, respelled, version_of
from gpushared.gate.policy.site import Policy
from gpushared.gate.proxy import Farewell, forward, nothing
from gpushared.gate.routes import Payload, Route
from gpushared.gate.target import Target
from gpushared.gate.together import Together
from gpushared.gate.turns import Turns
from gpushared.ports import LABEL_OWNER, UserWalls

log = logging.getLogger(__name__)

ANSWER_SECONDS = 120.0
MOST_NAMED = 20
"""So many of the names that were dropped stand in the log."""
Handler = Callable[[Call], Awaitable[object]]


def _note(path: str, dropped: list[str]) -> None:
    """Values may be secrets; a body has room for thousands of names."""
    if dropped:
        more = f" and {len(dropped) - MOST_NAMED} more" if len(dropped) > MOST_NAMED else ""
        log.debug("the engine does not read %s%s of %s", ", ".join(dropped[:MOST_NAMED]), more, path)


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
        """To the engine; a body that does not belong to the route was dropped, and none is sent."""
        route = call.match.route
        if body is None and route.payload is not Payload.STREAM:
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

    @property
    def tables_are_complete(self) -> bool:
        """Whether the engine reads no field and no parameter that is on no table of ours: it is not newer."""
        try:
            return version_of(self.desk.engine_facts().api_version) <= NEWEST
        except (EngineUnavailable, ValueError):  # it has not said yet what it is
            return False

    def known(self, target: Target, route: Route) -> Target:
        """The target without parameters that the engine does not read; with a newer engine, all of it."""
        if not self.tables_are_complete:
            return target
        known, dropped = drop_unknown(route, target)
        _note(target.path, [readable(name) for name in dropped])
        return known

    async def read(
        self,
        call: Call,
        table: Table,
        version: Version | None = None,
        *,
        spellings: Mapping[str, str] = MappingProxyType({}),
    ) -> Body:
        """The body without fields that the engine does not read; ``fit`` says what it raises."""
        dropped: list[str] = []
        body = respelled(await call.parse(), spellings)
        fitted = fit(body, table, version, dropped=dropped if self.tables_are_complete else None)
        _note(call.target.path, dropped)
        return fitted

    async def read_create(self, call: Call) -> Body:
        """The same for a create; ``check_create`` says what it raises."""
        dropped: list[str] = []
        body = check_create(await call.parse(), dropped if self.tables_are_complete else None)
        _note(call.target.path, dropped)
        return body

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
