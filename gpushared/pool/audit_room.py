"""``Audit``, at the coordinator's doors: for administrators only."""

from __future__ import annotations

from collections.abc import Sequence

from gpushared.api.v1 import audit_pb2
from gpushared.audit.line import NOBODY_HERE
from gpushared.domain.model.request import Caller
from gpushared.pool.parts import Coordinator, Door, Service
from gpushared.pool.trust.callers import PoolCaller
from gpushared.pool.unary_service import unary_service
from gpushared.serving.audit_api import AuditApi


def audit_services(coordinator: Coordinator) -> Sequence[Service]:
    """Return the service that lists administrators' changes to the pool and the calls that were refused."""
    api = AuditApi(coordinator.audit, simulated=False)

    async def list_lines(
        message: audit_pb2.ListAuditRequest, caller: PoolCaller
    ) -> audit_pb2.ListAuditResponse:
        caller.require_admin()
        admin = Caller(NOBODY_HERE, NOBODY_HERE, caller.owner.principal, trusted=True)
        return await api.list_lines(message, admin)

    return (
        unary_service(
            audit_pb2.DESCRIPTOR.services_by_name["Audit"],
            {"List": list_lines},
            coordinator.trust.callers,
            frozenset(Door),
        ),
    )
