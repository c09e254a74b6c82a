"""What a page may watch is read strictly: nothing in a query ends in a bug, or costs much before it is refused."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from google.protobuf.message import Message

from gpushared.api.v1 import history_pb2, leases_pb2, web_pb2
from gpushared.domain.model.errors import RequestError
from gpushared.net.unary_json import Unary
from gpushared.web.watches import read_query

DEEP = 9000
LISTS = "[" * DEEP + "]" * DEEP


async def nothing(*_: object) -> Message:
    raise AssertionError("a query makes no call")


CALLS = {
    f"gpushare.v1.{name}": Unary(request, nothing)
    for name, request in (
        ("Leases/List", leases_pb2.ListLeasesRequest),
        ("Leases/Stop", leases_pb2.StopRequest),
        ("Leases/Wait", leases_pb2.WaitRequest),
        ("History/Export", history_pb2.ExportRequest),
        ("Web/Link", web_pb2.WebLinkRequest),
    )
}
TRIED = {
    "a log of half a character": '{"a": ["logs", {"lease_id": "\\ud800"}]}',
    "a job of half a character": '{"a": ["logs", {"job_id": "\\udfff"}]}',
    "a log of no text": '{"a": ["logs", {"lease_id": "\\u0000\\n"}]}',
    "lists in lists": LISTS,
    "a request of lists in lists": f'{{"a": ["Leases/List", {{"x": {LISTS}}}]}}',
    "a number of many digits": f'{{"a": {"9" * 20_000}}}',
    "a call that changes something": '{"a": ["Leases/Stop", {"lease_id": "l-1"}]}',
    "an action of the page itself": '{"a": ["Web/Link", {}]}',
    "a call that waits": '{"a": ["Leases/Wait", {"lease_id": "l-1", "timeout_seconds": 600}]}',
    "all lines of the history": '{"a": ["History/Export", {}]}',
    "names without end": json.dumps({f"{number}": ["logs", {"lease_id": "l-1"}] for number in range(1000)}),
}


@pytest.mark.parametrize("watch", TRIED.values(), ids=TRIED.keys())
def test_a_query_that_no_page_makes_is_refused(watch: str) -> None:
    with pytest.raises(RequestError):
        read_query(f"watch={quote(watch)}", CALLS)
