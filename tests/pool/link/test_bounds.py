"""Every number that comes over the link has its bounds, and beyond them no record and no message is taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, NewType, get_args, get_type_hints

import pytest
from google.protobuf.descriptor import FieldDescriptor

from gpushared.api.v1 import link_pb2
from gpushared.domain.jobs.job import JobSpec, NodeName
from gpushared.domain.jobs.member import HeartbeatReport, Inventory, Member
from gpushared.domain.jobs.protocol import Order, Report, StaleEpoch
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.jobs.bounds import MESSAGES, RECORDS, Bounds, check_message, check_record
from gpushared.jobs.job_records import member_bytes, read_member
from gpushared.pool.link import codec
from gpushared.storage.history.history_parts import HistoryPart, HistoryPosition
from gpushared.storage.records import to_json
from tests.pool.link.coordinator import Coordinator
from tests.pool.link.member import spec
from tests.pool.link.raw import answer, first_answer, stream

ROOTS = (
    Inventory,
    HeartbeatReport,
    Report,
    JobSpec,
    StaleEpoch,
    HistoryPosition,
    HistoryPart,
    *get_args(Order),
)
NUMBERS = {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_DOUBLE} | {
    *(FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_FLOAT)
}


def plain_types(kind: Any, found: dict[type, set[str]]) -> Iterator[type]:
    """The types that a field holds in the end; the records among them are put into ``found``."""
    if isinstance(kind, NewType):
        yield from plain_types(kind.__supertype__, found)
    elif is_dataclass(kind):
        assert isinstance(kind, type)
        walk(kind, found)
    elif args := get_args(kind):
        for each in args:
            if each is not Ellipsis:
                yield from plain_types(each, found)
    else:
        yield kind


def walk(kind: type, found: dict[type, set[str]]) -> None:
    """By record the names of its fields with numbers, of all records that ``kind`` leads to."""
    if kind in found:
        return
    found[kind] = set()
    hints = get_type_hints(kind)
    for field in fields(kind):
        if field.metadata.get("recorded", True) and {int, float} & {*plain_types(hints[field.name], found)}:
            found[kind].add(field.name)


def records() -> dict[type, set[str]]:
    found: dict[type, set[str]] = {}
    for root in ROOTS:
        walk(root, found)
    return {kind: names for kind, names in found.items() if names}


def test_every_number_of_a_record_has_its_bounds_and_nothing_else_has() -> None:
    assert {kind: {*bounds} for kind, bounds in RECORDS.items()} == records()


def test_every_number_of_a_message_has_its_bounds_and_nothing_else_has() -> None:
    found = {
        name: {field.name for field in message.fields if field.cpp_type in NUMBERS}
        for name, message in link_pb2.DESCRIPTOR.message_types_by_name.items()
    }
    assert {name: {*bounds} for name, bounds in MESSAGES.items()} == {
        name: names for name, names in found.items() if names
    }


OF_MESSAGES = [(name, field, bounds) for name, table in MESSAGES.items() for field, bounds in table.items()]


@pytest.mark.parametrize(("name", "field", "bounds"), OF_MESSAGES, ids=lambda each: str(each)[:20])
def test_a_message_is_taken_at_its_bounds_and_refused_beyond_them(
    name: str, field: str, bounds: Bounds
) -> None:
    kind = getattr(link_pb2, name)
    for number in {bounds.least, bounds.most}:
        check_message(kind(**{field: number}))
    for number in (bounds.least - 1, bounds.most + 1):
        try:
            message = kind(**{field: number})
        except (TypeError, ValueError):
            continue  # its type says so already
        with pytest.raises(RequestError, match="cannot be"):
            check_message(message)


def test_a_number_in_a_list_of_a_record_is_bounded_like_one_alone() -> None:
    free = HeartbeatReport(stray_bytes=((GpuId("GPU-a"), 1), (GpuId("GPU-b"), -1)))
    with pytest.raises(RequestError, match="a size of memory"):
        check_record(free)


def test_no_number_is_no_number() -> None:
    with pytest.raises(RequestError):
        check_message(link_pb2.Up(hello=link_pb2.Hello(now=float("nan"))))


GPU = Gpu(GpuId("GPU-a"), 0, "H100", 80 << 30, 79 << 30)
LIES = {
    "an index": (Inventory((replace(GPU, index=1 << 40),)), HeartbeatReport()),
    "a group": (Inventory((replace(GPU, link_group=1 << 40),)), HeartbeatReport()),
    "requests that wait": (Inventory((GPU,)), HeartbeatReport(waiting=1 << 40)),
    "processors": (Inventory((GPU,), cpu_milli=1 << 60), HeartbeatReport()),
}


@pytest.mark.parametrize("lie", LIES)
async def test_one_node_cannot_spoil_what_everybody_is_shown(coordinator: Coordinator, lie: str) -> None:
    """Neither by its registration nor by a heartbeat; the other node of the pool is connected as before."""
    inventory, free = LIES[lie]
    hello = link_pb2.Hello(
        node="n1",
        inventory=to_json(Inventory, inventory).encode(),
        free=to_json(HeartbeatReport, free).encode(),
    )
    refused = (await first_answer(coordinator, coordinator.enrol(NodeName("n1")), hello)).refuse
    assert "cannot be" in refused.message
    honest = link_pb2.Hello(node="n2", inventory=to_json(Inventory, Inventory((GPU,))).encode(), free=b"{}")
    async with stream(coordinator, coordinator.enrol(NodeName("n2"))) as call:
        await call.write(link_pb2.Up(hello=honest))
        assert (await answer(call)).HasField("welcome")
        beat = link_pb2.Beat(seq=1, inventory=hello.inventory, free=hello.free)
        await call.write(link_pb2.Up(beat=beat))
        await call.write(link_pb2.Up(beat=link_pb2.Beat(seq=2)))
        assert (await answer(call)).beat_ack.seq == 2


def test_what_an_older_coordinator_wrote_down_is_read_without_the_nonsense() -> None:
    """A store from before these bounds must not spoil the list of all nodes."""
    member = Member(NodeName("n1"), 5.0, inventory=Inventory((replace(GPU, index=1 << 40),)))
    assert read_member("member/n1", member_bytes(member)).inventory is None
    sound = replace(member, inventory=Inventory((GPU,)))
    assert read_member("member/n1", member_bytes(sound)).inventory == sound.inventory


def test_a_time_that_no_calendar_has_is_refused() -> None:
    """Whoever lists the job would be shown a traceback."""
    late = replace(spec(), request=replace(spec().request, begin_at=1e300))
    with pytest.raises(RequestError, match="a time"):
        codec.read_spec(codec.spec_bytes(late))
