"""Write frozen dataclasses as JSON and read them back, by the classes themselves: for journals and wires.

An object has its fields by name. A member of a union of dataclasses also carries ``"kind"``: its class name
in snake_case. The reader ignores fields of a newer version, and gives fields that an older version lacked
their default, so that a field may come or go without a migration; a class may not be renamed without one. A
field's metadata may say ``{"recorded": False}`` (it is stored elsewhere), ``{"recorded_as": "name"}``
(records have it under another name), or ``{"recorded_beside": True}`` (the fields of that dataclass stand
among the fields of the object).

Types of fields: str, int, float, bool, StrEnum, NewTypes of these, dataclasses, unions of dataclasses, one of
all these or None, tuples of one type, tuples of several types, and mappings from strings to any of these.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NewType, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints, overload

T = TypeVar("T")

KIND = "kind"

# Any: one codec serves every field type; each closure below narrows it by the type it was made for.
_Convert = Callable[[Any], Any]

_dump = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _same(value: Any) -> Any:
    """Encode a value that JSON has as it is, a tuple of such values too. Its callers need not call it."""
    return value


class RecordError(ValueError):
    """Report a text that is no record of this version, or a value that cannot be one."""


def to_json(kind: object, value: object) -> str:
    """Return the value as ASCII. ``kind`` is its dataclass, or a union. Raises RecordError for NaN."""
    try:
        return _dump(_encoder(kind)(value))
    except ValueError as error:
        raise RecordError(f"{type(value).__name__}: {error}") from error


@overload
def from_json(kind: type[T], text: str | bytes) -> T: ...
@overload
def from_json(kind: object, text: str | bytes) -> Any: ...
def from_json(kind: object, text: str | bytes) -> Any:
    """Return the value of a text that ``to_json`` made with the same ``kind``. Raises RecordError."""
    return from_parsed(kind, parsed(text))


def parsed(text: str | bytes) -> Any:
    """Return the JSON of a record. Raises RecordError."""
    try:
        return _parse(text if isinstance(text, str) else text.decode())
    except RecordError:
        raise
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON of ours: {error}") from error


def from_parsed(kind: object, data: object) -> Any:
    """Return the value of JSON that ``parsed`` returned. Raises RecordError."""
    try:
        return _decoder(kind)(data)
    except RecordError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        raise RecordError(f"not JSON of ours: {error}") from error


def kind_of(cls: type) -> str:
    """Return the name of a class in a record: ``NeverClaimed`` is ``never_claimed``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def _no_number(text: str) -> NoReturn:
    raise RecordError(f"{text} is no number")


_parse = json.JSONDecoder(parse_constant=_no_number).decode


# --- to JSON -------------------------------------------------------------------------------------------


@cache
def _encoder(kind: Any) -> _Convert:
    if isinstance(kind, NewType):
        return _encoder(kind.__supertype__)
    if is_dataclass(kind):
        return _object_encoder(kind)
    if get_origin(kind) is tuple:
        return _tuple_encoder(get_args(kind))
    if get_origin(kind) is Mapping:
        item = _encoder(_value_type(kind))
        return lambda value: {str(key): item(each) for key, each in value.items()}
    if members := _union_members(kind):
        return _union_encoder(members)
    if not issubclass(kind, StrEnum):
        _check_plain(kind)
    return _same


def _tuple_encoder(kinds: tuple[Any, ...]) -> _Convert:
    if kinds[1:] == (Ellipsis,):
        item = _encoder(kinds[0])
        return _same if item is _same else lambda value: [item(each) for each in value]
    items = [_encoder(kind) for kind in kinds]
    return lambda value: [encode(each) for encode, each in zip(items, value, strict=True)]


def _object_encoder(cls: Any) -> _Convert:
    parts = [(field.name, _recorded_name(field), _encoder(kind)) for kind, field in _fields(cls)]

    def convert(value: Any) -> Any:
        record: dict[str, Any] = {}
        for name, key, encode in parts:
            item = getattr(value, name)
            if encode is not _same:
                item = encode(item)
            if key:
                record[key] = item
            else:
                record.update(item)
        return record

    return convert


def _union_encoder(members: tuple[Any, ...]) -> _Convert:
    if len(members) == 1:
        (encode,) = map(_encoder, members)
        return _same if encode is _same else lambda value: None if value is None else encode(value)
    for cls in members:
        assert KIND not in cls.__dataclass_fields__, f"a field of {cls} would hide which class it is"
    by_class = {cls: (kind_of(cls), _encoder(cls)) for cls in members}

    def convert(value: Any) -> Any:
        if value is None:
            return None
        kind, encode = by_class[type(value)]
        return {KIND: kind, **encode(value)}

    return convert


# --- from JSON -----------------------------------------------------------------------------------------


@cache
def _decoder(kind: Any) -> _Convert:
    if isinstance(kind, NewType):
        return _decoder(kind.__supertype__)
    if is_dataclass(kind):
        return _object_decoder(kind)
    if get_origin(kind) is tuple:
        return _tuple_decoder(get_args(kind))
    if get_origin(kind) is Mapping:
        return _mapping_decoder(get_args(kind)[0], _decoder(_value_type(kind)))
    if members := _union_members(kind):
        return _union_decoder(members, may_be_none=NoneType in get_args(kind))
    if issubclass(kind, StrEnum):
        return _enum_decoder(kind)
    _check_plain(kind)
    return _plain_decoder(kind)


def _object_decoder(cls: Any) -> _Convert:
    parts = [
        (field.name, _recorded_name(field), _decoder(kind), _checked_by_type(kind))
        for kind, field in _fields(cls)
    ]
    required = {
        _recorded_name(field)
        for _, field in _fields(cls)
        if field.default is MISSING is field.default_factory
    }

    def convert(data: Any) -> Any:
        if not isinstance(data, dict):
            raise RecordError(f"{cls.__name__} is {data!r}")
        if not required <= data.keys():
            raise RecordError(f"{cls.__name__} lacks {', '.join(sorted(required - data.keys()))}")
        values = {}
        for name, key, decode, plain in parts:
            if key in data:
                item = data[key]
                values[name] = item if type(item) is plain else decode(item)
            elif not key:
                values[name] = decode(data)
        return cls(**values)

    return convert


def _checked_by_type(kind: Any) -> Any:
    """Return the type of which each value can be a field of this kind; None if values must be decoded."""
    while isinstance(kind, NewType):
        kind = kind.__supertype__
    return kind if kind in (str, int, bool) else None


def _tuple_decoder(kinds: tuple[Any, ...]) -> _Convert:
    if kinds[1:] == (Ellipsis,):
        item = _decoder(kinds[0])
        return lambda data: tuple(item(each) for each in _listed(data))
    items = [_decoder(kind) for kind in kinds]

    def convert(data: Any) -> Any:
        if len(_listed(data)) != len(items):
            raise RecordError(f"{data!r} has not {len(items)} items")
        return tuple(decode(each) for decode, each in zip(items, data, strict=True))

    return convert


def _listed(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise RecordError(f"a list is {data!r}")
    return data


def _mapping_decoder(key: Any, item: _Convert) -> _Convert:
    key_of = _decoder(key)

    def convert(data: Any) -> Any:
        if not isinstance(data, dict):
            raise RecordError(f"a mapping is {data!r}")
        return {key_of(name): item(each) for name, each in data.items()}

    return convert


def _union_decoder(members: tuple[Any, ...], *, may_be_none: bool) -> _Convert:
    by_kind = {kind_of(cls): _decoder(cls) for cls in members}
    only = _decoder(members[0]) if len(members) == 1 else None

    def convert(data: Any) -> Any:
        if data is None and may_be_none:
            return None
        if only is not None:
            return only(data)
        kind = data.get(KIND) if isinstance(data, dict) else None
        if not isinstance(kind, str) or kind not in by_kind:
            raise RecordError(f"{kind!r} is none of {', '.join(by_kind)}")
        return by_kind[kind](data)

    return convert


def _enum_decoder(enum: type[StrEnum]) -> _Convert:
    members = {str(member): member for member in enum}

    def convert(data: Any) -> StrEnum:
        member = members.get(data) if isinstance(data, str) else None
        if member is None:
            raise RecordError(f"{data!r} is not a valid {enum.__name__}")
        return member

    return convert


def _plain_decoder(kind: type) -> _Convert:
    accepted = (int, float) if kind is float else (kind,)

    def convert(data: Any) -> Any:
        # type(), because True is an int to isinstance().
        if type(data) not in accepted:
            raise RecordError(f"{data!r} is no {kind.__name__}")
        if kind is float and not math.isfinite(data):
            raise RecordError(f"{data!r} is no number")
        return kind(data)

    return convert


# --- types ---------------------------------------------------------------------------------------------


def _fields(cls: Any) -> list[tuple[Any, Field[Any]]]:
    """Return the type and the field of each recorded field of a class."""
    hints = get_type_hints(cls)
    return [(hints[f.name], f) for f in fields(cls) if f.metadata.get("recorded", True)]


def _recorded_name(field: Field[Any]) -> str:
    """Return the field's name in records; empty if its own fields stand there in its place."""
    return "" if field.metadata.get("recorded_beside") else field.metadata.get("recorded_as", field.name)


def _union_members(kind: Any) -> tuple[Any, ...]:
    """Return the union's members without None; empty for a kind that is no union."""
    if get_origin(kind) not in (UnionType, Union):
        return ()
    return tuple(member for member in get_args(kind) if member is not NoneType)


def _value_type(kind: Any) -> Any:
    key, value = get_args(kind)
    key = getattr(key, "__supertype__", key)
    assert issubclass(key, str), f"the keys of {kind} are no words"
    return value


def _check_plain(kind: Any) -> None:
    assert kind in (str, int, float, bool), f"no record can hold {kind}"
