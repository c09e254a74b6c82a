"""Let browsers in: one-time codes, which become sessions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class User:
    """Name the user of a code or a session. A coordinator's users have no uid here (``NOBODY_HERE``)."""

    uid: int
    gid: int
    name: str


@dataclass(frozen=True, slots=True)
class Session:
    """Hold a session; ``key`` is the hash of its cookie."""

    key: str
    user: User
    expires_at: float


class Logins:
    """Hold codes and sessions."""
