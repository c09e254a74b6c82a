"""Keep the pool's allowance, which the node may give by itself, in a file that works without the pool.

The file is written before the node follows a new allowance, and before the coordinator hears that the node
knows it. So a node that starts again, with or without its coordinator, never follows an older allowance.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpushared.api.v1 import link_pb2
from gpushared.daemon.clocks import boottime
from gpushared.daemon.files import make_private_folder, read_private, write_private
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs.node_messages import Contact
from gpushared.domain.leases.events import AllowanceKnown
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.scheduling.allowance import Allowance, Share
from gpushared.node.runtime.loop import Loop
from gpushared.pool.link import codec
from gpushared.storage.records import RecordError, from_json, to_json

log = logging.getLogger(__name__)

ALLOWANCE_FILE = "allowance.json"
PART = "allowance"
"""Troubles name the allowance by this word."""


@dataclass(frozen=True, slots=True)
class StoredAllowance:
    """Hold the coordinator's message as the file has it. ``users``: the pool's projects of each principal."""

    pool: str
    revision: int
    shares: tuple[Share, ...] = ()
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    valid_seconds: float = 0.0
    told_at: float = 0.0

    def allowance(self, realm: str, *, away: bool, ended: bool) -> Allowance:
        """Return the allowance under the names that users of ``realm`` have on this node."""
        names = {name.partition("@")[0]: ones for name, ones in self.users.items() if _is_of(name, realm)}
        return Allowance(self.pool, self.revision, self.shares, names, self.told_at, away, ended)

    def has_ended(self, contact: Contact, boot: str, now: float) -> bool:
        """Return True if there was no contact for ``valid_seconds``.

        After a reboot the time since the last contact is unknown, and counts as too long. With a
        ``valid_seconds`` of 0 the allowance never ends. ``now``: CLOCK_BOOTTIME in seconds.
        """
        if not self.valid_seconds:
            return False
        return contact.boot_id != boot or contact.at is None or now - contact.at > self.valid_seconds


def _is_of(principal: str, realm: str) -> bool:
    return principal.partition("@")[2] == realm


def load_kept(folder: Path, troubles: Troubles) -> StoredAllowance | None:
    """Read the file; return None if there is no allowance or the file is damaged.

    A damaged file raises a trouble. The coordinator sends the allowance anew.
    """
    path = folder / ALLOWANCE_FILE
    try:
        return from_json(StoredAllowance, read_private(path)) if path.exists() else None
    except (RecordError, GpushareError) as error:
        troubles.raised(PART, f"what the pool lets this node give by itself is not known: {error}")
        return None


class AllowanceFile:
    """Take the coordinator's allowance, and tell the node's rules what holds of it."""

    def __init__(
        self,
        folder: Path,
        kept: StoredAllowance | None,
        loop: Loop,
        realm: Callable[[], str],
        connected: Callable[[], bool],
        troubles: Troubles,
    ) -> None:
        """``folder``: the folder of the membership. ``connected`` returns True if the coordinator answers."""
        self.pool = "" if kept is None else kept.pool
        """The node is in this pool. The allowance of another pool is not taken."""
        self._path = folder / ALLOWANCE_FILE
        self._kept = kept
        self._loop = loop
        self._realm = realm
        self._connected = connected
        self._troubles = troubles

    async def told(self, message: link_pb2.Allowance) -> None:
        """Return when the node follows the allowance. Raises ConfigError, Unavailable if a write fails."""
        if self._kept is not None and message.revision <= self._kept.revision:
            return
        kept = StoredAllowance(
            self.pool,
            message.revision,
            codec.read_shares(message),
            {user.principal: tuple(user.projects) for user in message.users},
            message.valid_seconds,
            time.time(),
        )
        await asyncio.to_thread(self._write, kept)
        self._kept = kept
        self._troubles.cleared(PART)
        log.info("allowance revision=%d shares=%d", kept.revision, len(kept.shares))
        await self._loop.send(AllowanceKnown(self._now(kept)))

    def due(self) -> AllowanceKnown | None:
        """Return an event if time or the link's state changed the allowance since the rules heard of it."""
        known, kept = self._loop.state.allowance, self._kept
        if kept is None or (known is not None and known.revision > kept.revision):
            return None
        now = self._now(kept)
        return None if now == known else AllowanceKnown(now)

    async def be_in(self, pool: str) -> None:
        """Note the pool that the node is in now, empty for none; another pool's allowance ends."""
        self.pool = pool
        if self._kept is None or self._kept.pool == pool:
            return
        self._kept = None
        await asyncio.to_thread(self._path.unlink, missing_ok=True)
        await self._loop.send(AllowanceKnown(None))

    def _write(self, kept: StoredAllowance) -> None:
        make_private_folder(self._path.parent)
        write_private(self._path, to_json(StoredAllowance, kept).encode())

    def _now(self, kept: StoredAllowance) -> Allowance:
        state = self._loop.state
        contact = state.contacts.get(kept.pool, Contact())
        ended = kept.has_ended(contact, state.boot_id, boottime())
        return kept.allowance(self._realm(), away=not self._connected(), ended=ended)
