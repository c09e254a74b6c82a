"""Generate the answers of the daemons as plain Python classes, for a client without protobuf.

The arguments are a FileDescriptorSet with source information, and the proto files whose answers are written,
without folder and ending. The module is written to the standard output.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

NOT_FOR_CLIENTS = {"Join", "NodeLink", "Simulation", "Jobs.SubmitBatch"}
"""Tests use the simulation; daemons call the others among themselves."""
CLASS_NAMES = {
    "EndedResponse": "PastLeases",
    "ExportResponse": "ExportPage",
    "ListAuditResponse": "AuditPage",
    "ListGpusResponse": "GpuList",
    "ListJobsResponse": "JobList",
    "ListLeasesResponse": "LeaseList",
    "ListProjectsResponse": "ProjectList",
    "NodesResponse": "NodeList",
    "PastJobsResponse": "PastJobs",
    "PresetsResponse": "PresetList",
    "RecentResponse": "RecentUse",
    "ReportResponse": "Report",
    "UsageResponse": "Usage",
    "WaitsResponse": "Waits",
}
BASES = {"Job": "JobMessage"}
ATTRIBUTES = {"class": "lease_class", "Job.class": "job_class"}
"""Python keeps these words for itself; ``gpushared.api.message`` has the way back."""
ALWAYS_PRESENT = {"Lease", "Job", "Account", "PastLease"}
"""An answer that may hold one of these always does."""
ALWAYS_SET = {
    *("created_at", "submitted_at", "examined_at", "NodeStatus.started_at"),
    *("JoinToken.expires_at", "ApiToken.expires_at", "PoolMembership.expires_at"),
}
"""These times are never 0, so that their readers need not ask."""

HEADER = '''"""Generated from proto/ by scripts/proto; do not edit."""

from __future__ import annotations

from gpushared.api.message import {}
'''
WIDTH = 110
KIND = FieldDescriptorProto
SCALARS = {
    KIND.TYPE_STRING: ("str", '""'),
    KIND.TYPE_BYTES: ("str", '""'),  # in base64, as JSON has it
    KIND.TYPE_BOOL: ("bool", "False"),
    KIND.TYPE_DOUBLE: ("float", "0.0"),
    KIND.TYPE_INT32: ("int", "0"),
    KIND.TYPE_INT64: ("int", "0"),
}
MESSAGE_NUMBER, FIELD_NUMBER = 4, 2
"""The paths of source information lead by these: of a file to its messages, of a message to its fields."""


class Generator:
    """Write each message after those that it holds."""

    def __init__(self, files: Iterable[FileDescriptorProto]) -> None:
        self._messages: dict[str, DescriptorProto] = {}
        self._comments: dict[str, str] = {}
        self._answers: dict[str, str] = {}
        self._written: set[str] = set()
        for file in files:
            self._read(file)

    def _read(self, file: FileDescriptorProto) -> None:
        places = file.source_code_info.location
        paths = {tuple(place.path): " ".join(place.leading_comments.split()) for place in places}
        for number, message in enumerate(file.message_type):
            self._messages[message.name] = message
            self._comments[message.name] = paths.get((MESSAGE_NUMBER, number), "")
            for place, field in enumerate(message.field):
                comment = paths.get((MESSAGE_NUMBER, number, FIELD_NUMBER, place), "")
                self._comments[f"{message.name}.{field.name}"] = comment
        for service in file.service:
            for call in service.method:
                full_name = f"{service.name}.{call.name}"
                if not call.server_streaming and not {service.name, full_name} & NOT_FOR_CLIENTS:
                    self._answers.setdefault(_type_name(call.output_type), full_name)

    def module(self) -> str:
        classes = [text for name in self._answers for text in self._class_and_parts(name)]
        bases = [
            base for base in (*BASES.values(), "Message") if any(f"({base})" in text for text in classes)
        ]
        return "\n\n".join([HEADER.format(", ".join([*bases, "Time"])), *classes])

    def _class_and_parts(self, name: str) -> Iterator[str]:
        if name in self._written:
            return
        self._written.add(name)
        message = self._messages[name]
        for field in message.field:
            if field.type == KIND.TYPE_MESSAGE:
                yield from self._class_and_parts(_type_name(field.type_name))
        doc = self._comments[name] or f"Hold the answer of ``{self._answers[name]}``."
        lines = [f"class {_class_name(name)}({BASES.get(name, 'Message')}):"]
        lines += [*_indented(f'"""{doc}"""'), ""]
        for field in message.field:
            lines += _indented(self._comments[f"{name}.{field.name}"], "    # ")
            lines.append(f"    {_declaration(name, field)}")
        yield "\n".join([*lines, ""])


def _declaration(message: str, field: FieldDescriptorProto) -> str:
    """Return the attribute with its type and its default."""
    full_name = f"{message}.{field.name}"
    name = ATTRIBUTES.get(full_name, ATTRIBUTES.get(field.name, field.name))
    is_message = field.type == KIND.TYPE_MESSAGE
    if is_message:
        type_name = _class_name(_type_name(field.type_name))
        kind, default = type_name, f"{type_name}({{}})"
    else:
        kind, default = SCALARS[field.type]
    if field.label == KIND.LABEL_REPEATED:
        return f"{name}: tuple[{kind}, ...] = ()"
    if field.proto3_optional or (is_message and kind not in ALWAYS_PRESENT):
        return f"{name}: {kind} | None = None"
    if kind == "float" and _is_time(field.name) and not {field.name, full_name} & ALWAYS_SET:
        return f"{name}: Time = None"
    return f"{name}: {kind} = {default}"


def _is_time(name: str) -> bool:
    return name.endswith(("_at", "_since")) or name in {"deadline", "start_from", "start_to"}


def _class_name(message: str) -> str:
    return CLASS_NAMES.get(message, message)


def _type_name(path: str) -> str:
    return path.rpartition(".")[2]


def _indented(text: str, indent: str = "    ") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)


def main() -> None:
    descriptors, *wanted = sys.argv[1:]
    files = FileDescriptorSet.FromString(Path(descriptors).read_bytes()).file
    sys.stdout.write(Generator(file for file in files if Path(file.name).stem in wanted).module())


if __name__ == "__main__":
    main()
