"""Write tokens as text, and keep them in the coordinator's store without their secrets."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from gpushared.domain.model.errors import PermissionRefused, Unavailable
from gpushared.domain.model.units import shown
from gpushared.ports.job_store import JobStore, Transaction

SECRET_BYTES = 32
ID_BYTES = 5
TOKENS = "token/"
"""Records of all kinds of tokens are below this prefix."""
JOIN_PREFIX = "GSJ1"
API_PREFIX = "gsp"
_JOIN = re.compile(rf"{JOIN_PREFIX}-([a-z0-9-]{{1,32}})-([a-z2-7]{{52}})-([a-z2-7]{{8}})-([a-z2-7]{{52}})")
_API = re.compile(rf"{API_PREFIX}_([a-z2-7]{{8}})_([a-z2-7]{{52}})")


class Scope(StrEnum):
    """Name the purposes of an API token."""

    SUBMIT = "submit"
    """The caller may submit jobs, and enter the containers of their own jobs."""
    READ = "read"
    """The caller may see jobs, nodes, and why a job waits."""
    CANCEL = "cancel"
    """The caller may cancel, hold and release their own jobs."""
    LOGS = "logs"
    """The caller may read the output of their own jobs."""
    ADMIN = "admin"
    """The caller, who must be an admin, may do all of this with everybody's jobs and administer the pool."""


@dataclass(frozen=True, slots=True)
class JoinRecord:
    """Record a join token. Times are epoch seconds; ``used_at`` is None before the use.

    An empty ``node`` allows any name.
    """

    id: str
    hashed: str
    created_at: float
    expires_at: float
    node: str = ""
    realms: tuple[str, ...] = ()
    made_by: str = ""
    used_at: float | None = None
    used_by: str = ""
    used_key: str = ""
    """Hold the digest of the key for which the token was used: a second call with the same key gets the same
    answer."""
    revoked_at: float | None = None

    @classmethod
    def read(cls, data: dict[str, Any]) -> JoinRecord:
        return cls(**{**data, "realms": tuple(data["realms"])})


@dataclass(frozen=True, slots=True)
class ApiRecord:
    """Record an API token. Times are epoch seconds; ``used_at`` is None before the first use."""

    id: str
    hashed: str
    person: str
    scopes: tuple[Scope, ...]
    created_at: float
    expires_at: float
    description: str = ""
    made_by: str = ""
    used_at: float | None = None
    revoked_at: float | None = None

    @classmethod
    def read(cls, data: dict[str, Any]) -> ApiRecord:
        return cls(**{**data, "scopes": tuple(Scope(scope) for scope in data["scopes"])})


class _TokenRecord(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def expires_at(self) -> float: ...


_R = TypeVar("_R", bound=_TokenRecord)


@dataclass(frozen=True, slots=True)
class StoredToken(Generic[_R]):
    """Hold a record and the revision at which it was read.

    Revision 0 means that the store has no record yet.
    """

    record: _R
    revision: int = 0


class TokenRecords(Generic[_R]):
    """Read and write all tokens of one kind, in the store below ``prefix``.

    ``epoch`` returns the epoch of the coordinator that writes.
    """

    def __init__(
        self, store: JobStore, epoch: Callable[[], int], prefix: str, read: Callable[[dict[str, Any]], _R]
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._prefix = prefix
        self._read = read

    async def all(self) -> dict[str, StoredToken[_R]]:
        """Return all tokens by id, also the tokens that have ended."""
        contents = await self._store.load(self._prefix)
        return {
            key.removeprefix(self._prefix): StoredToken(self._parsed(key, record.value), record.revision)
            for key, record in contents.records.items()
        }

    async def find(self, token_id: str) -> StoredToken[_R] | None:
        """Return the token as the store has it now."""
        key = self._prefix + token_id
        record = (await self._store.load(key)).records.get(key)
        return None if record is None else StoredToken(self._parsed(key, record.value), record.revision)

    async def put(self, record: _R, revision: int) -> StoredToken[_R]:
        """Write a record. Raises Conflict if the record changed since that revision; then nothing changes."""
        key = self._prefix + record.id
        value = json.dumps(_plain(record)).encode()
        return StoredToken(record, await self._commit({key: value}, (), {key: revision}))

    async def delete(self, record: _R, revision: int) -> None:
        """Delete a record. Raises Conflict as ``put`` does."""
        key = self._prefix + record.id
        await self._commit({}, (key,), {key: revision})

    async def _commit(
        self, puts: Mapping[str, bytes], deletes: tuple[str, ...], compares: Mapping[str, int]
    ) -> int:
        return await self._store.commit(Transaction(self._epoch(), puts, deletes, compares))

    def _parsed(self, key: str, value: bytes) -> _R:
        try:
            return self._read(json.loads(value))
        except (ValueError, TypeError, KeyError) as error:
            raise Unavailable(
                f"the store's record {key} cannot be read: {error}",
                hint="was it written by a newer version? `gpushared-pool --version` tells ours",
            ) from error


def _plain(record: Any) -> dict[str, Any]:
    return asdict(record)


def new_id() -> str:
    """Return eight random letters and digits."""
    return _base32(secrets.token_bytes(ID_BYTES))


def new_secret() -> str:
    """Return 256 random bits as text."""
    return _base32(secrets.token_bytes(SECRET_BYTES))


def _base32(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()


def hash_of(secret: str) -> str:
    """Return the SHA-256, which is enough for random secrets: nobody can guess them faster."""
    return hashlib.sha256(secret.encode()).hexdigest()


def matches(secret: str, hashed: str) -> bool:
    """Return True if the secret has this hash. The comparison takes the same time wherever the two differ."""
    return hmac.compare_digest(hash_of(secret), hashed)


@dataclass(frozen=True, slots=True)
class JoinToken:
    """Hold the content of a join token.

    ``digest`` is the digest of the anchor by which the pool's coordinator proves itself.
    """

    pool: str
    digest: str
    id: str
    secret: str

    def __str__(self) -> str:
        return f"{JOIN_PREFIX}-{self.pool}-{self.digest}-{self.id}-{self.secret}"

    def __repr__(self) -> str:
        """Leave out the secret, which must not appear in logs and traces."""
        return f"JoinToken(pool={self.pool!r}, id={self.id!r})"


def read_join_token(text: str) -> JoinToken:
    """Read a join token. Raises PermissionRefused."""
    match = _JOIN.fullmatch(text.strip())
    if match is None:
        raise PermissionRefused(
            f"this is no join token of a pool: {shown(text.strip()[:4])}...",
            hint="`gpushare pool token` on the coordinator's machine prints one line that begins with GSJ1-",
        )
    return JoinToken(*match.groups())


@dataclass(frozen=True, slots=True)
class ApiToken:
    """Hold the content of an API token."""

    id: str
    secret: str

    def __str__(self) -> str:
        return f"{API_PREFIX}_{self.id}_{self.secret}"

    def __repr__(self) -> str:
        """Leave out the secret, which must not appear in logs and traces."""
        return f"ApiToken(id={self.id!r})"


def read_api_token(text: str) -> ApiToken:
    """Read an API token. Raises PermissionRefused."""
    match = _API.fullmatch(text.strip())
    if match is None:
        raise PermissionRefused(
            "this is no API token", hint="`gpushare pool api-token` makes one; it begins with gsp_"
        )
    return ApiToken(*match.groups())
