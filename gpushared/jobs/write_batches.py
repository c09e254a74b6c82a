"""Cut the writes of a batch of steps into transactions that a store takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpushared.jobs.job_records import Changes
from gpushared.ports.job_store import MAX_OPERATIONS, MAX_TRANSACTION_BYTES, Transaction


@dataclass(slots=True)
class Chunk:
    """One transaction. ``concludes``: so many steps of the batch are wholly written with it."""

    changes: dict[str, bytes | None] = field(default_factory=dict)
    concludes: int = 0
    size: int = 0

    def takes(self, more: Sequence[Changes]) -> bool:
        """Return True if all of these changes fit in, too."""
        keys = self.changes.keys() | {key for changes in more for key in changes}
        size = self.size + sum(map(_size, more))
        return len(keys) <= MAX_OPERATIONS and size <= MAX_TRANSACTION_BYTES

    def add(self, changes: Changes) -> None:
        self.changes.update(changes)
        self.size += _size(changes)

    def transaction(self, epoch: int) -> Transaction:
        puts = {key: value for key, value in self.changes.items() if value is not None}
        deletes = tuple(key for key, value in self.changes.items() if value is None)
        return Transaction(epoch, puts, deletes)


def cut(steps: Sequence[Sequence[Changes]]) -> list[Chunk]:
    """The fewest that keep the order, each record's last change winning; each ``Changes`` in one of them.

    A step that fits in one transaction is not divided. The last one concludes them all; it may be empty.
    """
    chunks = [Chunk()]
    for number, step in enumerate(steps, start=1):
        if chunks[-1].changes and not chunks[-1].takes(step):
            chunks.append(Chunk(concludes=number - 1))
        for changes in step:
            if chunks[-1].changes and not chunks[-1].takes([changes]):
                chunks.append(Chunk(concludes=number - 1))
            chunks[-1].add(changes)
        chunks[-1].concludes = number
    return chunks


def _size(changes: Changes) -> int:
    return sum(len(value or b"") for value in changes.values())
