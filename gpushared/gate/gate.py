"""The gate: every Docker request of every caller passes here, judged by its route."""

from __future__ import annotations

from gpushared.domain.errors import PermissionRefused
from gpushared.gate.call import Call, check_confined, expect_nothing
from gpushared.gate.desk import Desk
from gpushared.gate.engine import EngineSocket
from gpushared.gate.handlers.containers import Containers
from gpushared.gate.handlers.creates import Creates
from gpushared.gate.handlers.execs import Execs
from gpushared.gate.handlers.ground import Ground, Handler
from gpushared.gate.handlers.networks import Networks, Volumes
from gpushared.gate.handlers.shared import Shared
from gpushared.gate.http import Exchange
from gpushared.gate.policy.site import Policy
from gpushared.gate.routes import Action, Payload, match_route
from gpushared.gate.target import parse_target


class Gate:
    """Serves exchanges. Errors of ours reach the client in Docker's form; the HTTP layer sees to that.

    ``policy`` may be replaced at any time; it holds for requests that come after.
    """

    def __init__(self, engine_socket: str, desk: Desk, policy: Policy | None = None) -> None:
        engine = EngineSocket(engine_socket.removeprefix("unix://"))
        ground = self._ground = Ground(engine, desk, policy or Policy())
        self._creates = Creates(ground)
        containers, execs = Containers(ground), Execs(ground)
        self._everybody: dict[Action, Handler] = {
            **self._creates.everybody(),
            **containers.everybody(),
            **execs.everybody(),
        }
        self._confined: dict[Action, Handler] = {
            **self._everybody,
            **containers.confined(),
            **execs.confined(),
            **Networks(ground).confined(),
            **Volumes(ground).confined(),
            **Shared(ground).confined(),
        }

    @property
    def policy(self) -> Policy:
        return self._ground.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._ground.policy = policy

    async def handle(self, exchange: Exchange) -> None:
        target = parse_target(exchange.target)
        match = match_route(exchange.method, target.path)
        if match is None:
            raise PermissionRefused(
                f"{exchange.method} {target.path} is not served by gpushared",
                hint="trusted users can ask the engine itself",
            )
        if match.route.payload is Payload.NONE:
            await expect_nothing(exchange)
        call = Call(exchange, target, match)
        if exchange.caller.trusted:
            await self._everybody.get(match.route.action, self._ground.send)(call)
            return
        check_confined(call)
        await self._confined[match.route.action](call)

    async def close(self) -> None:
        """Wait for the creates that hold a lease."""
        await self._creates.close()
