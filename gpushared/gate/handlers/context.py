"""Give all handlers the engine, the node, the site's policy, and the way to pass a request on."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from gpushared.domain.model.errors import EngineUnavailable
from gpushared.domain.model.request import Caller
from gpushared.gate.api.body import Body, Json, check_create, section
from gpushared.gate.api.field_kinds import Table, Version, fit, readable, respelled, version_of
from gpushared.gate.api.fields import NEWEST
from gpushared.gate.api.routes import Payload, Route, Target, drop_unknown
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.containers.lease_port import LeasePort
from gpushared.gate.containers.ownership import ContainerLocks, find_container
from gpushared.gate.containers.passwd import PasswdFiles
from gpushared.gate.containers.user_limits import UserContainers
from gpushared.gate.handlers.call import Call
from gpushared.gate.handlers.proxy import Farewell, forward, nothing
from gpushared.gate.mounts.held_mounts import HeldMounts
from gpushared.gate.policy.field_rules import Context
from gpushared.net.http_client import EngineAnswer, EngineSocket
from gpushared.net.identity import Account
from gpushared.ports import LABEL_OWNER, UserWalls
from gpushared.storage.audit.line import digest_of

log = logging.getLogger(__name__)

ANSWER_SECONDS = 120.0
MOST_NAMED = 20
"""The log names so many of the dropped fields and parameters."""
Handler = Callable[[Call], Awaitable[object]]


def _note(path: str, dropped: list[str]) -> None:
    """Log the names of dropped fields, but no values, which may be secrets, and not thousands of names."""
    if dropped:
        more = f" and {len(dropped) - MOST_NAMED} more" if len(dropped) > MOST_NAMED else ""
        log.debug("the engine does not read %s%s of %s", ", ".join(dropped[:MOST_NAMED]), more, path)


def showing(answer: EngineAnswer, value: Json) -> EngineAnswer:
    """Return the answer with another body."""
    return replace(answer, body=json.dumps(value).encode())


class HandlerContext:
    """``policy`` may be replaced at any time; it holds for requests that come after."""

    def __init__(
        self,
        engine: EngineSocket,
        desk: LeasePort,
        policy: SitePolicy,
        pins: HeldMounts | None = None,
        name: str = "",
        walls: UserWalls | None = None,
        passwd: PasswdFiles | None = None,
    ) -> None:
        self.engine = engine
        self.desk = desk
        self.policy = policy
        self.name = name
        self.turns = ContainerLocks()
        self.volume_turns = ContainerLocks()
        self.pins = pins or HeldMounts(engine, lambda: self.policy)
        self.passwd = passwd or PasswdFiles(engine, None)
        self.together = UserContainers(walls, desk, lambda: self.policy)

    async def send(
        self,
        call: Call,
        target: Target | None = None,
        body: bytes | None = None,
        farewell: Farewell = nothing,
    ) -> int:
        """Pass the request on to the engine; a route without a body sends none."""
        route = call.match.route
        if body is None and route.payload is not Payload.STREAM:
            body = b""
        if body is not None:
            call.record.digest = digest_of(body)
        encoded = (target or call.target).encode()
        return await forward(
            self.engine, call.exchange, encoded, body=body, hijack=route.hijack, farewell=farewell
        )

    async def ask(self, call: Call, target: Target, body: bytes | None = None) -> EngineAnswer:
        """Return the engine's whole answer, so that the gate can look at it before the client gets it."""
        if body is not None:
            call.record.digest = digest_of(body)
        return await self.engine.call(
            call.exchange.method, target.encode(), body, timeout_seconds=ANSWER_SECONDS
        )

    @property
    def tables_are_complete(self) -> bool:
        """Return True if the engine is no newer than the gate's tables, and so reads no other field."""
        try:
            return version_of(self.desk.engine_facts().api_version) <= NEWEST
        except (EngineUnavailable, ValueError):  # the engine has not told its version yet
            return False

    def known(self, target: Target, route: Route) -> Target:
        """Return the target without parameters that the engine ignores; for a newer engine, all of it."""
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
        """Return the body without fields that the engine does not read. Raises as ``fit`` does."""
        dropped: list[str] = []
        body = respelled(await call.parse(), spellings)
        fitted = fit(body, table, version, dropped=dropped if self.tables_are_complete else None)
        _note(call.target.path, dropped)
        return fitted

    async def read_create(self, call: Call) -> Body:
        """Return a create's body without fields that the engine does not read. Raises as ``check_create``."""
        dropped: list[str] = []
        body = check_create(await call.parse(), dropped if self.tables_are_complete else None)
        _note(call.target.path, dropped)
        return body

    def labelled(self, call: Call, body: Body) -> Body:
        """Return the body with the label that makes the created thing the caller's."""
        return {**body, "Labels": {**section(body, "Labels"), LABEL_OWNER: str(call.caller.uid)}}

    async def own(self, call: Call) -> Target:
        """Return the target with the full id of the caller's container."""
        container = await find_container(self.engine, call.match.name, call.caller)
        return call.renamed(container.id)

    def unnamed(self, call: Call) -> Context:
        """Return a context for bodies whose rules need no groups and no home."""
        return Context(Account(call.caller, ()), self.policy, version=call.version)

    def judges(self, caller: Caller) -> bool:
        """Return True if the caller's creates are judged."""
        return self.policy.everybody_confined or not caller.trusted
