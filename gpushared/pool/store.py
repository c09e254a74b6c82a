"""The coordinator's durable memory: a narrow port, made so that SQLite and etcd can both keep it.

Records are bytes by key (``job/…``, ``member/…``, ``token/…``), each with the revision of its last change.
Every write is one transaction that holds only while its writer leads, and only if what it compares is so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpushared.domain.errors import StateConflict, Unavailable

MAX_OPERATIONS = 128
"""Of one transaction, comparisons and changes together: etcd's own bound (``--max-txn-ops``)."""
MAX_RECORD_BYTES = 256 * 1024
"""etcd takes requests up to 1.5 MiB (``--max-request-bytes``)."""


class StoreUnavailable(Unavailable):
    """The store does not answer or cannot write; nothing of the transaction happened."""


class Deposed(Unavailable):
    """Somebody else leads: this coordinator must not act any more."""


class Conflict(StateConflict):
    """A record is not as the transaction compared it; nothing of it happened."""


@dataclass(frozen=True, slots=True)
class Record:
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything, as it was at ``revision``."""

    revision: int
    records: Mapping[str, Record]


@dataclass(frozen=True, slots=True)
class Transaction:
    """All or nothing. ``compares``: the revision that a record must have, 0 = there must be none."""

    epoch: int
    puts: Mapping[str, bytes]
    deletes: tuple[str, ...] = ()
    compares: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One record's change; ``value`` None = it was deleted."""

    key: str
    value: bytes | None
    revision: int


class Store(Protocol):
    """Errors besides those named: ``StoreUnavailable``, ``TimedOut`` (nobody knows whether it happened)."""

    async def lead(self) -> int:
        """Become the one who writes. Returns the epoch, higher than every one before. Raises Deposed."""
        ...

    async def load(self, prefix: str = "") -> Contents: ...

    async def commit(self, transaction: Transaction) -> int:
        """Durably; returns the new revision. Raises Deposed, Conflict."""
        ...

    def watch(self, prefix: str, after: int) -> AsyncIterator[Change]:
        """The changes since that revision, in order, those of one transaction with the same revision.

        Raises ``Conflict`` where so old changes are not kept any more: load again.
        """
        ...

    async def close(self) -> None: ...
