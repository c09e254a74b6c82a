"""Keep a sorted sequence that never changes: each change makes a new one that shares nearly everything."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound="tuple[Any, ...]")

CHUNK = 512


class PersistentSortedList(Generic[T]):
    """Keep distinct tuples in order, in chunks; a change copies one chunk and the list of chunks."""

    __slots__ = ("_chunks",)

    def __init__(self, items: Iterable[T] = ()) -> None:
        ordered = sorted(items)
        self._chunks = tuple(
            tuple(ordered[at : at + CHUNK // 2]) for at in range(0, len(ordered), CHUNK // 2)
        )

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from chunk

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __contains__(self, item: T) -> bool:
        chunk = self._chunks[self._at(item)] if self._chunks else ()
        index = bisect_left(chunk, item)
        return index < len(chunk) and chunk[index] == item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PersistentSortedList) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of lists: nobody needs it, and it would cost

    def __repr__(self) -> str:
        return f"PersistentSortedList({list(self)!r})"

    def first(self) -> T | None:
        return self._chunks[0][0] if self._chunks else None

    def since(self, start: tuple[Any, ...]) -> Iterator[T]:
        """Yield the items that do not come before ``start``, which may be the beginning of an item."""
        at = bisect_right(self._chunks, start, key=_first) - 1 if self._chunks else 0
        for chunk in islice(self._chunks, max(0, at), None):
            yield from islice(chunk, bisect_left(chunk, start), None)

    def put(self, item: T) -> PersistentSortedList[T]:
        """Return the list with this item."""
        if not self._chunks:
            return self._with(0, 0, ((item,),))
        at = self._at(item)
        chunk = self._chunks[at]
        index = bisect_left(chunk, item)
        if index < len(chunk) and chunk[index] == item:
            return self
        longer = (*chunk[:index], item, *chunk[index:])
        halves = (longer,) if len(longer) <= CHUNK else (longer[: CHUNK // 2], longer[CHUNK // 2 :])
        return self._with(at, at + 1, halves)

    def drop(self, item: T) -> PersistentSortedList[T]:
        """Return the list without this item."""
        if not self._chunks:
            return self
        at = self._at(item)
        chunk = self._chunks[at]
        index = bisect_left(chunk, item)
        if index == len(chunk) or chunk[index] != item:
            return self
        shorter = chunk[:index] + chunk[index + 1 :]
        return self._with(at, at + 1, (shorter,) if shorter else ())

    def _at(self, item: T) -> int:
        """Return the chunk that holds the item, or would hold it."""
        return max(0, bisect_right(self._chunks, item, key=_first) - 1)

    def _with(self, start: int, end: int, chunks: tuple[tuple[T, ...], ...]) -> PersistentSortedList[T]:
        changed_list: PersistentSortedList[T] = PersistentSortedList.__new__(PersistentSortedList)
        changed_list._chunks = self._chunks[:start] + chunks + self._chunks[end:]
        return changed_list


def _first(chunk: tuple[T, ...]) -> T:
    return chunk[0]
