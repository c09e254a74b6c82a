"""Describe the fields of the Engine API: the kind of their values, and the API versions that have them.

A table is written as lines of ``Name kind [table] [since] [-until] [option] [= rule]``, versions as ``1.41``;
the option is that of ``docker run``. A field on no table is never sent to the engine, for any caller: the
field is dropped if no engine reads it, and refused if the engine is newer than the table and may read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.domain.model.units import shown

Version = tuple[int, int]
Json = Any
OLDEST: Version = (1, 24)
LONGEST_NAME = 40
SMALLEST, LARGEST = -(2**63), 2**64 - 1
"""The engine's own integers hold these values, signed or not."""


class FieldKind(StrEnum):
    """Name the type into which the engine decodes a value. Null is always allowed, and means no value."""

    FLAG = "flag"
    WHOLE = "whole"
    TEXT = "text"
    TEXTS = "texts"
    WORDS = "words"
    """A list of texts, or one text for a list of one."""
    TEXT_LISTS = "text-lists"
    PAIRS = "pairs"
    """Texts by name."""
    NAMES = "names"
    """Names with an empty object each."""
    SIZE = "size"
    """Height and width."""
    OPAQUE = "opaque"
    """No code reads the value, because no rule lets it pass."""
    RECORD = "record"
    RECORDS = "records"
    RECORD_BY_NAME = "record-by-name"
    RECORDS_BY_NAME = "records-by-name"


@dataclass(frozen=True, slots=True)
class Field:
    """Describe a field.

    ``until`` is the last version that has the field; ``rule`` judges a confined caller's value.
    """

    kind: FieldKind
    table: Table | None = None
    since: Version = OLDEST
    until: Version | None = None
    option: str = ""
    rule: str = ""

    def is_in(self, version: Version | None) -> bool:
        """Return True if the field exists in a version; None stands for a request that names none."""
        return version is None or (self.since <= version and (self.until is None or version <= self.until))


Table = Mapping[str, Field]


def table(text: str, **tables: Table) -> Table:
    """Return the table that ``text`` describes; ``tables`` are the tables that the text names."""
    return MappingProxyType(dict(_field(line, tables) for line in text.strip().splitlines()))


def version_of(text: str) -> Version:
    """Read a version such as ``1.41`` or ``v1.41``."""
    major, minor = text.removeprefix("v").split(".")
    return int(major), int(minor)


def fit(
    body: Mapping[str, Json],
    fields: Table,
    version: Version | None = None,
    *,
    where: str = "",
    left_out: list[str] | None = None,
    dropped: list[str] | None = None,
) -> dict[str, Json]:
    """Return a copy without the fields that the table or the version does not have.

    A field that the request's version does not have is left out, as the engine's description of that version
    promises; its name goes to ``left_out`` if it had a value. Nulls of unknown fields are ignored. The name
    of a field on no table goes to ``dropped``; without ``dropped`` such a field is refused. Raises
    ``PermissionRefused`` for a field on no table, ``RequestError`` for a field that the engine would take for
    another one, and for a value of another kind.
    """
    fitted: dict[str, Json] = {}
    folded = {} if body.keys() <= fields.keys() else {name.casefold(): name for name in fields}
    for name, value in body.items():
        field = fields.get(name)
        if field is None:
            _leave_unknown(name, value, folded, where, dropped)
        elif not field.is_in(version):
            if value and left_out is not None:
                left_out.append(f"{where}{name}")
        else:
            fitted[name] = _fit_value(value, field, version, f"{where}{name}", left_out, dropped)
    return fitted


def respelled(body: Mapping[str, Json], spellings: Mapping[str, str]) -> dict[str, Json]:
    """Return the body with the table's names for fields that a client is known to spell otherwise.

    Raises ``RequestError`` if the body has a field in both spellings: the engine takes the last.
    """
    for other, name in spellings.items():
        if other in body and name in body:
            raise RequestError(f"{name} stands there twice, as {other} too", hint="write it once")
    return {spellings.get(name, name): value for name, value in body.items()}


def _leave_unknown(
    name: str, value: Json, folded: Mapping[str, str], where: str, dropped: list[str] | None
) -> None:
    """Drop or refuse an unknown field.

    ``folded`` gives the table's spelling: engines read a name in any case, by the rules of Unicode.
    """
    if meant := folded.get(name.casefold()):
        raise RequestError(f"{where}{readable(name)} is not a field", hint=f"it is spelled {where}{meant}")
    if value is None:
        return
    if dropped is None:
        raise PermissionRefused(
            f"{where}{readable(name)} is no field that gpushared knows",
            hint="leave it out; trusted users can give it to the engine at its own socket",
        )
    dropped.append(f"{where}{readable(name)}")


def readable(name: str) -> str:
    """Return a client's text in a form that is safe in a message or a log."""
    return name if name.isidentifier() and len(name) <= LONGEST_NAME else shown(name)


def _fit_value(
    value: Json,
    field: Field,
    version: Version | None,
    where: str,
    left_out: list[str] | None,
    dropped: list[str] | None,
) -> Json:
    if value is None:
        return None
    fits, description = _CHECKS[field.kind]
    if not fits(value):
        raise RequestError(f"{where} is not {description}")
    if field.kind is FieldKind.NAMES:
        return {name: {} for name in value}

    def inner(record: Json) -> Json:
        if record is None or field.table is None:
            return record
        return fit(record, field.table, version, where=f"{where}.", left_out=left_out, dropped=dropped)

    match field.kind:
        case FieldKind.RECORD:
            return inner(value)
        case FieldKind.RECORDS:
            return [inner(record) for record in value]
        case FieldKind.RECORD_BY_NAME:
            return {name: inner(record) for name, record in value.items()}
        case FieldKind.RECORDS_BY_NAME:
            return {
                name: records and [inner(record) for record in records] for name, records in value.items()
            }
    return value


def _field(line: str, tables: Mapping[str, Table]) -> tuple[str, Field]:
    columns, _, rule = line.partition(" = ")
    name, kind, *rest = columns.split()
    inner = tables[rest.pop(0)] if rest and rest[0] in tables else None
    since = version_of(rest.pop(0)) if rest and rest[0][0].isdigit() else OLDEST
    until = version_of(rest.pop(0)[1:]) if rest and rest[0][1].isdigit() else None
    option = rest.pop(0) if rest else ""
    assert not rest, f"{name} has words too many"
    return name, Field(FieldKind(kind), inner, since, until, option, rule)


# --- kinds ---------------------------------------------------------------------------------------------


def _is_whole(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and SMALLEST <= value <= LARGEST


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


def _is_object(value: Json) -> bool:
    return isinstance(value, dict)


def _all(fits: Callable[[Json], bool]) -> Callable[[Json], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _each(fits: Callable[[Json], bool]) -> Callable[[Json], bool]:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _or_null(fits: Callable[[Json], bool]) -> Callable[[Json], bool]:
    return lambda value: value is None or fits(value)


def _is_size(value: Json) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_is_whole(n) and n >= 0 for n in value)  # noqa: PLR2004 - height, width


def _checks() -> Iterator[tuple[FieldKind, Callable[[Json], bool], str]]:
    texts = _all(_is_text)
    yield FieldKind.FLAG, lambda value: isinstance(value, bool), "true or false"
    yield FieldKind.WHOLE, _is_whole, "a whole number"
    yield FieldKind.TEXT, _is_text, "a string"
    yield FieldKind.TEXTS, texts, "a list of strings"
    yield FieldKind.WORDS, lambda value: _is_text(value) or texts(value), "a list of strings"
    yield FieldKind.TEXT_LISTS, _all(_or_null(texts)), "a list of lists of strings"
    yield FieldKind.PAIRS, _each(_or_null(_is_text)), "an object of strings"
    yield FieldKind.NAMES, _each(_or_null(_is_object)), "an object of empty objects"
    yield FieldKind.SIZE, _is_size, "a height and a width"
    yield FieldKind.OPAQUE, lambda _: True, "anything"
    yield FieldKind.RECORD, _is_object, "an object"
    yield FieldKind.RECORDS, _all(_or_null(_is_object)), "a list of objects"
    yield FieldKind.RECORD_BY_NAME, _each(_or_null(_is_object)), "an object of objects"
    yield FieldKind.RECORDS_BY_NAME, _each(_or_null(_all(_is_object))), "an object of lists of objects"


_CHECKS = {kind: (fits, description) for kind, fits, description in _checks()}
