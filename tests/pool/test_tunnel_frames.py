"""Messages of tunnels that are read and made without protobuf: they must be the very same on the wire."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from gpushared.api.v1 import jobs_pb2, link_pb2
from gpushared.pool.tunnels.tunnel_frames import (
    BULK_BYTES,
    CHUNK_BYTES,
    MUCH_BYTES,
    Frame,
    frame,
    from_wire,
    gather_seconds,
    to_wire,
)

KINDS = [jobs_pb2.TunnelChunk, link_pb2.TunnelData]
SIZES = [1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152]
"""Where a length needs one byte more."""
READ_CHUNK = from_wire(jobs_pb2.TunnelChunk)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_bytes_are_the_same_message_for_whoever_uses_protobuf(
    kind: type[jobs_pb2.TunnelChunk | link_pb2.TunnelData], size: int
) -> None:
    """Machines of the version before do."""
    data = bytes(range(256)) * (size // 256 + 1)
    ours = frame(data[:size])
    theirs = kind(data=data[:size]).SerializeToString()
    assert ours.wire == theirs
    read = from_wire(kind)(theirs)  # type: ignore[type-var]  # one of the two
    assert isinstance(read, Frame)
    assert read == ours
    assert read.data == data[:size]


def test_pieces_are_one_message() -> None:
    assert frame(b"some", memoryview(b" of "), b"it") == frame(b"some of it")


@pytest.mark.parametrize("size", [0, 1, MUCH_BYTES - 1, CHUNK_BYTES])
def test_little_bytes_and_whole_messages_leave_at_once(size: int) -> None:
    assert gather_seconds(size) == 0


def test_the_more_bytes_come_the_longer_others_gather() -> None:
    sizes = (MUCH_BYTES, BULK_BYTES // 2, BULK_BYTES)
    assert sorted(map(gather_seconds, sizes)) == [gather_seconds(size) for size in sizes]
    assert 0 < gather_seconds(MUCH_BYTES) < gather_seconds(BULK_BYTES) == gather_seconds(CHUNK_BYTES - 1)


@pytest.mark.parametrize(
    "message",
    [
        jobs_pb2.TunnelChunk(),
        jobs_pb2.TunnelChunk(job_id="0123456789", rank=1),
        jobs_pb2.TunnelChunk(job_id="0123456789", data=b"early"),
        jobs_pb2.TunnelChunk(data=b"last", end=True),
        jobs_pb2.TunnelChunk(end=True),
    ],
    ids=["nothing", "the first", "the first with bytes", "the last with bytes", "the last"],
)
def test_whatever_says_more_than_bytes_is_read_as_what_it_is(message: jobs_pb2.TunnelChunk) -> None:
    write = to_wire(jobs_pb2.TunnelChunk)
    assert READ_CHUNK(write(message)) == message


def test_a_refusal_of_a_node_is_no_bytes() -> None:
    refusal = link_pb2.TunnelData(data=b"x", error_code="not_found", error_message="it has gone")
    assert from_wire(link_pb2.TunnelData)(refusal.SerializeToString()) == refusal


@pytest.mark.parametrize("wire", [b"\x12", b"\x12\x05abc", b"\x12\xff\xff\xff\xff\xff\x01abc", b"\x13abc"])
def test_what_is_no_message_is_refused(wire: bytes) -> None:
    with pytest.raises(DecodeError):
        READ_CHUNK(wire)
