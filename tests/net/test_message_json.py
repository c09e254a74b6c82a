"""Messages are written as protobuf itself writes them, whatever is in them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from gpushared.api.v1 import history_pb2, jobs_pb2, leases_pb2
from gpushared.net.message_json import _shape, as_json, json_text
from tests.docs.test_commands import MODULES

VALUES = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
}
ANSWERS: dict[str, Descriptor] = {
    f"{service.name}/{method.name}": method.output_type
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def own_text(message: Message) -> str:
    return json_format.MessageToJson(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True, indent=None
    )


def messages(descriptor: Any, depth: int = 3) -> st.SearchStrategy[Message]:
    """Messages of the kind, each field of them set or not."""
    fields = {
        field.name: values(field, depth) for field in descriptor.fields if field.message_type is None or depth
    }
    chosen = st.fixed_dictionaries({}, optional=fields)
    return chosen.map(lambda said: GetMessageClass(descriptor)(**said))


def values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[object]:
    if field.message_type is not None:
        one: st.SearchStrategy[object] = messages(field.message_type, depth - 1)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        one = st.binary(max_size=9)
    else:
        one = VALUES[field.cpp_type]
    return st.lists(one, max_size=3) if field.is_repeated else one


@pytest.mark.parametrize(
    "kind",
    [
        leases_pb2.ListLeasesResponse,
        leases_pb2.Explanation,
        history_pb2.RecentResponse,
        jobs_pb2.ListJobsResponse,
        jobs_pb2.SubmitRequest,
    ],
)
@given(data=st.data())
def test_what_protobuf_writes_is_written(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(kind.DESCRIPTOR))
    assert json.loads(json_text(message)) == json.loads(own_text(message))


@pytest.mark.parametrize("call", ANSWERS)
def test_no_answer_needs_protobufs_own_writer(call: str) -> None:
    assert _shape(ANSWERS[call]) is not None
    empty = GetMessageClass(ANSWERS[call])()
    assert json.loads(json_text(empty)) == json.loads(own_text(empty))


@pytest.mark.parametrize("value", [0.0, -0.0, math.inf, -math.inf, 1e300, 5e-324, 1764000000.5])
def test_each_number_has_the_same_text(value: float) -> None:
    message = leases_pb2.Lease(created_at=value)
    assert json.loads(json_text(message)) == json.loads(own_text(message))


def test_the_lists_of_two_messages_are_two() -> None:
    one, other = (as_json(leases_pb2.Lease()) for _ in range(2))
    one["grants"].append("what a caller adds")
    assert other["grants"] == as_json(leases_pb2.Lease())["grants"] == []


def test_no_number_is_told_as_protobuf_tells_it() -> None:
    assert json.loads(json_text(leases_pb2.Lease(created_at=math.nan)))["created_at"] == "NaN"


def test_what_is_not_known_here_protobuf_writes() -> None:
    message = Struct()
    message["one"] = [1, "two"]
    assert json.loads(json_text(message)) == {"one": [1, "two"]}
