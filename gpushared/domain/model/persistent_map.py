"""Keep a mapping that never changes: each change makes a new one that shares nearly everything with the old.

Entries lie in chunks by their hash. A change copies one chunk and the list of chunks, so that with a hundred
thousand entries a change costs a few microseconds, while copying a dict would cost a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

CHUNKS = 256
"""The number is a power of two: the place of a key is its hash's last bits."""
_EMPTY: list[dict[object, object]] = [{}] * CHUNKS


class PersistentMap(Mapping[K, V]):
    """Map keys to values in no order: a caller that decides by the order must sort."""

    __slots__ = ("_chunks", "_size")

    def __init__(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        chunks: dict[int, dict[K, V]] = {}
        for key, value in pairs:
            chunks.setdefault(hash(key) & (CHUNKS - 1), {})[key] = value
        self._chunks: list[dict[K, V]] = [chunks.get(at, {}) for at in range(CHUNKS)] if chunks else _empty()
        self._size = sum(map(len, chunks.values()))

    def __getitem__(self, key: K) -> V:
        return self._chunks[hash(key) & (CHUNKS - 1)][key]

    def __contains__(self, key: object) -> bool:
        return key in self._chunks[hash(key) & (CHUNKS - 1)]

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...
    def get(self, key: K, /, default: V | D | None = None) -> V | D | None:
        """Return the value of a key. The mixin of ``Mapping`` raises and catches an error for a missing key."""
        return self._chunks[hash(key) & (CHUNKS - 1)].get(key, default)

    def __iter__(self) -> Iterator[K]:
        for chunk in self._chunks:
            yield from chunk

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self)!r})"

    def put(self, key: K, value: V) -> PersistentMap[K, V]:
        """Return the mapping with this entry."""
        at = hash(key) & (CHUNKS - 1)
        return self._with(at, {**self._chunks[at], key: value})

    def drop(self, key: K) -> PersistentMap[K, V]:
        """Return the mapping without this entry."""
        at = hash(key) & (CHUNKS - 1)
        if key not in self._chunks[at]:
            return self
        chunk = dict(self._chunks[at])
        del chunk[key]
        return self._with(at, chunk)

    def changed_since(self, before: PersistentMap[K, V]) -> set[K]:
        """Return the keys whose values are other objects than before, or that came or went.

        The cost follows the size of the change if the one mapping was made from the other.
        """
        changed_keys: set[K] = set()
        for chunk, old in zip(self._chunks, before._chunks, strict=True):
            if chunk is not old:
                absent = object()
                keys = chunk.keys() | old.keys()
                changed_keys |= {key for key in keys if chunk.get(key, absent) is not old.get(key, absent)}
        return changed_keys

    def _with(self, at: int, chunk: dict[K, V]) -> PersistentMap[K, V]:
        changed_map: PersistentMap[K, V] = PersistentMap.__new__(PersistentMap)
        changed_map._chunks = self._chunks.copy()
        changed_map._chunks[at] = chunk
        changed_map._size = self._size + len(chunk) - len(self._chunks[at])
        return changed_map


def _empty() -> list[dict[K, V]]:
    return _EMPTY  # type: ignore[return-value]  # nobody changes it, so that it is empty for all types
