"""Decide for the link which node a stream is of, for whom the node speaks, and which anchors it trusts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpushared.api.v1 import link_pb2
from gpushared.domain.jobs.job import NodeName, Owner
from gpushared.domain.model.errors import PermissionRefused
from gpushared.pool.trust.authority import Authority
from gpushared.pool.trust.callers import Callers
from gpushared.pool.trust.certificate_status import CertificateStatus
from gpushared.pool.trust.signature_log import SignatureLog


class LinkGuard:
    """For ``LinkService``; a node counts as the one whose certificate it showed last."""

    def __init__(
        self,
        authority: Authority,
        ledger: SignatureLog,
        standing: CertificateStatus,
        callers: Callers,
        now: Callable[[], float],
    ) -> None:
        self._authority = authority
        self._ledger = ledger
        self._standing = standing
        self._callers = callers
        self._now = now

    @property
    def pool(self) -> str:
        return self._authority.pool

    def node_of(self, auth: Mapping[str, Iterable[bytes]]) -> NodeName:
        """The node that connects. Raises PermissionRefused."""
        certificate = self._callers.certificate_of(auth)
        self._standing.note(certificate)
        return certificate.node

    def owner_of(self, node: NodeName, assertion: bytes, digest: bytes) -> Owner:
        """The user for whom a connected node gives its word. Raises PermissionRefused, LimitReached."""
        certificate = self._standing.noted(node)
        if certificate is None:
            raise PermissionRefused(
                f"node {node} has shown no certificate that counts", hint="it connects anew by itself"
            )
        self._standing.check(certificate, self._now())
        return self._callers.asserted(certificate, assertion, digest).owner

    def owner_named(self, principal: str) -> Owner:
        """The user of that name, for whom nobody gave their word. Raises RequestError."""
        return self._callers.owner_named(principal)

    def newer_trust(self, node: NodeName, generation: int) -> link_pb2.NewTrust | None:
        """Return the newer anchors for a node, and if it is to renew its certificate now.

        None = nothing new.
        """
        member = self._ledger.member(node)
        outdated = member is None or member.authority != self._authority.signing
        if generation >= self._authority.generation and not outdated:
            return None
        return self.trust(renew_now=outdated)

    def trust(self, *, renew_now: bool) -> link_pb2.NewTrust:
        """Return the message with the anchors to trust now, for ``LinkService.tell_trust``."""
        return link_pb2.NewTrust(
            anchors=self._authority.anchors_pem,
            generation=self._authority.generation,
            renew_now=renew_now,
        )
