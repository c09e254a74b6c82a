"""Test how messages become typed objects; a test of ``api`` holds their classes against the proto files."""

from __future__ import annotations

import pytest
from google.protobuf import json_format

from gpushared.api.v1 import leases_pb2
from gpushared.api.v1.messages import Lease
from gpushared.domain.model.errors import Unavailable
from tests.cli.answers import GRANT, QUEUED, lease


def test_what_protobuf_writes_is_what_is_read() -> None:
    """Strings for 64-bit integers, snake_case names, defaults left out: protobuf's own JSON."""
    written = leases_pb2.Lease(id="l-1", owner_uid=1 << 40, memory_used_bytes=0, created_at=1.5)
    setattr(written, "class", "infer")
    written.grants.add(memory_bytes=1 << 50, compute_permille=250)
    data = json_format.MessageToDict(written, preserving_proto_field_name=True)
    assert data["owner_uid"] == str(1 << 40)
    read = Lease(data)
    assert (read.owner_uid, read.memory_used_bytes, read.lease_class) == (1 << 40, 0, "infer")
    assert read.grants[0].memory_bytes == 1 << 50
    assert read.expires_at is None


def test_absent_fields_have_their_defaults_and_unknown_ones_are_ignored() -> None:
    """A newer daemon's fields do no harm, an older one's lack of them neither."""
    read = Lease({"id": "l-1", "a_field_of_the_future": {"x": 1}, "waiting": None})
    assert (read.id, read.grants, read.waiting, read.memory_used_bytes) == ("l-1", (), None, None)


def test_json_has_every_field_and_null_for_what_is_unknown() -> None:
    """Programs find each name in each item; unknown is null, never an empty text or zero."""
    data = Lease(lease(grants=[GRANT])).to_json()
    assert set(data) == {wire for wire, _ in Lease.fields().values()}
    assert data["memory_used_bytes"] is None
    assert data["memory_wall"] is None
    assert data["expires_at"] is None
    assert data["class"] == "train"
    assert data["grants"][0]["memory_bytes"] == 20 * 1024**3


def test_equal_messages_are_equal() -> None:
    assert Lease(QUEUED) == Lease(QUEUED)
    assert Lease(QUEUED) != Lease(lease())
    assert "l-7f3k" in repr(Lease(QUEUED))


@pytest.mark.parametrize(
    "data", [{"owner_uid": "many"}, {"grants": 3}, {"waiting": "soon"}, {"created_at": []}]
)
def test_an_answer_of_the_wrong_shape_is_an_error_of_our_tree(data: dict[str, object]) -> None:
    with pytest.raises(Unavailable, match="cannot be read"):
        Lease(data)
