"""Serve the administrators' calls about the pool.

``Node.Join`` and ``Node.Leave`` are served here, the others by the coordinator.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from google.protobuf.message import Message

from gpushared.api.v1 import node_pb2, pool_pb2, pool_pb2_grpc
from gpushared.config.job_settings import PoolConfig
from gpushared.config.model import Config
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import ConfigError, PermissionRefused
from gpushared.domain.model.request import Caller
from gpushared.net.unary_json import Unary
from gpushared.pool.member.coordinator_calls import CoordinatorCalls
from gpushared.pool.member.enrolment import Enrolment
from gpushared.pool.member.membership_file import Membership

log = logging.getLogger(__name__)

PART = "membership"
"""Troubles of the membership have this part name."""
ANSWER_SECONDS = 10.0
_REQUEST_TYPES: dict[str, type[Message]] = {
    "DrainNode": pool_pb2.DrainNodeRequest,
    "ForgetNode": pool_pb2.ForgetNodeRequest,
    "Status": pool_pb2.PoolStatusRequest,
}


def open_enrolment(config: Config, troubles: Troubles) -> Enrolment:
    """Make the node's membership in its folder; nothing is read yet."""

    def trouble(text: str | None) -> None:
        if text is None:
            troubles.cleared(PART)
        else:
            troubles.raised(PART, text)

    return Enrolment(pool_folder(config), time.time, trouble)


def pool_folder(config: Config) -> Path:
    """Return the folder of the node's files about its pool."""
    return Path(config.pool.state_dir or Path(config.node.state_dir) / "pool")


async def load_enrolment(enrolment: Enrolment, troubles: Troubles) -> None:
    """Load the enrolment; damaged files raise a trouble, and the node serves its users without a pool."""
    try:
        await enrolment.load()
    except ConfigError as error:
        troubles.raised(PART, str(error))


class Memberships:
    """Join and leave pools.

    ``enrolment`` notifies all other parts; the link to the pool begins and ends with it.
    """

    def __init__(self, enrolment: Enrolment, config: Callable[[], PoolConfig], node_name: str) -> None:
        self._enrolment = enrolment
        self._config = config
        self._node_name = node_name

    def calls(self) -> dict[str, Unary]:
        return {
            "gpushare.v1.Node/Join": Unary(node_pb2.JoinPoolRequest, self.join),
            "gpushare.v1.Node/Leave": Unary(node_pb2.LeavePoolRequest, self.leave),
        }

    async def join(self, message: node_pb2.JoinPoolRequest, caller: Caller) -> node_pb2.PoolMembership:
        """Make the node a member; return when that is durable."""
        _check(caller, "join a pool")
        joined = await self._enrolment.join(message.address, message.token, message.name or self._node_name)
        log.info("joined by=%s", caller.name)
        return node_pb2.PoolMembership(
            pool=joined.pool,
            node=joined.node,
            address=joined.address,
            expires_at=joined.facts.expires_at,
            realms=sorted(joined.facts.realms),
            notes=self._notes(joined),
        )

    async def leave(self, _: node_pb2.LeavePoolRequest, caller: Caller) -> node_pb2.LeftPool:
        """End the membership; return when the node's keys are gone."""
        _check(caller, "leave a pool")
        former = await self._enrolment.leave()
        log.info("left by=%s", caller.name)
        return node_pb2.LeftPool(pool=former.pool, node=former.node) if former else node_pb2.LeftPool()

    def _notes(self, joined: Membership) -> Iterator[str]:
        """Yield a note if the node's certificate does not cover the realm of its users."""
        realm = self._config().realm or self._node_name
        if not joined.facts.may_assert(realm):
            yield (
                f"users of this node are USER@{realm}, for whom node {joined.node} may not speak, so their "
                f'jobs are refused in the pool: set pool.realm = "{joined.node}" here, or join again with a '
                f"token made by gpushare pool token --node {joined.node} --realm {realm}"
            )


def _check(caller: Caller, action: str) -> None:
    if not caller.trusted:
        raise PermissionRefused(
            f"only trusted callers may let this node {action}", hint="be root, or in the docker group"
        )


def admin_calls(coordinator: CoordinatorCalls) -> dict[str, Unary]:
    """Return the daily calls of a pool's administrators, forwarded to the coordinator, by their full names.

    The node only states the caller, in a signed assertion. The coordinator decides by its own table of users
    if the caller is an administrator. Tokens, certificates and the authority are for the coordinator's
    machine.
    """
    return {
        f"gpushare.v1.PoolAdmin/{name}": Unary(kind, _forwarded(name, coordinator))
        for name, kind in _REQUEST_TYPES.items()
    }


def _forwarded(name: str, coordinator: CoordinatorCalls) -> Callable[[Message, Caller], Awaitable[Message]]:
    async def call(message: Message, caller: Caller) -> Message:
        answer: Message = await coordinator.call(
            name, message, caller, ANSWER_SECONDS, stub=pool_pb2_grpc.PoolAdminStub
        )
        return answer

    return call
