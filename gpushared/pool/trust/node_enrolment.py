"""Making nodes members: who may have which name, and that nothing is told before it is durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import NotFound, PermissionRefused, StateConflict
from gpushared.domain.model.units import shown
from gpushared.pool.trust.authority import Authority, key_digest
from gpushared.pool.trust.certificate_status import CertificateStatus, SignatureLog
from gpushared.pool.trust.certificates import NodeCertificate, pem_of, read_node_certificate
from gpushared.pool.trust.join_tokens import JoinTokens
from gpushared.pool.trust.people import node_name
from gpushared.pool.trust.token_records import JoinRecord, JoinWords

log = logging.getLogger(__name__)

Enrolled = Callable[[NodeName, tuple[str, ...]], Awaitable[object]]
"""Told of each new member with its realms; it comes back when the coordinator's store has it."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate that may be told."""

    pem: bytes
    certificate: NodeCertificate


class Enlisting:
    """One change at a time, each with its small files written off the event loop."""

    def __init__(
        self,
        authority: Authority,
        ledger: SignatureLog,
        standing: CertificateStatus,
        tokens: JoinTokens,
        now: Callable[[], float],
        enrolled: Enrolled,
        named_realms: Callable[[], frozenset[str]],
    ) -> None:
        """``named_realms``: those of the pool's user table."""
        self._authority = authority
        self._ledger = ledger
        self._standing = standing
        self._tokens = tokens
        self._now = now
        self._enrolled = enrolled
        self._named_realms = named_realms
        self._turn = asyncio.Lock()

    async def enlist(self, name: str, csr: bytes, words: JoinWords) -> Signed:
        """A token's one node. Raises PermissionRefused, RequestError, StateConflict, Unavailable."""
        node, key, pool = node_name(name), key_digest(csr), self._authority.pool
        if words.pool != pool:
            raise PermissionRefused(
                f"the join token is of the pool {shown(words.pool)}, and this is the pool {pool}",
                hint="is the address right?",
            )
        async with self._turn:
            now = self._now()
            kept = await self._tokens.check(words, node, key, now)
            self._check_name(node, kept.record)
            record = await self._tokens.use(kept, node, key, now)
            if self._ledger.member(node) is not None:
                await asyncio.to_thread(self._ledger.revoke, node, f"token {record.id}", now)
            signed = await self._sign(csr, node, frozenset(record.realms) - {node}, record.id)
            self._standing.look_again(now)
        await self._enrolled(node, record.realms)
        log.info("node joined node=%s token=%s made_by=%s", node, record.id, record.made_by)
        return signed

    def _check_name(self, node: NodeName, record: JoinRecord) -> None:
        """A name is a realm too: whoever has it may speak for its users."""
        again = record.used_at is not None
        meant = record.node == node
        if node == self._authority.pool:
            raise StateConflict(
                f"a node cannot be named as the pool, {node}: the pool's own users would be its users",
                hint="choose another name: gpushare node join --name NAME",
            )
        if again or meant:
            return
        if self._ledger.member(node) is not None:
            raise StateConflict(
                f"there is a node {node} in the pool {self._authority.pool} already",
                hint=f"is it this machine, set up anew? then: gpushare pool token --node {node}; "
                "otherwise choose another name: gpushare node join --name NAME",
            )
        if (other := self._ledger.realms_in_use().get(node)) is not None:
            raise StateConflict(
                f"{node} is a realm of the node {other}, so a node of this name could speak for its users",
                hint=f"choose another name, or say that it is meant: gpushare pool token --node {node}",
            )
        if node in self._named_realms():
            raise StateConflict(
                f"the pool's user table names people of {node}, so not every machine may be called so",
                hint=f"say that this one is meant: gpushare pool token --node {node}",
            )

    async def renew(self, csr: bytes, before: NodeCertificate) -> Signed:
        """A new certificate for a node that has one. Raises RequestError, Unavailable."""
        async with self._turn:
            self._standing.check(before, self._now())
            member = self._ledger.member(before.node)
            realms = before.realms if member is None else member.realms
            return await self._sign(csr, before.node, realms, "")

    async def _sign(self, csr: bytes, node: NodeName, realms: frozenset[str], token: str) -> Signed:
        """Sign a node's certificate, and enter it in the ledger before anybody has it."""
        now = self._now()
        pem = pem_of(await asyncio.to_thread(self._authority.sign_node, csr, node, realms, now))
        certificate = read_node_certificate(pem)
        await asyncio.to_thread(self._ledger.issued, certificate, now, token=token)
        return Signed(pem, certificate)

    async def expel(self, node: NodeName, by: str) -> None:
        """Revoke all that the node has; its streams end. Raises NotFound, Unavailable."""
        async with self._turn:
            if self._ledger.member(node) is None:
                raise NotFound(f"no node {shown(node)} has a certificate", hint="`gpushare nodes` lists them")
            await asyncio.to_thread(self._ledger.revoke, node, by, self._now())
            self._standing.look_again(self._now())
        log.info("certificates revoked node=%s by=%s", node, by)

    async def change_anchors(self, change: Callable[[float], None]) -> None:
        """Let the authority change whom to trust, with nothing else under way."""
        async with self._turn:
            await asyncio.to_thread(change, self._now())
            self._standing.look_again(self._now())
