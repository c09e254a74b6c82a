"""Compare two JSON answers of one call: the change between them, for pages that have the older answer.

A change has up to two parts. ``set`` has the top-level fields with other values; ``null`` is a field that is
gone, because no answer has a null of its own. ``lists`` has, for each list whose items carry a unique key,
the items that are new or different, and all keys in their new order if the keys or their order changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Any: the values of JSON.
Json = Mapping[str, Any]

KEYS = ("id", "uuid", "name")
"""These fields may identify the items of a list, the first that fits first."""


def change_of(old: Json, new: Json) -> dict[str, Any]:
    """Return what turns ``old`` into ``new``; empty if both are equal."""
    fields: dict[str, Any] = {name: None for name in old if name not in new}
    lists: dict[str, Any] = {}
    for name, value in new.items():
        before: Any = old.get(name)
        if name in old and before == value:
            continue
        if (key := _key_of(before, value)) is None:
            fields[name] = value
        else:
            lists[name] = _list_change(key, before, value)
    return {part: value for part, value in (("set", fields), ("lists", lists)) if value}


def _list_change(key: str, old: Sequence[Json], new: Sequence[Json]) -> dict[str, Any]:
    before = {item[key]: item for item in old}
    order = [item[key] for item in new]
    # Answers share the items that did not change, and a comparison of an item with itself costs nothing.
    different = [item for item in new if (was := before.get(item[key])) is not item and was != item]
    change: dict[str, Any] = {"key": key, "set": different}
    if order != list(before):
        change["order"] = order
    return change


def _key_of(old: object, new: object) -> str | None:
    """Return the field that identifies each item of both lists; None if no field does."""
    if not isinstance(old, list) or not isinstance(new, list) or not old or not new:
        return None
    return next((key for key in KEYS if _identifies(key, old) and _identifies(key, new)), None)


def _identifies(key: str, items: Sequence[object]) -> bool:
    values = [item.get(key) if isinstance(item, Mapping) else None for item in items]
    return all(isinstance(value, str) and value for value in values) and len(set(values)) == len(values)
