"""Serve ``Join``: give a machine its first certificate of a node, and a node its next one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from google.protobuf.message import Message

from gpushared.api.v1 import pool_pb2, pool_pb2_grpc
from gpushared.domain.model.errors import GpushareError, NotLeader
from gpushared.domain.model.units import shown
from gpushared.net.call_audit import Asker, CallAudit
from gpushared.net.call_checks import Context, abort
from gpushared.net.limits import Rates, host_of
from gpushared.pool.trust.certificates import check_clock
from gpushared.pool.trust.node_enrolment import SignedCertificate
from gpushared.pool.trust.token_records import read_join_token
from gpushared.pool.trust.trust import PoolTrust
from gpushared.storage.audit.line import NOBODY_HERE

RENEWALS = 20
RENEWALS_PER_SECOND = 1 / 3600
"""A node renews its certificate every few weeks. Each renewal adds a line to the ledger for ever."""


class JoinService(pool_pb2_grpc.JoinServicer):
    """Serve both ports; ``Renew`` finds a certificate only on the nodes' port."""

    def __init__(
        self,
        trust: PoolTrust,
        node_port: Callable[[], int],
        now: Callable[[], float] = time.time,
        rates: Rates | None = None,
        audit: CallAudit | None = None,
    ) -> None:
        self._audit = audit or CallAudit()
        self._trust = trust
        self._node_port = node_port
        self._now = now
        self._rates = rates or Rates(time.monotonic)
        self._renewals = Rates(time.monotonic, burst=RENEWALS, per_second=RENEWALS_PER_SECOND)

    async def GetTrust(  # noqa: N802 - gRPC's name
        self, request: pool_pb2.GetTrustRequest, context: Context[Any, Any]
    ) -> pool_pb2.Trust:
        """Return the anchors. They are no secret, and a joining machine checks them by its token's digest."""
        try:
            self._rates.spend(host_of(context.peer()))
        except GpushareError as error:
            await self._refuse("Join/GetTrust", request, _stranger(context), context, error)
        return self._trust.anchors_message(self._now())

    async def Sign(  # noqa: N802 - gRPC's name
        self, request: pool_pb2.SignRequest, context: Context[Any, Any]
    ) -> pool_pb2.SignAnswer:
        try:
            self._rates.spend(host_of(context.peer()))
            self._trust.callers.check_answers("Join/Sign")
            token = read_join_token(request.token)
            check_clock(f"the machine that is to be node {shown(request.node)}", request.now, self._now())
            signed = await self._trust.enrolment.enrol(request.node, request.csr, token)
        except GpushareError as error:
            await self._refuse("Join/Sign", request, _stranger(context), context, error)
        note = f"with the token {token.id}"
        self._audit.answered("Join/Sign", request, replace(_stranger(context), note=note))
        return self._answer(signed)

    async def Renew(  # noqa: N802 - gRPC's name
        self, request: pool_pb2.RenewRequest, context: Context[Any, Any]
    ) -> pool_pb2.SignAnswer:
        asker = _stranger(context)
        try:
            node = self._trust.callers.node_of(context)
            self._trust.callers.check_answers("Join/Renew")
            asker = Asker(NOBODY_HERE, f"node {node.node}", note=f"from {asker.user}")
            check_clock(f"node {node.node}", request.now, self._now())
            self._renewals.spend(f"node {node.node}")
            signed = await self._trust.enrolment.renew(request.csr, node)
        except GpushareError as error:
            await self._refuse("Join/Renew", request, asker, context, error)
        self._audit.answered("Join/Renew", request, asker)
        return self._answer(signed)

    async def _refuse(
        self, name: str, request: Message, asker: Asker, context: Context[Any, Any], error: GpushareError
    ) -> NoReturn:
        if not isinstance(error, NotLeader):
            self._audit.refused(name, request, asker, error)
        await abort(context, error)

    def _answer(self, signed: SignedCertificate) -> pool_pb2.SignAnswer:
        return pool_pb2.SignAnswer(
            certificate=signed.pem,
            trust=self._trust.anchors_message(self._now()),
            node_port=self._node_port(),
        )


def _stranger(context: Context[Any, Any]) -> Asker:
    """Return the asker known by the address alone: nothing else is known of a machine that joins."""
    return Asker(NOBODY_HERE, host_of(context.peer()))
