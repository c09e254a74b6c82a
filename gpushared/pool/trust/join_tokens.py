"""Join tokens: who holds one may make one machine a node of the pool, once, within the hour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import NotFound, PermissionRefused, RequestError
from gpushared.domain.model.units import shown
from gpushared.pool.trust.people import node_name, realm_name
from gpushared.pool.trust.token_records import (
    JoinRecord,
    JoinWords,
    StoredToken,
    TokenRecords,
    hash_of,
    matches,
    new_id,
    new_secret,
)
from gpushared.ports.job_store import Conflict, JobStore

PREFIX = "token/join/"
DEFAULT_SECONDS = 3600
MIN_SECONDS = 60
MAX_SECONDS = 7 * 24 * 3600
KEPT_SECONDS = 7 * 24 * 3600
"""Tokens are listed for this long after their end, and refused by name rather than as unknown."""
_NEW = "make a new one on the coordinator's machine: gpushare pool token"


class JoinTokens:
    """Keep the join tokens of one pool. ``digest``: the digest of the anchor that a node is to trust now."""

    def __init__(
        self, store: JobStore, epoch: Callable[[], int], pool: str, digest: Callable[[], str]
    ) -> None:
        self._records = TokenRecords(store, epoch, PREFIX, JoinRecord.read)
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
    ) -> tuple[JoinWords, JoinRecord]:
        """The token, which is told only now, and what is kept of it. Raises RequestError."""
        seconds = valid_seconds or DEFAULT_SECONDS
        if not MIN_SECONDS <= seconds <= MAX_SECONDS:
            raise RequestError(
                f"a join token cannot be valid for {seconds} s",
                hint=f"give {MIN_SECONDS} s to {MAX_SECONDS // 86400} days: --valid 1h",
            )
        words = JoinWords(self._pool, self._digest(), new_id(), new_secret())
        record = JoinRecord(
            id=words.id,
            hashed=hash_of(words.secret),
            created_at=now,
            expires_at=now + seconds,
            node=node_name(node) if node else "",
            realms=tuple(sorted({realm_name(realm) for realm in realms})),
            made_by=by,
        )
        await self._records.put(record, 0)
        return words, record

    async def check(self, words: JoinWords, node: NodeName, key: str, now: float) -> StoredToken[JoinRecord]:
        """The token if this node, with a key of this digest, may use it now. Raises PermissionRefused."""
        kept = await self._records.find(words.id)
        if kept is None or not matches(words.secret, kept.record.hashed):
            raise PermissionRefused(
                f"the pool {self._pool} knows no join token {words.id} with this secret",
                hint=f"is all of the line in the file? Otherwise {_NEW}",
            )
        record = kept.record
        if record.used_at is not None and (record.used_by, record.used_key) == (node, key):
            return kept  # its first answer was lost
        self._check_record(record, node, now)
        return kept

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

    async def use(self, kept: StoredToken[JoinRecord], node: NodeName, key: str, now: float) -> JoinRecord:
        """Durably used by this node; of two at the same time one gets PermissionRefused."""
        record = kept.record
        if record.used_at is not None:
            return record
        used = replace(record, used_at=now, used_by=node, used_key=key)
        try:
            return (await self._records.put(used, kept.revision)).record
        except Conflict as error:
            newer = await self._records.find(record.id)
            raise _used(record if newer is None else newer.record) from error

    async def all(self, now: float) -> list[JoinRecord]:
        """Newest first. Forgets those that ended long ago."""
        kept = await self._records.all()
        for one in kept.values():
            if one.record.expires_at + KEPT_SECONDS < now:
                await self._records.delete(one.record, one.revision)
        live = [one.record for one in kept.values() if one.record.expires_at + KEPT_SECONDS >= now]
        return sorted(live, key=lambda one: (-one.created_at, one.id))

    async def revoke(self, token_id: str, now: float) -> str:
        """Revoke a token and say in a sentence what was done. Raise NotFound."""
        kept = await self._records.find(token_id)
        if kept is None:
            raise NotFound(
                f"there is no join token {shown(token_id)}", hint="`gpushare pool tokens` lists them"
            )
        if kept.record.used_at is not None:
            return (
                f"join token {token_id} was used already, by {kept.record.used_by}; to shut that node out: "
                f"gpushare pool revoke --node {kept.record.used_by}"
            )
        await self._records.put(replace(kept.record, revoked_at=now), kept.revision)
        return f"join token {token_id} is revoked"


def _used(record: JoinRecord) -> PermissionRefused:
    by = f" by the node {record.used_by}" if record.used_by else ""
    return PermissionRefused(
        f"the join token {record.id} was used already{by}",
        hint=f"each is good for one node; {_NEW}. Did you not use it yourself? Then somebody else has it: "
        f"gpushare pool revoke --node {record.used_by or 'NODE'}",
    )
