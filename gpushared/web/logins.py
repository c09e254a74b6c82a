"""Let browsers in: one-time codes, and the sessions that codes become.

A code and its session are good for one way in only: over the network, or over connections whose user the kernel
names. On the latter they are worth nothing to other users, who may well see them: a code in the list of processes, a
cookie at any port of the same host.

A code lives for minutes in memory. A session lives in one small file too, so that it outlives a restart of the
daemon. Only hashes of codes and cookies are kept: neither a dump of the memory nor the file lets anybody in.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from gpushared.daemon.files import write_private
from gpushared.domain.model.errors import NotLoggedIn, PermissionRefused, Unavailable

log = logging.getLogger(__name__)

CODE_SECONDS = 300.0
SECRET_BYTES = 32
CODES_OF_A_USER = 8
SESSIONS_OF_A_USER = 16
MAX_CODES = 4096
MAX_SESSIONS = 4096
RENEWED_PART = 1 / 16
"""Move a session's end when this part of its time has passed: each move writes the file."""
VERSION = 1
NEW_LINK_HINT = (
    "run `gpushare web` on the machine, and open the link that it prints; for the page's own address on the "
    "network: `gpushare web --link`"
)


@dataclass(frozen=True, slots=True)
class User:
    """Name the user of a code or a session.

    A session that began with an API token of a pool has the token's id, and ``NOBODY_HERE`` for a uid.
    """

    uid: int
    gid: int
    name: str
    token: str = ""

    @property
    def key(self) -> tuple[int, str]:
        """Return what counts as one user: in a user namespace a user has thousands of groups."""
        return self.uid, self.token


@dataclass(frozen=True, slots=True)
class LoginSession:
    """Hold a session; ``key`` is the hash of its cookie, ``expires_at`` is in epoch seconds."""

    key: str
    user: User
    expires_at: float
    network: bool
    """True: the session identifies the user. False: it counts only on connections of its user."""


@dataclass(frozen=True, slots=True)
class _Code:
    user: User
    expires_at: float
    network: bool


_Entry = TypeVar("_Entry", _Code, LoginSession)


class Logins:
    """Hold codes and sessions. At a bound the one that ends first makes room, of the same user if possible."""

    def __init__(
        self, path: Path | None, seconds: Callable[[], float], now: Callable[[], float] = time.time
    ) -> None:
        """Read the file. ``seconds`` returns how long a session lives after its last use."""
        self._path = path
        self._seconds = seconds
        self._now = now
        self._codes: dict[str, _Code] = {}
        self._sessions = {} if path is None else _read(path)
        self._on_end: dict[str, set[Callable[[], None]]] = {}
        self._writing = asyncio.Lock()

    def make_code(self, user: User, *, network: bool = False) -> str:
        """Return a new code, which logs one browser in as the user, by the network or by `gpushare web`."""
        code = secrets.token_urlsafe(SECRET_BYTES)
        self._codes = _without_old(self._codes, self._now())
        for key in _crowding(self._codes, user, CODES_OF_A_USER, MAX_CODES):
            del self._codes[key]
        self._codes[_hash(code)] = _Code(user, self._now() + CODE_SECONDS, network)
        return code

    def use_code(self, code: str, uid: int | None) -> User:
        """Return the code's user. The code is used up, whatever becomes of it.

        ``uid`` is the user that the connection belongs to; None on the network. Raises NotLoggedIn,
        PermissionRefused.
        """
        entry = self._codes.pop(_hash(code), None)
        if entry is None or entry.expires_at <= self._now():
            raise NotLoggedIn("this link was used already, or is older than 5 minutes", hint=NEW_LINK_HINT)
        if uid is not None and uid != entry.user.uid:
            raise PermissionRefused("this link belongs to another user", hint=NEW_LINK_HINT)
        if entry.network != (uid is None):
            raise PermissionRefused("this link leads to another address of the page", hint=NEW_LINK_HINT)
        return entry.user

    async def begin(self, user: User, before: LoginSession | None = None, *, network: bool = False) -> str:
        """Begin a session and return its cookie; ``before`` is the same browser's session, which ends."""
        if before is not None:
            self._drop(before.key)
        cookie = secrets.token_urlsafe(SECRET_BYTES)
        self._expire()
        for key in _crowding(self._sessions, user, SESSIONS_OF_A_USER, MAX_SESSIONS):
            self._drop(key)
        ends = self._now() + self._seconds()
        self._sessions[_hash(cookie)] = LoginSession(_hash(cookie), user, ends, network)
        await self._write()
        return cookie

    def session_of(self, cookie: str) -> LoginSession | None:
        """Return the session of a cookie; None if there is none, or it is over."""
        session = self._sessions.get(_hash(cookie))
        if session is not None and session.expires_at <= self._now():
            self._drop(session.key)
            return None
        return session

    async def renew(self, session: LoginSession) -> bool:
        """Note that a session is used; return True if its end moved, and so must the cookie's."""
        seconds = self._seconds()
        ends = self._now() + seconds
        if session.key not in self._sessions or abs(ends - session.expires_at) < seconds * RENEWED_PART:
            return False
        self._sessions[session.key] = replace(session, expires_at=ends)
        await self._write()
        return True

    async def end(self, session: LoginSession) -> None:
        """End a session and its streams."""
        self._drop(session.key)
        await self._write()

    @property
    def seconds(self) -> float:
        """Return how long a session lives after its last use."""
        return self._seconds()

    @contextmanager
    def while_valid(self, session: LoginSession, on_end: Callable[[], None]) -> Iterator[None]:
        """Call ``on_end`` if the session ends while the block runs."""
        if session.key not in self._sessions:
            on_end()
        callbacks = self._on_end.setdefault(session.key, set())
        callbacks.add(on_end)
        try:
            yield
        finally:
            callbacks.discard(on_end)
            if not callbacks and self._on_end.get(session.key) is callbacks:
                del self._on_end[session.key]

    def _expire(self) -> None:
        now = self._now()
        for session in list(self._sessions.values()):
            if session.expires_at <= now:
                self._drop(session.key)

    def _drop(self, key: str) -> None:
        self._sessions.pop(key, None)
        for on_end in self._on_end.pop(key, ()):
            on_end()

    async def _write(self) -> None:
        """Write the file. If that fails, browsers stay logged in only until the daemon ends."""
        if self._path is None:
            return
        async with self._writing:
            data = {"version": VERSION, "sessions": [asdict(session) for session in self._sessions.values()]}
            try:
                await asyncio.to_thread(write_private, self._path, json.dumps(data).encode())
            except Unavailable as error:
                log.warning("browsers must log in again after a restart: %s", error)


@contextmanager
def needing_a_login() -> Iterator[None]:
    """Turn the refusal of a user who is not there any more into the end of the session."""
    try:
        yield
    except PermissionRefused as error:
        raise NotLoggedIn(error.message, hint=error.hint) from error


def _hash(secret: str) -> str:
    return sha256(secret.encode(errors="replace")).hexdigest()


def _without_old(entries: Mapping[str, _Entry], now: float) -> dict[str, _Entry]:
    return {key: entry for key, entry in entries.items() if entry.expires_at > now}


def _crowding(entries: Mapping[str, _Entry], user: User, of_user: int, most: int) -> list[str]:
    """Return the keys of the entries that must go before the user may have one more."""
    in_order = sorted(entries, key=lambda key: entries[key].expires_at)
    own = [key for key in in_order if entries[key].user.key == user.key]
    if len(own) >= of_user:
        return own[: len(own) - of_user + 1]
    return in_order[: max(0, len(in_order) - most + 1)]


def _read(path: Path) -> dict[str, LoginSession]:
    """Read the sessions; a file that cannot be read has none."""
    try:
        data = json.loads(path.read_bytes())
        sessions = [_session(fields) for fields in data["sessions"]] if data["version"] == VERSION else []
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        log.warning("%s cannot be read, so that browsers must log in again: %s", path, error)
        return {}
    return {session.key: session for session in sessions}


def _session(fields: Any) -> LoginSession:
    user = fields["user"]
    named = User(int(user["uid"]), int(user["gid"]), str(user["name"]), str(user.get("token", "")))
    return LoginSession(str(fields["key"]), named, float(fields["expires_at"]), bool(fields["network"]))
