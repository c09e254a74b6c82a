"""Share a pool's authority among its coordinators, by the store that they share.

The record of signatures is one record of the store a line. The anchors' keys are secret, and whoever keeps
the store must not be able to sign: they are encrypted with a key that is only in the coordinators' folders.
The anchors are written last: without them the first coordinator's lines are not all in the store yet.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gpushared.daemon.files import read_private, write_private
from gpushared.domain.model.errors import ConfigError, TimedOut
from gpushared.pool.trust.authority import Authority
from gpushared.pool.trust.certificate_status import Line, SignatureLog
from gpushared.ports.job_store import MAX_OPERATIONS, Conflict, JobStore, Transaction

log = logging.getLogger(__name__)

LEDGER = "trust/ledger/"
ANCHORS = "trust/anchors"
TRUST = "trust/"
KEY_FILE = "store.key"
KEY_BYTES = 32
NONCE_BYTES = 12


class SharedTrust:
    """Keep an authority and its ledger as the store has them. ``epoch`` returns the leading coordinator's."""

    def __init__(
        self,
        folder: Path,
        authority: Authority,
        ledger: SignatureLog,
        store: JobStore,
        epoch: Callable[[], int],
    ) -> None:
        self._folder = folder
        self._authority = authority
        self._ledger = ledger
        self._store = store
        self._epoch = epoch
        self._next_line = 0
        self._turn = asyncio.Lock()
        """A line that is written while the lines are read must not be forgotten."""

    async def load(self) -> bool:
        """Take over what the store has; return True if the anchors are others now.

        Raises ConfigError without the key of this pool's coordinators, and the store's errors.
        """
        async with self._turn:
            return await self._load()

    async def _load(self) -> bool:
        stored = await self._store.load(TRUST)
        anchors = stored.records.get(ANCHORS)
        if anchors is None:
            return False
        lines = {
            key: record.value
            for key, record in stored.records.items()
            if key.startswith(LEDGER) and key.removeprefix(LEDGER).isdecimal()
        }
        self._ledger.take(lines[key] for key in sorted(lines))
        self._next_line = 1 + max((int(key.removeprefix(LEDGER)) for key in lines), default=-1)
        content = await asyncio.to_thread(self._decrypted, anchors.value)
        if content == self._authority.content():
            return False
        if self._authority.is_newer_than(content):
            log.warning("the pool's authority in %s is newer than the store's, and stays", self._folder)
            return False
        await asyncio.to_thread(self._authority.take, content)
        return True

    async def begin(self, epoch: int) -> None:
        """Put into the store what only this leading coordinator's folder has. Raises the store's errors."""
        async with self._turn:
            if (anchors := (await self._store.load(ANCHORS)).records.get(ANCHORS)) is not None:
                # The store may have been put back from a copy that is older than the authority.
                if self._authority.is_newer_than(await asyncio.to_thread(self._decrypted, anchors.value)):
                    await self._publish(epoch)
                return
            rest = tuple((await self._store.load(LEDGER)).records)  # of a coordinator that ended amid this
            for first in range(0, len(rest), MAX_OPERATIONS):
                part = rest[first : first + MAX_OPERATIONS]
                await self._store.commit(Transaction(epoch, {}, deletes=part))
            lines = await asyncio.to_thread(self._ledger.lines_of_file)
            for first in range(0, len(lines), MAX_OPERATIONS):
                numbered = enumerate(lines[first : first + MAX_OPERATIONS], start=first)
                puts = {_line_key(number): line for number, line in numbered}
                await self._store.commit(Transaction(epoch, puts))
            self._next_line = len(lines)
            await asyncio.to_thread(make_store_key, self._folder)
            await self._publish(epoch)

    async def append(self, line: Line) -> None:
        """Write a line durably, and apply it. Raises Unavailable, TimedOut: then nobody may act on it."""
        async with self._turn:
            key = _line_key(self._next_line)
            puts = {key: json.dumps(line).encode()}
            try:
                await self._store.commit(Transaction(self._epoch(), puts, compares={key: 0}))
            except (Conflict, TimedOut):
                # An earlier line whose write was in doubt is there.
                await self._load()
                raise
            self._next_line += 1
            self._ledger.apply(line)

    async def publish_anchors(self) -> None:
        """Let all coordinators trust the authority's anchors. Raises the store's errors, ConfigError."""
        await self._publish(self._epoch())

    async def _publish(self, epoch: int) -> None:
        sealed = await asyncio.to_thread(self._encrypted, self._authority.content())
        await self._store.commit(Transaction(epoch, {ANCHORS: sealed}))

    def _encrypted(self, content: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + AESGCM(self._key()).encrypt(nonce, content, ANCHORS.encode())

    def _decrypted(self, sealed: bytes) -> bytes:
        try:
            key = AESGCM(self._key())
            return key.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], ANCHORS.encode())
        except (InvalidTag, ValueError) as error:
            raise ConfigError(
                f"{self._folder / KEY_FILE} is not the key of the pool in the store", hint=self._hint
            ) from error

    def _key(self) -> bytes:
        path = self._folder / KEY_FILE
        if not path.exists():
            raise ConfigError(
                f"the pool's authority is in the store, and its key {path} is missing", hint=self._hint
            )
        return read_private(path)

    @property
    def _hint(self) -> str:
        return f"copy the folder {self._folder} from a coordinator that leads or has led this pool"


def make_store_key(folder: Path) -> bytes:
    """Return the key in the folder, which is made if there is none. Raises ConfigError, Unavailable."""
    path = folder / KEY_FILE
    if not path.exists():
        write_private(path, secrets.token_bytes(KEY_BYTES))
    return read_private(path)


def _line_key(number: int) -> str:
    return f"{LEDGER}{number:09d}"
