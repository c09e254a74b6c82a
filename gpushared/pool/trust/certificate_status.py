"""Check if a node's certificate counts now: when it connects, at each call, and while its stream is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import GpushareError, PermissionRefused
from gpushared.pool.trust.authority import Authority
from gpushared.pool.trust.certificates import TOLERANCE_SECONDS, NodeCertificate
from gpushared.pool.trust.signature_log import SignatureLog

REVOKED = "was revoked"
_AGAIN = (
    "let it join again: gpushare pool token --node {0} on the coordinator's machine; on {0} gpushare node "
    "leave, then gpushare node join"
)


Judge = Callable[[float], GpushareError | None]
"""A judge returns the fault, at a time, of the proof by which a caller was let in; None = no fault."""


class CertificateStatus:
    """Judges certificates whose signatures TLS has checked already."""

    def __init__(self, authority: Authority, ledger: SignatureLog) -> None:
        self._authority = authority
        self._ledger = ledger
        self.fallen: Callable[[NodeName, GpushareError], None] = lambda _, __: None
        """Told of each noted node whose certificate no longer counts, once."""
        self._noted: dict[NodeName, NodeCertificate] = {}
        self._open: dict[asyncio.Future[GpushareError], Judge] = {}

    def judge(self, certificate: NodeCertificate) -> Judge:
        """Return the judge that tells, at any later time, the certificate's fault at that time."""
        return lambda now: self._problem(certificate, now)

    def check(self, certificate: NodeCertificate, now: float) -> None:
        """Raises PermissionRefused."""
        if (problem := self._problem(certificate, now)) is not None:
            raise problem

    def _problem(self, certificate: NodeCertificate, now: float) -> PermissionRefused | None:
        node, pool = certificate.node, self._authority.pool
        again = _AGAIN.format(node)
        if certificate.pool != pool:
            return PermissionRefused(
                f"node {node} is of the pool {certificate.pool}, and this is {pool}", hint=again
            )
        if self._ledger.is_revoked(certificate):
            return PermissionRefused(f"the certificate of node {node} {REVOKED}", hint=again)
        if not self._authority.trusts(certificate.authority):
            why = "is signed by an authority that this pool has replaced"
            back = f"a node that has a newer one comes back with it by itself; for another one: {again}"
            return PermissionRefused(f"the certificate of node {node} {why}", hint=back)
        if now >= certificate.expires_at + TOLERANCE_SECONDS:
            ago = f"{now - certificate.expires_at:.0f} s ago"
            return PermissionRefused(
                f"the certificate of node {node} expired {ago} by the coordinator's clock",
                hint=f"is the clock right (`timedatectl`)? Otherwise {again}",
            )
        return None

    def note(self, certificate: NodeCertificate) -> None:
        """A node is connected with this certificate, instead of the one before."""
        self._noted[certificate.node] = certificate

    def noted(self, node: NodeName) -> NodeCertificate | None:
        """The one with which it connected last, while it counts."""
        return self._noted.get(node)

    @contextmanager
    def watching(self, judge: Judge) -> Iterator[asyncio.Future[GpushareError]]:
        """While a stream is open: the future has the reason as soon as it must be closed."""
        gone: asyncio.Future[GpushareError] = asyncio.get_running_loop().create_future()
        self._open[gone] = judge
        try:
            yield gone
        finally:
            del self._open[gone]
            gone.cancel()

    def look_again(self, now: float) -> None:
        """After a revocation or a change of the anchors, and from time to time, because things expire."""
        for gone, judge in list(self._open.items()):
            problem = judge(now)
            if problem is not None and not gone.done():
                gone.set_result(problem)
        for node, certificate in list(self._noted.items()):
            problem = self._problem(certificate, now)
            if problem is not None:
                del self._noted[node]
                self.fallen(node, problem)
