"""Leases as JSON and back, read off the dataclasses themselves.

An object is its fields by name. A member of a union of dataclasses also carries ``"kind"``: its class name
in snake_case. Fields that a newer version added are ignored, fields that an older one did not have take
their default, so a field may come or go without a migration; a class may not be renamed without one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from gpushared.domain.lease import Lease

KIND = "kind"

# Any: one codec serves every field type; each closure below narrows it by the type it was made for.
_Convert = Callable[[Any], Any]

_KEPT_ELSEWHERE = frozenset({(Lease, "story")})
"""The story has its own table: a lease that changes state must not rewrite all of it."""

_dump = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class CodecError(ValueError):
    """The text is no lease as this version knows it."""


def lease_to_json(lease: Lease) -> str:
    """The lease without its story, as ASCII. Raises CodecError for a time that is no number."""
    try:
        return _dump(_encoder(Lease)(lease))
    except ValueError as error:
        raise CodecError(f"lease {lease.id}: {error}") from error


def lease_from_json(text: str) -> Lease:
    """The lease with an empty story. Raises CodecError."""
    try:
        lease = _decoder(Lease)(json.loads(text))
    except (json.JSONDecodeError, OverflowError, RecursionError) as error:
        raise CodecError(f"not JSON of ours: {error}") from error
    assert isinstance(lease, Lease)
    return lease


def kind_of(cls: type) -> str:
    """The word that stands for a class in the journal: ``NeverClaimed`` is ``never_claimed``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


# --- to JSON -------------------------------------------------------------------------------------------


@cache
def _encoder(kind: Any) -> _Convert:
    if isinstance(kind, NewType):
        return _encoder(kind.__supertype__)
    if is_dataclass(kind):
        return _object_encoder(kind)
    if get_origin(kind) is tuple:
        item = _encoder(_item_type(kind))
        return lambda value: [item(each) for each in value]
    if members := _union_members(kind):
        return _union_encoder(members)
    if issubclass(kind, StrEnum):
        return str
    _check_plain(kind)
    return lambda value: value


def _object_encoder(cls: Any) -> _Convert:
    parts = [(name, _encoder(kind)) for name, kind, _ in _fields(cls)]
    return lambda value: {name: encode(getattr(value, name)) for name, encode in parts}


def _union_encoder(members: tuple[Any, ...]) -> _Convert:
    if len(members) == 1:
        (encode,) = map(_encoder, members)
        return lambda value: None if value is None else encode(value)
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
        return _tuple_decoder(_decoder(_item_type(kind)))
    if members := _union_members(kind):
        return _union_decoder(members, may_be_none=NoneType in get_args(kind))
    if issubclass(kind, StrEnum):
        return _enum_decoder(kind)
    _check_plain(kind)
    return _plain_decoder(kind)


def _object_decoder(cls: Any) -> _Convert:
    parts = [(name, _decoder(kind), field) for name, kind, field in _fields(cls)]
    required = {name for name, _, field in parts if field.default is MISSING is field.default_factory}

    def convert(data: Any) -> Any:
        if not isinstance(data, dict):
            raise CodecError(f"{cls.__name__} is {data!r}")
        if missing := required - data.keys():
            raise CodecError(f"{cls.__name__} lacks {', '.join(sorted(missing))}")
        return cls(**{name: decode(data[name]) for name, decode, _ in parts if name in data})

    return convert


def _tuple_decoder(item: _Convert) -> _Convert:
    def convert(data: Any) -> Any:
        if not isinstance(data, list):
            raise CodecError(f"a list is {data!r}")
        return tuple(item(each) for each in data)

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
            raise CodecError(f"{kind!r} is none of {', '.join(by_kind)}")
        return by_kind[kind](data)

    return convert


def _enum_decoder(words: type[StrEnum]) -> _Convert:
    def convert(data: Any) -> StrEnum:
        try:
            return words(data)
        except ValueError as error:
            raise CodecError(str(error)) from None

    return convert


def _plain_decoder(kind: type) -> _Convert:
    accepted = (int, float) if kind is float else (kind,)

    def convert(data: Any) -> Any:
        # type(), because True is an int to isinstance().
        if type(data) not in accepted:
            raise CodecError(f"{data!r} is no {kind.__name__}")
        return kind(data)

    return convert


# --- types ---------------------------------------------------------------------------------------------


def _fields(cls: Any) -> list[tuple[str, Any, Field[Any]]]:
    hints = get_type_hints(cls)
    return [(f.name, hints[f.name], f) for f in fields(cls) if (cls, f.name) not in _KEPT_ELSEWHERE]


def _union_members(kind: Any) -> tuple[Any, ...]:
    """The members less None; empty for what is no union."""
    if get_origin(kind) not in (UnionType, Union):
        return ()
    return tuple(member for member in get_args(kind) if member is not NoneType)


def _item_type(kind: Any) -> Any:
    item, rest = get_args(kind)
    assert rest is Ellipsis, f"{kind} is no homogeneous tuple"
    return item


def _check_plain(kind: Any) -> None:
    assert kind in (str, int, float, bool), f"the journal cannot store {kind}"
