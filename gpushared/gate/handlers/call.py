"""Hold one request at the gate with its caller, and give the ways to read and answer it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.domain.model.request import Caller
from gpushared.gate.api.body import BODY_BYTES, Body, parse_object
from gpushared.gate.api.field_kinds import Version, version_of
from gpushared.gate.api.parameters import check_parameters
from gpushared.gate.api.routes import Match, RouteAction
from gpushared.gate.api.target import Target
from gpushared.net.error_answers import FORM, kind_of
from gpushared.net.http_client import EngineAnswer
from gpushared.net.http_server import Exchange
from gpushared.storage.audit.line import CallRecord

log = logging.getLogger(__name__)

NOTHING = frozenset({b"", b"{}", b"null"})
WITH_FORMS = frozenset({"POST", "PUT"})
"""Methods with which the engine reads a form for parameters."""
JSON_KIND = "application/json"
NO_BODY_BYTES = 64 * 1024
SHORT_BYTES = 32 * 1024
"""A body of this size is parsed in no time; hardly any is longer."""
OLDEST_VERSION = (1, 24)
"""Before this version a start could carry a HostConfig."""
KEPT_HEADERS = frozenset({b"api-version", b"docker-experimental", b"ostype", b"server"})


HEADERS = frozenset(
    {
        b"accept",
        b"connection",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"origin",
        b"sec-websocket-extensions",
        b"sec-websocket-key",
        b"sec-websocket-protocol",
        b"sec-websocket-version",
        b"transfer-encoding",
        b"upgrade",
        b"user-agent",
    }
)
REGISTRY_HEADERS = frozenset({b"x-registry-auth"})


@dataclass(frozen=True, slots=True)
class Call:
    """Hold a request whose route is known."""

    exchange: Exchange
    target: Target
    match: Match
    record: CallRecord = field(default_factory=CallRecord)

    @property
    def caller(self) -> Caller:
        return self.exchange.caller

    @property
    def version(self) -> Version | None:
        """Return the request's version of the API; None if the request does not give it."""
        return version_of(self.target.version) if self.target.version else None

    def renamed(self, name: str) -> Target:
        """Return the judged target with the full id in place of a confined client's word for it.

        A trusted client's own word goes to the engine, whose errors repeat it.
        """
        kind, _, rest = self.target.path.lstrip("/").partition("/")
        if kind == "containers":
            self.record.container = name
        if self.caller.trusted:
            return self.target
        return self.target.with_path(f"/{kind}/{name}{rest.removeprefix(self.match.name)}")

    async def parse(self) -> Body:
        """Parse the body; raises ``RequestError`` if it can be read in two ways."""
        if self.exchange.has_body:
            self.check_json()
        raw = await self.exchange.read(BODY_BYTES)
        if len(raw) <= SHORT_BYTES:
            return parse_object(raw)
        async with self.exchange.share.long_work():
            return parse_object(raw)

    def check_json(self) -> None:
        """Raise ``RequestError`` for a body that says that it is something else, as the engine does."""
        kind = kind_of(self.exchange.header(b"content-type"))
        if kind not in {"", JSON_KIND}:
            raise RequestError(
                f"a body of the type {kind} is not read", hint=f"send Content-Type: {JSON_KIND}"
            )

    async def answer(self, answer: EngineAnswer) -> None:
        """Give the client what the engine said to a request of ours."""
        kept = [(raw, value) for raw, value in answer.headers if raw.lower() in KEPT_HEADERS]
        await self.exchange.respond(answer.status, answer.body, headers=kept)


async def expect_nothing(exchange: Exchange) -> None:
    """Raise ``RequestError`` for a body where engines refuse one, or act on it."""
    if (await exchange.read(NO_BODY_BYTES)).strip() not in NOTHING:
        raise RequestError("this request takes no body", hint="a create takes a container's options")


async def drop_body(exchange: Exchange) -> None:
    """Read a body of which engines take no notice, and forget it: clients send their options here as well.

    Raises ``RequestError`` for a form, which the engine would take for parameters.
    """
    size = len(await exchange.read(NO_BODY_BYTES))
    if size and exchange.method in WITH_FORMS and kind_of(exchange.header(b"content-type")) == FORM:
        raise RequestError("a form is not read here", hint="write its fields as parameters into the path")
    if size:
        path = exchange.target.partition(b"?")[0].decode("ascii", "backslashreplace")
        log.debug("the engine does not read a body of %s %s, %d bytes", exchange.method, path, size)


def check_confined(call: Call) -> None:
    """Raise where a confined caller may not ask this at all, or not with these parameters.

    Of the request's headers those are left that say how it is to be read and answered.
    """
    route, target = call.match.route, call.target
    if route.action in {RouteAction.TRUSTED, RouteAction.BUILD}:
        raise PermissionRefused(route.why, hint=route.hint)
    check_parameters(route, target)
    if target.version and tuple(map(int, target.version[1:].split("."))) < OLDEST_VERSION:
        raise RequestError(f"API version {target.version[1:]} is too old", hint="upgrade the client")
    passed = HEADERS | REGISTRY_HEADERS if route.registry else HEADERS
    call.exchange.headers = [each for each in call.exchange.headers if each[0] in passed]
