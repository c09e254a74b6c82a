"""Write messages as JSON, as protobuf's own mapping has it, in a fraction of its time.

A list of leases has dozens of fields a lease, and a page or a terminal asks for it every second or two. Fields
without a value of their own have the same text each time, so each kind of message has a pattern of them.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

Write = Callable[[Any], Any]
AnyDescriptor = Any
"""Stubs and the fast runtime have two types of descriptors."""

_WRITTEN_AS_TEXT = {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}
_WRITTEN_UNCHANGED = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_BOOL,
}


def json_text(message: Message) -> str:
    """Return the text of a message as an answer shows it."""
    return json.dumps(as_json(message))


def as_json(message: Message) -> dict[str, Any]:
    """Return a message as an answer shows it: all fields but absent messages and absent optional fields.

    A message of a kind that this module does not know is written by protobuf itself.
    """
    if (shape := _shape(message.DESCRIPTOR)) is None:
        return json_format.MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    return shape.fields_of(message)


class _Shape:
    """Know how each field of a kind of message is written."""

    def __init__(self) -> None:
        self.pattern: dict[str, Any] = {}
        """Each field that is always there, with the value that it has if it is not set."""
        self.lists: list[str] = []
        self.writers: dict[int, tuple[str, Write]] = {}

    # Any: JSON.
    def fields_of(self, message: Message) -> dict[str, Any]:
        written = self.pattern.copy()
        for name in self.lists:
            written[name] = []
        for field, value in message.ListFields():
            name, write = self.writers[field.number]
            written[name] = write(value)
        return written


_shapes: dict[str, _Shape | None] = {}


def _shape(descriptor: AnyDescriptor) -> _Shape | None:
    """Return the shape of a kind of message; None if it has a field that is not written here."""
    name = descriptor.full_name
    if name not in _shapes:
        shape = _Shape()
        _shapes[name] = shape  # a message may hold others of its kind
        for field in descriptor.fields:
            writer = _writer(field)
            if writer is None:
                _shapes[name] = None
                break
            shape.writers[field.number] = (field.name, _each(writer) if field.is_repeated else writer)
            if field.is_repeated:
                shape.pattern[field.name] = None
                shape.lists.append(field.name)
            elif not field.has_presence:
                shape.pattern[field.name] = writer(field.default_value)
    return _shapes[name]


def _writer(field: FieldDescriptor) -> Write | None:
    kind = field.message_type
    if kind is not None:
        is_plain = not kind.GetOptions().map_entry and kind.file.package != "google.protobuf"
        shape = _shape(kind) if is_plain else None
        return None if shape is None else shape.fields_of
    if field.cpp_type in _WRITTEN_AS_TEXT:
        return str
    if field.cpp_type in _WRITTEN_UNCHANGED:
        return _itself
    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        return _double
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _base64 if field.type == FieldDescriptor.TYPE_BYTES else _itself
    return None


def _each(write: Write) -> Write:
    return lambda values: [write(value) for value in values]


def _itself(value: Any) -> Any:
    return value


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


_SPECIAL: Mapping[float, str] = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _double(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else _SPECIAL[value]
