"""Generate TypeScript declarations of the daemons' messages as JSON, for the checks of the page's JavaScript.

The argument is a FileDescriptorSet. The declarations are written to the standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet

_NOT_FOR_PAGES = {"link"}
_TEXT = {FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BYTES}
_LONG = {FieldDescriptorProto.TYPE_INT64, FieldDescriptorProto.TYPE_UINT64}
_KEPT_WORDS = {"Event": "GpuEvent", "Node": "NodeMessage"}
"""The browser has types of these names."""


def main() -> None:
    """Write an interface for each message."""
    files = FileDescriptorSet.FromString(Path(sys.argv[1]).read_bytes())
    sys.stdout.write(
        "// Generated from proto/ by scripts/proto; do not edit. 64-bit integers are strings in JSON.\n"
    )
    for file in files.file:
        if Path(file.name).stem not in _NOT_FOR_PAGES:
            for message in file.message_type:
                sys.stdout.writelines(f"{line}\n" for line in _interface(message))


def _interface(message: DescriptorProto) -> Iterator[str]:
    yield f"interface {_name(message.name)} {{"
    for field in message.field:
        absent = field.proto3_optional or _is_one_message(field)
        yield f"  {field.name}{'?' if absent else ''}: {_type(field)};"
    yield "}"


def _is_one_message(field: FieldDescriptorProto) -> bool:
    is_list = field.label == FieldDescriptorProto.LABEL_REPEATED
    return field.type == FieldDescriptorProto.TYPE_MESSAGE and not is_list


def _type(field: FieldDescriptorProto) -> str:
    if field.type == FieldDescriptorProto.TYPE_MESSAGE:
        word = _name(field.type_name.rsplit(".", 1)[-1])
    elif field.type in _TEXT | _LONG:
        word = "string"
    else:
        word = "boolean" if field.type == FieldDescriptorProto.TYPE_BOOL else "number"
    return word + ("[]" if field.label == FieldDescriptorProto.LABEL_REPEATED else "")


def _name(name: str) -> str:
    return _KEPT_WORDS.get(name, name)


main()
