"""Read the daemon's answers from JSON, without protobuf: the base of the classes in ``v1.messages``.

They are plain classes instead of dataclasses, because importing ``dataclasses`` costs a listing a fifth of
its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpushared.domain.model.errors import Unavailable
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, ClassVar

    Reader = Callable[[Any], Any]

Time = float | None
"""Seconds since the epoch, None if the wire says 0 (not set)."""

WIRE_NAMES = {"lease_class": "class", "job_class": "class"}
"""Attributes that cannot have the name they have on the wire."""

_readers: dict[str, Reader] = {
    "str": str,
    "int": int,  # 64-bit integers arrive as strings in protobuf's JSON
    "float": float,
    "bool": bool,
    "Time": lambda value: float(value) or None,
}


class Message:
    """Read a message: absent fields have their defaults, unknown ones are ignored.

    A subclass declares its fields by annotations with defaults.
    """

    _fields: ClassVar[Mapping[str, tuple[str, Reader]] | None] = None

    def __init_subclass__(cls) -> None:
        _readers[cls.__name__] = cls

    def __init__(self, data: Mapping[str, Any]) -> None:
        try:
            for name, (wire_name, read) in self.fields().items():
                value = data.get(wire_name)
                if value is not None:
                    setattr(self, name, read(value))
        except (AttributeError, TypeError, ValueError) as error:
            raise Unavailable(
                f"the daemon's answer cannot be read ({type(self).__name__}: {error})",
                hint="does `gpushare version` show the same version for client and daemon?",
            ) from error

    @classmethod
    def fields(cls) -> Mapping[str, tuple[str, Reader]]:
        """Return each attribute's name on the wire, and its reader; made when the class is first used."""
        if cls._fields is None:
            cls._fields = {
                name: (WIRE_NAMES.get(name, name), _reader(kind))
                for name, kind in cls.__annotations__.items()
            }
        return cls._fields

    def to_json(self) -> dict[str, Any]:
        """Return all fields by their names on the wire; an empty text is None, as every unknown value."""
        return {wire: _plain(getattr(self, name)) for name, (wire, _) in self.fields().items()}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]  # compared by value and not frozen

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({said})"


class JobMessage(Message):
    """Add to a job what follows from its state."""

    state: str

    @property
    def is_over(self) -> bool:
        return self.state in {"succeeded", "failed", "cancelled"}


def _reader(kind: str) -> Reader:
    name = kind.removesuffix(" | None")
    if name.startswith("tuple["):
        one = _readers[name.removeprefix("tuple[").removesuffix(", ...]")]
        return lambda values: tuple(one(value) for value in values)
    return _readers[name]


def _plain(value: object) -> object:
    if isinstance(value, Message):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return None if value == "" else value
