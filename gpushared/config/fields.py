"""Declare settings: a setting is a dataclass field that knows its kind, its meaning and its key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from gpushared.config.kinds import ValueKind

T = TypeVar("T")

HOUR_SECONDS = 3600


def setting(default: T, kind: ValueKind, doc: str, *, key: str = "") -> T:
    """Return a dataclass field that is a setting, annotated as its value, as ``dataclasses.field`` is."""
    made: Any = field(default=default, metadata={"kind": kind, "doc": doc, "key": key})
    value: T = made
    return value


@dataclass(frozen=True, slots=True)
class Key:
    """Describe one setting of a section: ``name`` in the file, ``attribute`` in the program."""

    name: str
    attribute: str
    kind: ValueKind
    doc: str
    default: object


def keys_of(section: type) -> dict[str, Key]:
    """Return the settings of a section (or of ``Preset``) by name, in the order of the reference."""
    return {key.name: key for key in _keys(section)}


def _keys(section: type) -> Iterator[Key]:
    for made in fields(section):
        if made.metadata:
            yield _key(made)


def _key(made: Field[Any]) -> Key:
    about = made.metadata
    return Key(about["key"] or made.name, made.name, about["kind"], about["doc"], made.default)
