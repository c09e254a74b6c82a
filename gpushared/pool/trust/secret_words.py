"""Tokens as text: ``GSJ1-...`` lets a node join, ``gsp_...`` speaks for a person. Only hashes are kept."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from gpushared.domain.model.errors import PermissionRefused
from gpushared.domain.model.units import shown

SECRET_BYTES = 32
ID_BYTES = 5
JOIN_PREFIX = "GSJ1"
API_PREFIX = "gsp"
_JOIN = re.compile(rf"{JOIN_PREFIX}-([a-z0-9-]{{1,32}})-([a-z2-7]{{52}})-([a-z2-7]{{8}})-([a-z2-7]{{52}})")
_API = re.compile(rf"{API_PREFIX}_([a-z2-7]{{8}})_([a-z2-7]{{52}})")


def new_id() -> str:
    """Eight letters and digits."""
    return _word(secrets.token_bytes(ID_BYTES))


def new_secret() -> str:
    """256 random bits."""
    return _word(secrets.token_bytes(SECRET_BYTES))


def _word(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()


def hash_of(secret: str) -> str:
    """SHA-256 is enough for secrets that nobody chose: there is nothing to guess faster."""
    return hashlib.sha256(secret.encode()).hexdigest()


def matches(secret: str, hashed: str) -> bool:
    """Compare in the same time wherever the two differ."""
    return hmac.compare_digest(hash_of(secret), hashed)


@dataclass(frozen=True, slots=True)
class JoinWords:
    """Hold the content of a join token.

    ``digest``: of the anchor by which the pool's coordinator proves itself.
    """

    pool: str
    digest: str
    id: str
    secret: str

    def __str__(self) -> str:
        return f"{JOIN_PREFIX}-{self.pool}-{self.digest}-{self.id}-{self.secret}"

    def __repr__(self) -> str:
        """Leave out the secret, which has no place in logs and traces."""
        return f"JoinWords(pool={self.pool!r}, id={self.id!r})"


def read_join_token(text: str) -> JoinWords:
    """Raises PermissionRefused."""
    match = _JOIN.fullmatch(text.strip())
    if match is None:
        raise PermissionRefused(
            f"this is no join token of a pool: {shown(text.strip()[:4])}...",
            hint="`gpushare pool token` on the coordinator's machine prints one line that begins with GSJ1-",
        )
    return JoinWords(*match.groups())


@dataclass(frozen=True, slots=True)
class ApiWords:
    """Hold the content of an API token."""

    id: str
    secret: str

    def __str__(self) -> str:
        return f"{API_PREFIX}_{self.id}_{self.secret}"

    def __repr__(self) -> str:
        """Leave out the secret, which has no place in logs and traces."""
        return f"ApiWords(id={self.id!r})"


def read_api_token(text: str) -> ApiWords:
    """Raises PermissionRefused."""
    match = _API.fullmatch(text.strip())
    if match is None:
        raise PermissionRefused(
            "this is no API token", hint="`gpushare pool api-token` makes one; it begins with gsp_"
        )
    return ApiWords(*match.groups())
