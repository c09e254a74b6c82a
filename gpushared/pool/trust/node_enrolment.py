"""Make machines nodes of the pool: check join tokens and names, and issue certificates once durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import (
    GpushareError,
    NotFound,
    PermissionRefused,
    RequestError,
    StateConflict,
    TimedOut,
)
from gpushared.domain.model.units import shown
from gpushared.pool.trust.authority import Authority, key_digest
from gpushared.pool.trust.certificate_status import (
    CertificateStatus,
    Line,
    SignatureLog,
    issued_line,
    revoked_line,
)
from gpushared.pool.trust.certificates import NodeCertificate, pem_of, read_node_certificate
from gpushared.pool.trust.people import node_name, realm_name
from gpushared.pool.trust.shared_trust import SharedTrust
from gpushared.pool.trust.token_records import (
    JoinRecord,
    JoinToken,
    StoredToken,
    TokenRecords,
    hash_of,
    matches,
    new_id,
    new_secret,
)
from gpushared.ports.job_store import Conflict, JobStore

log = logging.getLogger(__name__)

Enrolled = Callable[[NodeName, tuple[str, ...]], Awaitable[object]]
"""``NodeEnrolment`` calls this for each new member with its realms; it returns once the store has the member."""
JOIN_PREFIX = "token/join/"
JOIN_DEFAULT_SECONDS = 3600
JOIN_MIN_SECONDS = 60
JOIN_MAX_SECONDS = 7 * 24 * 3600
JOIN_KEPT_SECONDS = 7 * 24 * 3600
"""Keep tokens listed for this long after their end; a refusal can then name the token's fault."""
_NEW = "make a new one on the coordinator's machine: gpushare pool token"


@dataclass(frozen=True, slots=True)
class SignedCertificate:
    """Hold a certificate that is durable and may be sent."""

    pem: bytes
    certificate: NodeCertificate


class NodeEnrolment:
    """Enrol, renew and expel nodes, one change at a time. Threads write the small files."""

    def __init__(
        self,
        authority: Authority,
        ledger: SignatureLog,
        certificate_status: CertificateStatus,
        tokens: JoinTokens,
        now: Callable[[], float],
        enrolled: Enrolled,
        named_realms: Callable[[], frozenset[str]],
        shared: SharedTrust | None = None,
    ) -> None:
        """``named_realms`` returns the realms of the pool's user table.

        With ``shared``, the record and the anchors are in the store that several coordinators share.
        """
        self._authority = authority
        self._ledger = ledger
        self._certificate_status = certificate_status
        self._tokens = tokens
        self._now = now
        self._enrolled = enrolled
        self._named_realms = named_realms
        self._shared = shared
        self._turn = asyncio.Lock()

    async def enrol(self, name: str, csr: bytes, token: JoinToken) -> SignedCertificate:
        """Enrol the one node of a join token.

        Raises PermissionRefused, RequestError, StateConflict, Unavailable.
        """
        node, key, pool = node_name(name), key_digest(csr), self._authority.pool
        if token.pool != pool:
            raise PermissionRefused(
                f"the join token is of the pool {shown(token.pool)}, and this is the pool {pool}",
                hint="is the address right?",
            )
        async with self._turn:
            now = self._now()
            stored = await self._tokens.check(token, node, key, now)
            self._check_name(node, stored.record)
            record = await self._tokens.use(stored, node, key, now)
            if self._ledger.member(node) is not None:
                await self._write(revoked_line(node, f"token {record.id}", now))
            signed = await self._sign(csr, node, frozenset(record.realms) - {node}, record.id)
            self._certificate_status.look_again(now)
        await self._enrolled(node, record.realms)
        log.info("node joined node=%s token=%s made_by=%s", node, record.id, record.made_by)
        return signed

    def _check_name(self, node: NodeName, record: JoinRecord) -> None:
        """Raises StateConflict if the name is taken.

        A name is a realm too: its node may assert the realm's users.
        """
        is_repeated = record.used_at is not None
        is_meant = record.node == node
        if node == self._authority.pool:
            raise StateConflict(
                f"a node cannot be named as the pool, {node}: the pool's own users would be its users",
                hint="choose another name: gpushare node join --name NAME",
            )
        if is_repeated or is_meant:
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

    async def renew(self, csr: bytes, before: NodeCertificate) -> SignedCertificate:
        """Sign a new certificate for a node that has one. Raises RequestError, Unavailable."""
        async with self._turn:
            self._certificate_status.check(before, self._now())
            member = self._ledger.member(before.node)
            realms = before.realms if member is None else member.realms
            return await self._sign(csr, before.node, realms, "")

    async def _sign(
        self, csr: bytes, node: NodeName, realms: frozenset[str], token: str
    ) -> SignedCertificate:
        """Sign a node's certificate, and record it in the ledger before anybody gets it."""
        now = self._now()
        pem = pem_of(await asyncio.to_thread(self._authority.sign_node, csr, node, realms, now))
        certificate = read_node_certificate(pem)
        await self._write(issued_line(certificate, now, token=token))
        return SignedCertificate(pem, certificate)

    async def expel(self, node: NodeName, by: str) -> None:
        """Revoke all certificates of the node; its streams end. Raises NotFound, Unavailable."""
        async with self._turn:
            if self._ledger.member(node) is None:
                raise NotFound(f"no node {shown(node)} has a certificate", hint="`gpushare nodes` lists them")
            await self._write(revoked_line(node, by, self._now()))
            self._certificate_status.look_again(self._now())
        log.info("certificates revoked node=%s by=%s", node, by)

    async def change_anchors(self, change: Callable[[float], None]) -> None:
        """Let the authority change the trusted anchors while no other change is under way."""
        async with self._turn:
            before = self._authority.content()
            await asyncio.to_thread(change, self._now())
            if self._shared is not None:
                try:
                    await self._shared.publish_anchors()
                except GpushareError as error:
                    await asyncio.to_thread(self._authority.take, before)
                    if isinstance(error, TimedOut):
                        await self._shared.load()  # the store says if it has the change
                    raise
            self._certificate_status.look_again(self._now())

    async def _write(self, line: Line) -> None:
        """Write a line of the record durably. Raises Unavailable, TimedOut."""
        if self._shared is None:
            await asyncio.to_thread(self._ledger.append, line)
        else:
            await self._shared.append(line)


class JoinTokens:
    """Keep the join tokens of one pool.

    ``digest`` returns the digest of the anchor that nodes must trust now.
    """

    def __init__(
        self, store: JobStore, epoch: Callable[[], int], pool: str, digest: Callable[[], str]
    ) -> None:
        self._records = TokenRecords(store, epoch, JOIN_PREFIX, JoinRecord.read)
        self._pool = pool
        self._digest = digest

    async def make(
        self,
        by: str,
        now: float,
        *,
        node: str = "",
        realms: Sequence[str] = (),
        valid_seconds: int = 0,
    ) -> tuple[JoinToken, JoinRecord]:
        """Make a token; return the token, shown only now, and the record that the pool keeps.

        Raises RequestError.
        """
        seconds = valid_seconds or JOIN_DEFAULT_SECONDS
        if not JOIN_MIN_SECONDS <= seconds <= JOIN_MAX_SECONDS:
            raise RequestError(
                f"a join token cannot be valid for {seconds} s",
                hint=f"give {JOIN_MIN_SECONDS} s to {JOIN_MAX_SECONDS // 86400} days: --valid 1h",
            )
        token = JoinToken(self._pool, self._digest(), new_id(), new_secret())
        record = JoinRecord(
            id=token.id,
            hashed=hash_of(token.secret),
            created_at=now,
            expires_at=now + seconds,
            node=node_name(node) if node else "",
            realms=tuple(sorted({realm_name(realm) for realm in realms})),
            made_by=by,
        )
        await self._records.put(record, 0)
        return token, record

    async def check(self, token: JoinToken, node: NodeName, key: str, now: float) -> StoredToken[JoinRecord]:
        """Return the token if this node, with a key of this digest, may use it now.

        Raises PermissionRefused.
        """
        stored = await self._records.find(token.id)
        if stored is None or not matches(token.secret, stored.record.hashed):
            raise PermissionRefused(
                f"the pool {self._pool} knows no join token {token.id} with this secret",
                hint=f"is all of the line in the file? Otherwise {_NEW}",
            )
        record = stored.record
        if record.used_at is not None and (record.used_by, record.used_key) == (node, key):
            return stored  # the node never received its first answer
        self._check_record(record, node, now)
        return stored

    def _check_record(self, record: JoinRecord, node: NodeName, now: float) -> None:
        if record.used_at is not None:
            raise _used(record)
        if record.revoked_at is not None:
            raise PermissionRefused(f"the join token {record.id} was revoked", hint=_NEW)
        if now >= record.expires_at:
            ago = f"{now - record.expires_at:.0f} s ago"
            raise PermissionRefused(f"the join token {record.id} expired {ago}", hint=_NEW)
        if record.node and record.node != node:
            raise PermissionRefused(
                f"the join token {record.id} is for a node named {record.node}, not {shown(node)}",
                hint=f"join with --name {record.node}, or {_NEW} --node {node}",
            )

    async def use(self, stored: StoredToken[JoinRecord], node: NodeName, key: str, now: float) -> JoinRecord:
        """Record durably that this node used the token.

        If two nodes use a token at the same time, one of them gets PermissionRefused.
        """
        record = stored.record
        if record.used_at is not None:
            return record
        used = replace(record, used_at=now, used_by=node, used_key=key)
        try:
            return (await self._records.put(used, stored.revision)).record
        except Conflict as error:
            newer = await self._records.find(record.id)
            raise _used(record if newer is None else newer.record) from error

    async def all(self, now: float) -> list[JoinRecord]:
        """Return all tokens, the newest first, and delete the tokens that ended long ago."""
        records: list[JoinRecord] = []
        for stored in (await self._records.all()).values():
            if stored.record.expires_at + JOIN_KEPT_SECONDS < now:
                await self._records.delete(stored.record, stored.revision)
            else:
                records.append(stored.record)
        return sorted(records, key=lambda record: (-record.created_at, record.id))

    async def revoke(self, token_id: str, now: float) -> str:
        """Revoke a token, and return a sentence on the result. Raises NotFound."""
        stored = await self._records.find(token_id)
        if stored is None:
            raise NotFound(
                f"there is no join token {shown(token_id)}", hint="`gpushare pool tokens` lists them"
            )
        if stored.record.used_at is not None:
            return (
                f"join token {token_id} was used already, by {stored.record.used_by}; to shut that node out: "
                f"gpushare pool revoke --node {stored.record.used_by}"
            )
        await self._records.put(replace(stored.record, revoked_at=now), stored.revision)
        return f"join token {token_id} is revoked"


def _used(record: JoinRecord) -> PermissionRefused:
    by = f" by the node {record.used_by}" if record.used_by else ""
    return PermissionRefused(
        f"the join token {record.id} was used already{by}",
        hint=f"each is good for one node; {_NEW}. Did you not use it yourself? Then somebody else has it: "
        f"gpushare pool revoke --node {record.used_by or 'NODE'}",
    )
