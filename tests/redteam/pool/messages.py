"""Strategies for messages that no honest caller sends, made from the descriptors of the API.

A message begins as an honest one or as an empty one, and some of its fields are set to odd values. Its bytes
are then sent as they are, doubled, cut, with fields that nobody knows, or with text that is no UTF-8.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

MIB = 1 << 20
MANY = 10_000
SHORT_BYTES = 300
"""A value of at most so many bytes is repeated many times: a message of 4 MiB is refused unread."""
NOT_UTF8 = "ÿ"
"""The stage that writes the wire makes bytes of this letter that are no UTF-8."""
WHOLE = (
    *(0, 1, -1, 2, 255, 65_536, 2**31 - 1, 2**31, -(2**31), 2**32 - 1),
    *(2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1),
)
BROKEN = (0.0, -0.0, -1.0, 1.5, 5e-324, 1e18, 1e300, 2.0**63, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    *("", "\0", "a\nb\r", "\x1b[2J\x1b]0;x\a", "\u202egpj.exe", "\\ud800", NOT_UTF8, "x" * MIB, "9" * 5000),
    *("../../x", "/etc/passwd", "%s%n{0}", "'; DROP TABLE jobs; --"),
    *("_", "*", " ", "-1", "1e309", "NaN", "٣"),
)
BYTES = (
    *(b"", b"\0", b"{}", b"[]", b"null", b"\xff\xfe", b'"\\ud800"', b"9" * 5000),
    *(b"[" * 100_000, b"x" * MIB),
)
LEAVES: tuple[Any, ...] = (
    *(None, True, [], {}, "", "\0", "\ud800", "\u202e", "x" * 70_000),
    *(-1, 2**31, 2**63, 10**400, 1e300, 5e-324, float("nan")),
)
"""What stands in the place of a value of a record."""
CHANGES = (
    *(("set",), ("set", "set"), ("set", "drop", "set"), ("drop",)),
    *(("repeat",), ("set", "repeat"), ("drop", "set", "repeat")),
)
"""Of JSON, one after the other."""
UNKNOWN = b"\xfa\xff\x7f\x03abc" + b"\xf8\xff\x7f" + b"\xff" * 9 + b"\x01"
"""Two fields with high numbers: a text, and the largest whole number."""
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


@dataclass(frozen=True)
class AttackerKnowledge:
    """What an attacker knows: honest messages by the names of their types, and words of the pool."""

    honest: Mapping[str, Sequence[Message]]
    words: Sequence[str]


@st.composite
def wires(draw: st.DrawFn, kind: type[Message], known: AttackerKnowledge) -> bytes:
    """Draw the bytes of a message, or what stands in its place."""
    wire = draw(messages(kind, known)).SerializeToString()
    match draw(st.sampled_from(["whole", "whole", "not UTF-8", "unknown", "doubled", "cut", "noise"])):
        case "not UTF-8":
            return wire.replace(NOT_UTF8.encode(), b"\xff\xff")
        case "unknown":
            return wire + UNKNOWN
        case "doubled":
            return wire + draw(messages(kind, known)).SerializeToString()
        case "cut":
            return wire[: draw(st.integers(0, 200))]
        case "noise":
            return draw(st.binary(max_size=64))
    return wire


@st.composite
def messages(draw: st.DrawFn, kind: type[Message], known: AttackerKnowledge) -> Message:
    """Draw a message of the type, of which some fields are odd."""
    honest = known.honest.get(kind.DESCRIPTOR.full_name, ())
    message = kind()
    message.CopyFrom(draw(st.sampled_from([message, *honest, *honest])))
    spoil(draw, message, known)
    return message


def spoil(draw: st.DrawFn, message: Message, known: AttackerKnowledge) -> None:
    """Set some fields of a message, and of the messages in it, to odd values; leave others out."""
    fields = [*(field for field, _ in message.ListFields() for _ in range(3)), *message.DESCRIPTOR.fields]
    if not fields:
        return
    for field in draw(st.lists(st.sampled_from(fields), max_size=3, unique_by=lambda each: each.name)):
        if draw(st.integers(0, 7)) == 0:
            message.ClearField(field.name)
        elif field.is_repeated:
            _spoil_list(draw, message, field, known)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            part = getattr(message, field.name)
            part.SetInParent()
            spoil(draw, part, known)
        else:
            setattr(message, field.name, draw(_values(field, known, getattr(message, field.name))))


def _spoil_list(draw: st.DrawFn, message: Message, field: FieldDescriptor, known: AttackerKnowledge) -> None:
    values = getattr(message, field.name)
    before = list(values)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        assert field.message_type is not None
        one: Any = draw(messages(GetMessageClass(field.message_type), known))
        size = one.ByteSize()
    else:
        one = draw(_values(field, known, before[0] if before else None))
        size = len(one) if isinstance(one, str | bytes) else 8
    times = draw(st.sampled_from([1, 2, MANY if size <= SHORT_BYTES else 3]))
    values.extend([one] * times)


def _values(field: FieldDescriptor, known: AttackerKnowledge, before: Any) -> st.SearchStrategy[Any]:
    """Strategy of values of a field that holds no message."""
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return st.sampled_from(BROKEN) | st.floats()
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return st.sampled_from(BYTES) | st.binary(max_size=64) | altered(before or b"{}")
        case FieldDescriptor.CPPTYPE_STRING:
            return texts(known, before or "")
    least, most = _RANGES[field.cpp_type]
    return st.sampled_from([number for number in WHOLE if least <= number <= most])


def texts(known: AttackerKnowledge, before: str) -> st.SearchStrategy[str]:
    """Strategy of odd texts, of words that the pool knows, and of one behind the other."""
    word, odd = st.sampled_from([*known.words, before]), st.sampled_from(TEXTS)
    behind = st.tuples(st.just(before), odd).map("".join)
    return st.one_of(odd, word, word, behind, st.tuples(word, odd).map("".join), st.text(max_size=20))


# --- JSON in the fields of messages ----------------------------------------------------------------------


def altered(data: bytes) -> st.SearchStrategy[bytes]:
    """Strategy of the JSON of a record with odd values in some of its places."""
    try:
        content = json.loads(data)
    except ValueError:
        return _damaged(data)
    return _altered(content)


@st.composite
def _damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Draw the bytes with one of them, or what follows it, replaced."""
    place = draw(st.integers(0, max(0, len(data) - 1)))
    return (
        data[:place]
        + draw(st.binary(min_size=1, max_size=2))
        + draw(st.sampled_from([data[place + 1 :], b""]))
    )


@st.composite
def _altered(draw: st.DrawFn, content: Any) -> bytes:
    """Draw the content with odd values. No change follows a repetition: it would change each of many."""
    content = copy.deepcopy(content)
    for what in draw(st.sampled_from(CHANGES)):
        places = list(_places(content))
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        match what:
            case "set":
                holder[key] = draw(st.sampled_from(LEAVES))
            case "drop":
                del holder[key]
            case "repeat":
                holder[key] = [holder[key]] * (MANY if len(json.dumps(holder[key])) <= SHORT_BYTES else 3)
    return json.dumps(content).encode()


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Each place of a value, as the object or list that holds the value, and its key there."""
    match content:
        case dict():
            items = [*content.items()]
        case list():
            items = [*enumerate(content)]
        case _:
            return
    for key, value in items:
        yield content, key
        yield from _places(value)
