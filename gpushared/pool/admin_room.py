"""``PoolAdmin`` and ``Join``, at their doors."""

from __future__ import annotations

from collections.abc import Sequence

from gpushared.api.v1 import pool_pb2, pool_pb2_grpc
from gpushared.pool.admin import Admin
from gpushared.pool.join_service import JoinService
from gpushared.pool.parts import Coordinator, Door, Service
from gpushared.pool.trust.admin import TrustAdmin
from gpushared.pool.unary_service import unary_service

EVERYWHERE = frozenset(Door)
BY_TLS = frozenset({Door.NODES, Door.USERS})


def admin_services(coordinator: Coordinator) -> Sequence[Service]:
    """Return the services that administrators call, and the one for machines that join."""
    admin = Admin(
        coordinator.loop,
        coordinator.trust.enlisting,
        coordinator.troubles,
        pool=coordinator.trust.pool,
        drained=coordinator.link.tell_drain,
    )
    join = JoinService(coordinator.trust, coordinator.nodes_port, audit=coordinator.of_calls)
    return (
        unary_service(
            pool_pb2.DESCRIPTOR.services_by_name["PoolAdmin"],
            {**admin.handlers(), **TrustAdmin(coordinator.trust).handlers()},
            coordinator.trust.callers,
            EVERYWHERE,
        ),
        Service(
            "gpushare.v1.Join", BY_TLS, lambda server: pool_pb2_grpc.add_JoinServicer_to_server(join, server)
        ),
    )
