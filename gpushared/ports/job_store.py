"""The coordinator's durable memory: a narrow port, made so that SQLite and etcd can both keep it.

Records are bytes by key (``job/…``, ``member/…``, ``token/…``), each with the revision of its last change.
Every write is one transaction that holds only while its writer leads, and only if what it compares is so.
Keys are in the order of their code points, which is that of their UTF-8 bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpushared.domain.model.errors import RequestError, StateConflict, Unavailable

MAX_OPERATIONS = 128
"""Of one transaction, comparisons and changes together: etcd's own bound (``--max-txn-ops``)."""
MAX_RECORD_BYTES = 256 * 1024
MAX_TRANSACTION_BYTES = 1024 * 1024
"""etcd takes requests up to 1.5 MiB (``--max-request-bytes``)."""
MAX_KEY_BYTES = 512


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

    def check(self) -> None:
        """Raises RequestError for what no backend has to take."""
        operations = len(self.puts) + len(self.deletes) + len(self.compares or {})
        if operations > MAX_OPERATIONS:
            raise RequestError(f"{operations} operations are too many for one transaction")
        if not self.puts.keys().isdisjoint(self.deletes) or len(set(self.deletes)) < len(self.deletes):
            raise RequestError("a transaction changes each record once")
        if any(len(value) > MAX_RECORD_BYTES for value in self.puts.values()):
            raise RequestError(f"a record is larger than {MAX_RECORD_BYTES} bytes")
        if sum(map(len, self.puts.values())) > MAX_TRANSACTION_BYTES:
            raise RequestError(f"a transaction is larger than {MAX_TRANSACTION_BYTES} bytes")
        for key in (*self.puts, *self.deletes, *(self.compares or {})):
            check_key(key)


def check_key(key: str) -> None:
    """Raises RequestError for what cannot be a key: empty, long, not UTF-8."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise RequestError("a key must be UTF-8") from None
    if not 0 < size <= MAX_KEY_BYTES:
        raise RequestError(f"a key has 1 to {MAX_KEY_BYTES} bytes, not {size}")


@dataclass(frozen=True, slots=True)
class StoreChange:
    """One record's change; ``value`` None = it was deleted."""

    key: str
    value: bytes | None
    revision: int


class JobStore(Protocol):
    """Errors besides those named: ``StoreUnavailable``, ``TimedOut`` (nobody knows whether it happened)."""

    async def lead(self, above: int = 0) -> int:
        """Become the one who writes. Returns the epoch, higher than every one before and than ``above``.

        Led already: a new epoch, after which nothing of the earlier one is written any more, not even what
        was under way. Raises Deposed while somebody else leads.
        """
        ...

    async def epoch(self) -> int:
        """The highest with which anybody led; 0 where nobody did."""
        ...

    async def load(self, prefix: str = "") -> Contents:
        """All records whose keys begin so."""
        ...

    async def page(
        self, prefix: str, limit: int, *, after: str = "", reverse: bool = False
    ) -> tuple[tuple[str, Record], ...]:
        """At most so many of them in order, those after a key; with ``reverse`` from the last, before it."""
        ...

    async def count(self, prefix: str = "") -> int: ...

    async def commit(self, transaction: Transaction) -> int:
        """Durably; returns the revision, a new one if anything changed. Raises Deposed, Conflict.

        Its epoch is that of the last ``lead``. Deleting what is not there is no change. Raises RequestError
        for what ``Transaction.check`` refuses.
        """
        ...

    def watch(self, prefix: str, after: int) -> AsyncIterator[StoreChange]:
        """The changes since that revision, in order, those of one transaction with the same revision.

        Raises ``Conflict`` where so old changes are not kept any more: load again.
        """
        ...

    async def close(self) -> None: ...
