"""Declare settings, and define the kinds of their values: how each is read and written."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from typing import TypeVar

from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.gpu import MIB, WHOLE_PERMILLE
from gpushared.domain.model.units import format_memory, parse_duration, parse_gpus, parse_memory, shown

WHOLE_PERCENT = 100
NONE = "none"
NO_LIMIT = "none"
_TOML_ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\"} | {
    code: f"\\u{code:04x}" for code in (*range(0x20), 0x7F)
}
T = TypeVar("T")

HOUR_SECONDS = 3600


class Wrong(Exception):
    """The value is not one of its kind; the text completes the sentence "<setting> ..."."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class ValueKind(ABC):
    """Read and write one kind of value.

    ``from_text`` makes the value that TOML would give of the text of an environment variable or a flag.
    """

    @property
    @abstractmethod
    def description(self) -> str:
        """Return the kind as the reference names it."""

    @abstractmethod
    def read(self, value: object) -> object:
        """Return the value as the program uses it. Raises Wrong."""

    def from_text(self, text: str) -> object:
        """Return the value for ``read``; a text that cannot be one stays as it is, and ``read`` refuses it."""
        return text

    def write(self, value: object) -> str:
        """Return the value as TOML."""
        return toml_string(str(value))


@dataclass(frozen=True)
class Text(ValueKind):
    """Read any text, or text that ``fits``; ``description`` tells which, and ``hint`` what may be written."""

    description: str = "text"
    fits: Callable[[str], bool] = lambda _: True
    hint: str = ""

    def read(self, value: object) -> object:
        text = _text(value)
        if not self.fits(text):
            raise Wrong(f"must be {self.description}, not {shown(text)}", self.hint)
        return text


@dataclass(frozen=True)
class Choice(ValueKind):
    """Read one word of a closed set."""

    choices: type[StrEnum]

    @property
    def description(self) -> str:
        return " or ".join(f"`{choice}`" for choice in self.choices)

    def read(self, value: object) -> object:
        text = _text(value)
        try:
            return self.choices(text)
        except ValueError:
            raise Wrong(f"must be one of {', '.join(self.choices)}, not {shown(text)}") from None


@dataclass(frozen=True)
class YesOrNo(ValueKind):
    """Read yes or no."""

    description: str = "`true` or `false`"

    def read(self, value: object) -> object:
        if type(value) is not bool:
            raise Wrong(f"must be true or false, not {_describe(value)}")
        return value

    def from_text(self, text: str) -> object:
        return {"true": True, "false": False}.get(text, text)

    def write(self, value: object) -> str:
        return "true" if value else "false"


@dataclass(frozen=True)
class Whole(ValueKind):
    """Read a whole number between bounds that belong to it."""

    lowest: int
    highest: int

    @property
    def description(self) -> str:
        return f"whole number, {self.lowest} to {self.highest}"

    def read(self, value: object) -> object:
        if type(value) is not int:
            raise Wrong(f"must be a whole number, not {_describe(value)}")
        if not self.lowest <= value <= self.highest:
            raise Wrong(f"must be {self.lowest} to {self.highest}, not {value}")
        return value

    def from_text(self, text: str) -> object:
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text

    def write(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True)
class Seconds(Whole):
    """Read whole seconds, as a number or as a duration such as ``90s`` or ``5m``."""

    @property
    def description(self) -> str:
        return f"seconds or a duration like `90s`, {self.lowest} to {self.highest}"

    def read(self, value: object) -> object:
        number = self.from_text(value) if isinstance(value, str) else value
        if isinstance(number, str):
            number = _parse(partial(parse_duration, least=0), number)
        return super().read(number)


@dataclass(frozen=True)
class Number(ValueKind):
    """Read a number with a fraction, between bounds that belong to it."""

    lowest: float
    highest: float

    @property
    def description(self) -> str:
        return f"number, {self.lowest:g} to {self.highest:g}"

    def read(self, value: object) -> object:
        if type(value) not in (int, float):
            raise Wrong(f"must be a number, not {_describe(value)}")
        assert isinstance(value, int | float)
        # Written so that NaN is outside too.
        if not self.lowest <= value <= self.highest:
            raise Wrong(f"must be {self.lowest:g} to {self.highest:g}, not {value}")
        return float(value)

    def from_text(self, text: str) -> object:
        try:
            return float(text)
        except ValueError:
            return text

    def write(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True)
class ByteSize(ValueKind):
    """Read bytes, written like ``300MiB``."""

    highest: int
    description: str = "size like `300MiB`"

    def read(self, value: object) -> object:
        size = _parse(parse_memory, _text(value, 'a size like "300MiB"'))
        if size > self.highest:
            raise Wrong(f"must be at most {format_memory(self.highest)}, not {format_memory(size)}")
        return size

    def write(self, value: object) -> str:
        # In whole MiB, as the parser rounds it, so that reading it back gives the same.
        assert isinstance(value, int)
        return toml_string(f"{value // MIB}MiB")


@dataclass(frozen=True)
class Percent:
    """Hold a part of the machine's own amount."""

    percent: int

    def of(self, whole: float) -> float:
        return whole * self.percent / 100


@dataclass(frozen=True)
class OrPercent(ValueKind):
    """Read a value of another kind, a ``Percent`` of the machine's amount, or ``"none"``, which is 0."""

    kind: ValueKind

    @property
    def description(self) -> str:
        part = f"a part of the machine's like `{toml_string('90%')}`"
        return f"{self.kind.description}, {part}, or `{toml_string(NONE)}`"

    def read(self, value: object) -> object:
        if value == NONE:
            return 0
        if not isinstance(value, str) or not value.endswith("%"):
            return self.kind.read(value)
        if re.fullmatch(r"[0-9]{1,3}%", value) is None or not 1 <= int(value[:-1]) <= WHOLE_PERCENT:
            raise Wrong(f'must be from "1%" to "100%", not {shown(value)}')
        return Percent(int(value[:-1]))

    def from_text(self, text: str) -> object:
        return text if text == NONE or text.endswith("%") else self.kind.from_text(text)

    def write(self, value: object) -> str:
        if isinstance(value, Percent):
            return toml_string(f"{value.percent}%")
        return self.kind.write(value) if value else toml_string(NONE)


@dataclass(frozen=True)
class FileMode(ValueKind):
    """Read permissions of a file, written like ``"0660"``."""

    description: str = 'permissions like `"0660"`'

    def read(self, value: object) -> object:
        text = _text(value, 'permissions like "0660"')
        if re.fullmatch(r"0?[0-7]{3}", text) is None:
            raise Wrong(f'must be permissions like "0660", not {shown(text)}')
        return int(text, 8)

    def write(self, value: object) -> str:
        return toml_string(f"{value:04o}")


@dataclass(frozen=True)
class TextList(ValueKind):
    """Read a list of texts; in one word they are separated by commas."""

    item: Text

    @property
    def description(self) -> str:
        return f"list, each {self.item.description}"

    def read(self, value: object) -> object:
        if not isinstance(value, list):
            raise Wrong(f"must be a list, not {_describe(value)}")
        return tuple(self.item.read(each) for each in value)

    def from_text(self, text: str) -> object:
        return _parts(text)

    def write(self, value: object) -> str:
        assert isinstance(value, tuple)
        return f"[{', '.join(self.item.write(each) for each in value)}]"


@dataclass(frozen=True)
class Table(ValueKind):
    """Read values by name, kept as pairs; in one word ``name=value``, separated by commas.

    A later file's table replaces the whole table of an earlier file.
    """

    name: Text
    item: ValueKind

    @property
    def description(self) -> str:
        return f"table, each name {self.name.description} and each value {self.item.description}"

    def read(self, value: object) -> object:
        if not isinstance(value, dict):
            raise Wrong(f"must be a table, not {_describe(value)}")
        return tuple((self.name.read(name), self.item.read(each)) for name, each in value.items())

    def from_text(self, text: str) -> object:
        pairs = [part.partition("=") for part in _parts(text)]
        return {name.strip(): text.strip() for name, _, text in pairs}

    def write(self, value: object) -> str:
        assert isinstance(value, tuple)
        pairs = [f"{toml_string(name)} = {self.item.write(each)}" for name, each in value]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"


@dataclass(frozen=True)
class GpuNames(ValueKind):
    """Read GPUs by index or UUID, or all of them; kept as texts."""

    description: str = 'list of GPU indexes and UUIDs, or `"all"`'

    def read(self, value: object) -> object:
        names = _parts(value) if isinstance(value, str) else value
        if not isinstance(names, list):
            raise Wrong(f"must be a {self.description}, not {_describe(value)}")
        return tuple(self._name(each) for each in names)

    def write(self, value: object) -> str:
        assert isinstance(value, tuple)
        return f"[{', '.join(toml_string(each) for each in value)}]"

    def _name(self, value: object) -> str:
        name = str(value) if type(value) is int else value
        if not isinstance(name, str) or re.fullmatch(r"all|[0-9]{1,4}|GPU-[0-9A-Za-z-]{1,60}", name) is None:
            raise Wrong(f"must be a {self.description}, not {_describe(value)}")
        return name


@dataclass(frozen=True)
class GpuAmount(ValueKind):
    """Read GPUs and parts of them, such as ``2`` or ``1.5``; kept in permille, 1000 are one GPU.

    ``optional``: the word ``none`` is allowed too.
    """

    optional: bool = False

    @property
    def description(self) -> str:
        return "GPUs like `2` or `1.5`" + (f", or `{toml_string(NO_LIMIT)}`" if self.optional else "")

    def read(self, value: object) -> object:
        if self.optional and value == NO_LIMIT:
            return None
        if type(value) in (int, float):
            value = repr(value)
        try:
            return parse_gpus(_text(value, self.description))
        except RequestError as error:
            raise Wrong(f"must be {self.description}: {error.message}") from None

    def write(self, value: object) -> str:
        if value is None:
            return toml_string(NO_LIMIT)
        assert isinstance(value, int)
        return f"{value / WHOLE_PERMILLE:g}"


def toml_string(text: str) -> str:
    """Return a basic string (https://toml.io/en/v1.0.0#string)."""
    return f'"{text.translate(_TOML_ESCAPES)}"'


def is_absolute(text: str) -> bool:
    return text.startswith("/") and "\0" not in text


PATH = Text("an absolute path", is_absolute)
PATH_OR_EMPTY = Text("an absolute path, or empty", lambda text: not text or is_absolute(text))
GROUP = Text("the name of a group", lambda text: bool(text) and not set(text) & set(" \t\n:,/"))


def _text(value: object, description: str = "text") -> str:
    if not isinstance(value, str):
        raise Wrong(f"must be {description}, not {_describe(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Wrong("must be UTF-8") from None
    return value


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse(parse: Callable[[str], int], text: str) -> int:
    try:
        return parse(text)
    except RequestError as error:
        raise Wrong(f"is wrong: {error.message}; {error.hint}") from None


def _describe(value: object) -> str:
    """Return TOML's name for a value, with the value itself if that is short."""
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f"the text {shown(value)}"
    if isinstance(value, bool):
        return str(value).lower()
    return shown(str(value))


def setting(default: T, kind: ValueKind, doc: str, *, key: str = "", at_start: bool = False) -> T:
    """Return a dataclass field that is a setting, annotated as its value, as ``dataclasses.field`` is.

    ``at_start``: the daemon uses the value of its start, and a reload does not change it.
    """
    return field(default=default, metadata={"kind": kind, "doc": doc, "key": key, "at_start": at_start})


@dataclass(frozen=True, slots=True)
class Key:
    """Describe one setting of a section: ``name`` in the file, ``attribute`` in the program."""

    name: str
    attribute: str
    kind: ValueKind
    doc: str
    default: object
    at_start: bool


def keys_of(section: type) -> dict[str, Key]:
    """Return the settings of a section (or of ``Preset``) by name, in the order of the reference."""
    keys = (
        Key(
            metadata["key"] or entry.name,
            entry.name,
            metadata["kind"],
            metadata["doc"],
            entry.default,
            metadata["at_start"],
        )
        for entry in fields(section)
        if (metadata := entry.metadata)
    )
    return {key.name: key for key in keys}
