"""Judge every Docker request of every caller by its route, and pass the request to its handler."""

from __future__ import annotations

from typing import assert_never

from gpushared.domain.model.errors import PermissionRefused
from gpushared.domain.model.request import Caller
from gpushared.gate.api.endpoints import BUILD_OF_NOBODY, match_route
from gpushared.gate.api.routes import Payload, RouteAction, parse_target
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.containers.lease_port import LeasePort
from gpushared.gate.containers.passwd import PasswdFiles
from gpushared.gate.explain_create import Explainer
from gpushared.gate.handlers.archives import Archives
from gpushared.gate.handlers.call import Call, check_confined, drop_body, expect_nothing
from gpushared.gate.handlers.containers import ContainerHandlers, Execs, Listings
from gpushared.gate.handlers.context import Handler, HandlerContext
from gpushared.gate.handlers.creates import Creates
from gpushared.gate.handlers.networks_and_volumes import Networks, Volumes
from gpushared.gate.handlers.request_audit import Recording, line_of_refusal, recording
from gpushared.gate.handlers.shared import EngineHandlers, ImageHandlers
from gpushared.gate.mounts.held_mounts import HeldMounts
from gpushared.net.error_answers import RequestRefusal
from gpushared.net.http_client import EngineSocket
from gpushared.net.http_server import Exchange
from gpushared.ports import UserWalls
from gpushared.storage.audit.line import Origin, Sink, ignore


class Gate:
    """Serve exchanges. The HTTP layer sends the daemon's errors to the client in Docker's form.

    ``audit`` gets a line for each request that changes something or is refused. ``policy`` may be replaced at
    any time; the new one applies to later requests. ``name`` is on the gate's containers, to distinguish them
    from those of other gates. ``walls`` limits all containers of a user together. Without ``passwd``
    containers have their images' users only.
    """

    def __init__(
        self,
        engine_socket: str,
        lease_service: LeasePort,
        policy: SitePolicy | None = None,
        audit: Sink = ignore,
        pins: HeldMounts | None = None,
        name: str = "",
        walls: UserWalls | None = None,
        passwd: PasswdFiles | None = None,
    ) -> None:
        engine = EngineSocket(engine_socket.removeprefix("unix://"))
        handler_context = self._handler_context = HandlerContext(
            engine, lease_service, policy or SitePolicy(), pins, name, walls, passwd
        )
        self._audit = audit
        self._creates = Creates(handler_context)
        self.explainer = Explainer(handler_context)
        containers, execs, engine_handlers = (
            ContainerHandlers(handler_context),
            Execs(handler_context),
            EngineHandlers(handler_context),
        )
        self._handlers_for_everybody: dict[RouteAction, Handler] = {
            **self._creates.for_everybody(),
            **containers.for_everybody(),
            **execs.for_everybody(),
            **engine_handlers.for_everybody(),
        }
        networks, volumes = Networks(handler_context), Volumes(handler_context)
        # Trusted callers' requests come to these handlers too if everybody is confined.
        self._handlers_for_judged: dict[RouteAction, Handler] = {
            **self._handlers_for_everybody,
            **networks.for_judged(),
            **volumes.for_judged(),
            RouteAction.BUILD: _no_build,
        }
        self._handlers_for_confined: dict[RouteAction, Handler] = {
            **self._handlers_for_everybody,
            **containers.for_confined(),
            **Archives(handler_context).for_confined(),
            **Listings(handler_context).for_confined(),
            **execs.for_confined(),
            **networks.for_confined(),
            **volumes.for_confined(),
            **ImageHandlers(handler_context).for_confined(),
            **engine_handlers.for_confined(),
        }

    @property
    def pins(self) -> HeldMounts:
        return self._handler_context.pins

    @property
    def policy(self) -> SitePolicy:
        return self._handler_context.policy

    @policy.setter
    def policy(self, policy: SitePolicy) -> None:
        self._handler_context.policy = policy

    def judges(self, caller: Caller) -> bool:
        """Return True if the caller's creates are judged."""
        return self._handler_context.judges(caller)

    async def handle(self, exchange: Exchange) -> None:
        with recording(exchange, self._audit) as recorded:
            await self._handle(exchange, recorded)

    def refused(self, refusal: RequestRefusal, caller: Caller, origin: Origin) -> None:
        """Write to the audit that the HTTP layer refused a request before the gate received it."""
        self._audit(line_of_refusal(refusal, caller, origin))

    async def _handle(self, exchange: Exchange, recorded: Recording) -> None:
        target = parse_target(exchange.target)
        recorded.endpoint = target.path
        match = match_route(exchange.method, target.path)
        if match is None:
            raise PermissionRefused(
                f"{exchange.method} {target.path} is not served by gpushared",
                hint="trusted users can ask the engine itself",
            )
        recorded.record.name = match.name or target.get("name")
        if match.route.action is RouteAction.REFUSE:
            raise PermissionRefused(match.route.why, hint=match.route.hint)
        match match.route.payload:
            case Payload.NONE:
                await drop_body(exchange)
            case Payload.REFUSED:
                await expect_nothing(exchange)
            case Payload.STREAM:
                pass
            case other:
                assert_never(other)
        target = self._handler_context.drop_unread(target, match.route)
        call = Call(exchange, target, match, recorded.record)
        if exchange.caller.trusted:
            handlers = (
                self._handlers_for_judged if self.policy.everybody_confined else self._handlers_for_everybody
            )
            await handlers.get(match.route.action, self._handler_context.send)(call)
            return
        check_confined(call)
        await self._handlers_for_confined[match.route.action](call)

    async def close(self) -> None:
        """Wait for the creates that hold a lease."""
        await self._creates.close()


async def _no_build(_: Call) -> None:
    raise PermissionRefused(BUILD_OF_NOBODY[0], hint=BUILD_OF_NOBODY[1])
