"""Issue, check and revoke API tokens.

A pipeline acts for a person with a token, within its scopes, until the token expires.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpushared.config.job_settings import is_realm
from gpushared.domain.leases.project_settings import is_user_name
from gpushared.domain.model.errors import LimitReached, NotFound, PermissionRefused, RequestError
from gpushared.domain.model.units import shown
from gpushared.pool.trust.token_records import (
    ApiRecord,
    ApiToken,
    Scope,
    StoredToken,
    TokenRecords,
    hash_of,
    matches,
    new_id,
    new_secret,
)
from gpushared.ports.job_store import Conflict, JobStore

PREFIX = "token/api/"
DEFAULT_SECONDS = 12 * 3600
MIN_SECONDS = 60
MAX_SECONDS = 366 * 24 * 3600
DEFAULT_SCOPES = (Scope.SUBMIT, Scope.READ, Scope.CANCEL, Scope.LOGS)
KEPT_SECONDS = 7 * 24 * 3600
MAX_TOKENS = 10_000
MAX_DESCRIPTION = 200
NOTE_USE_SECONDS = 600
"""Store the time of last use at most this often, so that a call costs no write."""
_NEW = "ask an admin of the pool for a new one: gpushare pool api-token"


class ApiTokens:
    """Keep the API tokens of one pool in memory and in the store.

    Only the leading coordinator changes them.
    """

    def __init__(self, store: JobStore, epoch: Callable[[], int]) -> None:
        self._records = TokenRecords(store, epoch, PREFIX, ApiRecord.read)
        self._tokens: dict[str, StoredToken[ApiRecord]] = {}
        self._used: dict[str, float] = {}

    async def load(self) -> None:
        """Read the tokens from the store.

        Call this before the first request, and again when another coordinator may have written.
        """
        self._tokens = await self._records.all()

    async def make(
        self,
        by: str,
        now: float,
        *,
        person: str,
        scopes: Sequence[str] = (),
        valid_seconds: int = 0,
        description: str = "",
        admins: frozenset[str] = frozenset(),
    ) -> tuple[ApiToken, ApiRecord]:
        """Make a token; return the token, shown only now, and the record that the pool keeps.

        Raises RequestError, LimitReached.
        """
        chosen = _scopes(scopes)
        _check(person, chosen, admins, valid_seconds, description)
        if len(self._tokens) >= MAX_TOKENS:
            raise LimitReached(f"there are {MAX_TOKENS} API tokens already", hint="revoke some, or wait")
        token = ApiToken(new_id(), new_secret())
        record = ApiRecord(
            id=token.id,
            hashed=hash_of(token.secret),
            person=person,
            scopes=chosen,
            created_at=now,
            expires_at=now + (valid_seconds or DEFAULT_SECONDS),
            description=description,
            made_by=by,
        )
        self._tokens[record.id] = await self._records.put(record, 0)
        return token, record

    def recognise(self, token: ApiToken, now: float) -> ApiRecord:
        """Return the record of this token. Raises PermissionRefused."""
        stored = self._tokens.get(token.id)
        if stored is None or not matches(token.secret, stored.record.hashed):
            raise PermissionRefused("this API token is not known here", hint=f"is it of this pool? {_NEW}")
        return self.record(token.id, now)

    def record(self, token_id: str, now: float) -> ApiRecord:
        """Return the record of a token that was recognised before. Raises PermissionRefused."""
        if (problem := self.problem(token_id, now)) is not None:
            raise problem
        self._used[token_id] = now
        return self._tokens[token_id].record

    def problem(self, token_id: str, now: float) -> PermissionRefused | None:
        """Return the fault of a token that was recognised before, or None if the token has none."""
        stored = self._tokens.get(token_id)
        if stored is None or stored.record.revoked_at is not None:
            return PermissionRefused(f"the API token {token_id} was revoked", hint=_NEW)
        if now >= stored.record.expires_at:
            ago = f"{now - stored.record.expires_at:.0f} s ago"
            return PermissionRefused(f"the API token {token_id} expired {ago}", hint=_NEW)
        return None

    async def note_use(self) -> None:
        """Store the times of last use that are newer than the stored ones by ``NOTE_USE_SECONDS`` or more."""
        for token_id, at in list(self._used.items()):
            stored = self._tokens.get(token_id)
            if stored is not None and at - (stored.record.used_at or 0.0) >= NOTE_USE_SECONDS:
                await self._change(token_id, functools.partial(_used_at, at=at))

    async def all(self, now: float) -> list[ApiRecord]:
        """Return all tokens, the newest first, and delete the tokens that expired long ago."""
        for token_id, stored in list(self._tokens.items()):
            if stored.record.expires_at + KEPT_SECONDS < now:
                await self._records.delete(stored.record, stored.revision)
                self._tokens.pop(token_id, None)
                self._used.pop(token_id, None)
        records = [self._with_use(stored.record) for stored in self._tokens.values()]
        return sorted(records, key=lambda record: (-record.created_at, record.id))

    def _with_use(self, record: ApiRecord) -> ApiRecord:
        return replace(record, used_at=self._used.get(record.id, record.used_at))

    async def revoke(self, token_id: str, now: float) -> str:
        """Revoke a token durably, and return a sentence on the revocation.

        Raises NotFound.
        """
        if token_id not in self._tokens:
            raise NotFound(
                f"there is no API token {shown(token_id)}", hint="`gpushare pool tokens` lists them"
            )
        await self._change(token_id, lambda record: replace(record, revoked_at=now))
        return f"API token {token_id} is revoked: from now on it is refused"

    async def _change(self, token_id: str, changed: Callable[[ApiRecord], ApiRecord]) -> None:
        stored = self._tokens[token_id]
        try:
            self._tokens[token_id] = await self._records.put(changed(stored.record), stored.revision)
        except Conflict:
            # Another write of this process changed the record at the same time: apply the change to the newer
            # record.
            newer = await self._records.find(token_id)
            if newer is None:
                self._tokens.pop(token_id, None)
                return
            self._tokens[token_id] = await self._records.put(changed(newer.record), newer.revision)


def _used_at(record: ApiRecord, at: float) -> ApiRecord:
    return replace(record, used_at=at)


def _scopes(names: Sequence[str]) -> tuple[Scope, ...]:
    if not names:
        return DEFAULT_SCOPES
    try:
        return tuple(sorted({Scope(name) for name in names}))
    except ValueError as error:
        raise RequestError(
            f"there is no such scope: {error}", hint=f"there are: {', '.join(Scope)}"
        ) from error


def _check(
    person: str,
    scopes: tuple[Scope, ...],
    admins: frozenset[str],
    valid_seconds: int,
    description: str,
) -> None:
    name, at, realm = person.partition("@")
    if name == "*" or not is_user_name(name) or (at and not is_realm(realm)):
        raise RequestError(
            f"{shown(person)} cannot be a person", hint="give a name of the user table, or USER@REALM"
        )
    if Scope.ADMIN in scopes and person not in admins:
        raise RequestError(
            f"{person} is no admin of the pool, so a token for them cannot have the scope admin",
            hint=f"say so in the coordinator's configuration first: [users.{name}] admin = true",
        )
    if valid_seconds and not MIN_SECONDS <= valid_seconds <= MAX_SECONDS:
        raise RequestError(
            f"an API token cannot be valid for {valid_seconds} s",
            hint=f"give {MIN_SECONDS} s to {MAX_SECONDS // 86400} days: --valid 12h",
        )
    if len(description) > MAX_DESCRIPTION or not description.isprintable():
        raise RequestError(
            "the description is too long, or not one line of text",
            hint=f"use at most {MAX_DESCRIPTION} characters",
        )
