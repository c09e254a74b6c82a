"""Declare the coordinator's durable memory: a narrow port that SQLite and etcd can both implement.

Records are bytes by key (``job/…``, ``member/…``, ``token/…``), each with the revision of its last change.
Every write is one transaction. It holds only while its writer leads, and only if its comparisons hold. Keys
are in the order of their code points, which is the order of their UTF-8 bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, Protocol, runtime_checkable

from gpushared.domain.model.errors import RequestError, StateConflict, Unavailable

MAX_OPERATIONS = 126
"""Bound comparisons and changes of one transaction together: etcd's own bound (``--max-txn-ops``, 128), of
which a leader needs two."""
MAX_RECORD_BYTES = 256 * 1024
MAX_TRANSACTION_BYTES = 1024 * 1024
"""etcd takes requests up to 1.5 MiB (``--max-request-bytes``)."""
MAX_KEY_BYTES = 512


class StoreUnavailable(Unavailable):
    """The store does not answer or cannot write; nothing of the transaction happened."""


class Deposed(Unavailable):
    """Another coordinator leads: this coordinator must not act any more."""


class Conflict(StateConflict):
    """A record is not as the transaction compared it; nothing of the transaction happened."""


@dataclass(frozen=True, slots=True)
class Record:
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Contents:
    """Hold all records, as they were at ``revision``."""

    revision: int
    records: Mapping[str, Record]


@dataclass(frozen=True, slots=True)
class Transaction:
    """Change all records or none. ``compares`` maps records to their required revision; 0 means no record."""

    epoch: int
    puts: Mapping[str, bytes]
    deletes: tuple[str, ...] = ()
    compares: Mapping[str, int] | None = None

    def check(self) -> None:
        """Raises RequestError for a transaction that a backend may refuse."""
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
    """Raises RequestError for a text that cannot be a key: empty, long, not UTF-8."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise RequestError("a key must be UTF-8") from None
    if not 0 < size <= MAX_KEY_BYTES:
        raise RequestError(f"a key has 1 to {MAX_KEY_BYTES} bytes, not {size}")


@dataclass(frozen=True, slots=True)
class StoreChange:
    """Hold one record's change; ``value`` is None for a deletion."""

    key: str
    value: bytes | None
    revision: int


class JobStore(Protocol):
    """Store records.

    Every call may raise ``StoreUnavailable``, and ``TimedOut`` if the outcome is unknown.
    """

    async def lead(self, above: int = 0) -> int:
        """Become the writer; return the epoch, higher than every earlier epoch and than ``above``.

        A leader gets a new epoch, and nothing of the earlier epoch is written any more, not even writes under
        way. Raises Deposed while another process leads.
        """
        ...

    async def lost(self) -> NoReturn:
        """Wait until another process may lead although this one has not closed, and raise Deposed.

        Wait for ever if the process would have to end first.
        """
        ...

    async def is_behind(self) -> bool | None:
        """Return True if the store once had more than it had when this process began to lead: a copy was put back.

        Return None if nobody knows. Ask the one that leads.
        """
        ...

    async def epoch(self) -> int:
        """Return the highest epoch with which anybody led, or 0."""
        ...

    async def load(self, prefix: str = "") -> Contents:
        """Return all records whose keys have this prefix."""
        ...

    async def page(
        self, prefix: str, limit: int, *, after: str = "", reverse: bool = False
    ) -> tuple[tuple[str, Record], ...]:
        """Return at most ``limit`` records in order, after a key.

        With ``reverse`` from the last, before the key.
        """
        ...

    async def count(self, prefix: str = "") -> int: ...

    async def commit(self, transaction: Transaction) -> int:
        """Write durably; return the revision, a new one if anything changed. Raises Deposed, Conflict.

        The transaction's epoch must be the one of the last ``lead``. Deleting a missing record is no change.
        Raises RequestError if ``Transaction.check`` refuses the transaction.
        """
        ...

    def watch(self, prefix: str, after: int) -> AsyncIterator[StoreChange]:
        """Yield the changes since that revision, in order; one transaction's changes share a revision.

        Raises ``Conflict`` if the store no longer has changes that old: the caller must load again.
        """
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Leader:
    """Name the coordinator that leads, or with an empty name nobody; ``epoch`` is the newest of the store."""

    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class StoreMember:
    """Describe one member of the engine behind a shared store; ``problem`` says why it is not healthy.

    ``version`` is empty if the member does not tell it.
    """

    endpoint: str
    leads: bool = False
    version: str = ""
    size_bytes: int = 0
    problem: str = ""


@runtime_checkable
class SharedStore(JobStore, Protocol):
    """Store records for several coordinators: one leads, and the others follow by ``watch``.

    ``lead`` raises Deposed while another coordinator leads. One that never led may call ``lead`` again.
    """

    heard_at: float
    """When ``watch`` was last known to be complete, by the event loop's clock."""

    async def leader(self) -> Leader:
        """Return who leads now."""
        ...

    def doubt_seconds(self) -> float:
        """Return how long the store has not confirmed that this process leads, if another may lead by now; else 0."""
        ...

    async def announce(self, name: str, facts: bytes) -> None:
        """Show a coordinator's facts to the others, as long as this process lives.

        Call it again now and then: what was announced may have ended.
        """
        ...

    async def announced(self) -> Mapping[str, bytes]:
        """Return the facts of all coordinators that run, by their names."""
        ...

    async def health(self) -> tuple[StoreMember, ...]:
        """Return what each member of the engine says of itself."""
        ...
