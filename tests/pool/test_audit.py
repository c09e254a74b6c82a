"""The audit of a real coordinator: what its lines say, and who is who in them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from gpushared.api.v1 import audit_pb2, pool_pb2
from gpushared.domain.model.errors import NotFound, PermissionRefused
from gpushared.pool.trust.people import coordinator_host
from gpushared.storage.audit.line import NOBODY_HERE
from tests.node.daemon import acting_as, make_directory
from tests.pool.processes import POOL, CoordinatorProcess

SECONDS = 20
ALICE = 61001
Line = dict[str, Any]


@pytest.fixture
def coordinator() -> Iterator[CoordinatorProcess]:
    made = CoordinatorProcess(
        make_directory(), config='[users.ada]\nprincipals = ["ada@ws1"]\nadmin = true\n'
    )
    made.start()
    yield made
    made.dispose()


def lines(coordinator: CoordinatorProcess, *words: str) -> list[Line]:
    items: list[Line] = json.loads(coordinator.gpushare("audit", "--pool", "--json", *words))["items"]
    return items


def told(coordinator: CoordinatorProcess) -> list[tuple[object, ...]]:
    return [(one["endpoint"], one["name"], one["status"], one["code"]) for one in lines(coordinator)]


def until_told(coordinator: CoordinatorProcess, number: int) -> list[Line]:
    until = time.monotonic() + SECONDS
    while len(found := lines(coordinator)) < number:
        assert time.monotonic() < until, found
        time.sleep(0.05)
    return found


def test_what_administrators_do_at_the_machine_leaves_lines_with_their_process(
    coordinator: CoordinatorProcess,
) -> None:
    admin = coordinator.admin
    token = admin.create_api_token(person="ada", scopes=("read",))
    admin.create_join_token(node="ws1")
    admin.revoke_token(token.id)
    with pytest.raises(NotFound):
        admin.drain_node("ws9", "why")
    with pytest.raises(NotFound):
        admin.forget_node("ws9", is_off=True)
    admin.status()
    admin.api_tokens()
    assert told(coordinator) == [
        ("PoolAdmin/CreateApiToken", "ada", 200, None),
        ("PoolAdmin/CreateJoinToken", "ws1", 200, None),
        ("PoolAdmin/RevokeToken", token.id, 200, None),
        ("PoolAdmin/DrainNode", "ws9", 404, "not_found"),
        ("PoolAdmin/ForgetNode", "ws9", 404, "not_found"),
    ]
    found = lines(coordinator)
    assert {(one["uid"], one["user"]) for one in found} == {(0, "root")}
    assert all(one["pid"] and one["executable"] for one in found)
    assert found[0]["text"] == f"made {token.id}"
    assert token.token.rpartition("_")[2] not in json.dumps(found)


def test_who_may_not_administer_the_pool_leaves_a_line_by_either_protocol(
    coordinator: CoordinatorProcess,
) -> None:
    with acting_as(ALICE), pytest.raises(PermissionRefused):
        coordinator.admin.rotate_ca()
    assert [(one["uid"], one["code"]) for one in lines(coordinator)] == [(ALICE, "permission_denied")]


def by_tls(
    coordinator: CoordinatorProcess, name: str, asked: Message, answer: type[Message], bearer: str = ""
) -> grpc.StatusCode:
    """How the call ends."""
    credentials = grpc.ssl_channel_credentials(coordinator.anchors_file.read_bytes())
    options = [("grpc.ssl_target_name_override", coordinator_host(POOL))]
    with grpc.secure_channel(coordinator.address, credentials, options) as channel:
        call = channel.unary_unary(
            f"/gpushare.v1.{name}",
            request_serializer=type(asked).SerializeToString,
            response_deserializer=answer.FromString,
        )
        metadata = (("authorization", f"Bearer {bearer}"),) if bearer else ()
        try:
            call(asked, timeout=SECONDS, metadata=metadata)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


def test_a_token_s_calls_are_its_person_s_and_a_wrong_one_s_its_address_s(
    coordinator: CoordinatorProcess,
) -> None:
    words = coordinator.admin.create_api_token(person="ada", scopes=("read",)).token
    asked = pool_pb2.DrainNodeRequest(node="ws1", reason="x")
    for bearer in (words, "gsp_nobody", words[:-1] + ("a" if words[-1] != "a" else "b")):
        code = by_tls(coordinator, "PoolAdmin/DrainNode", asked, pool_pb2.NodeAnswer, bearer)
        assert code is grpc.StatusCode.PERMISSION_DENIED
    _, ada, *wrong = lines(coordinator)
    assert (ada["uid"], ada["user"], ada["endpoint"]) == (NOBODY_HERE, "ada@lab", "PoolAdmin/DrainNode")
    assert "by an API token, from ipv4:127.0.0.1" in ada["text"]
    assert [(one["uid"], one["user"]) for one in wrong] == [(NOBODY_HERE, "ipv4:127.0.0.1")] * 2
    assert len(lines(coordinator, "--user", "ada@lab")) == 1
    assert lines(coordinator, "--user", "nobody") == []


def test_an_administrator_s_token_reads_the_audit_and_another_does_not(
    coordinator: CoordinatorProcess,
) -> None:
    for scope, expected in (("admin", grpc.StatusCode.OK), ("read", grpc.StatusCode.PERMISSION_DENIED)):
        words = coordinator.admin.create_api_token(person="ada", scopes=(scope,)).token
        page = audit_pb2.ListAuditRequest(limit=1)
        code = by_tls(coordinator, "Audit/List", page, audit_pb2.ListAuditResponse, words)
        assert code is expected


def test_who_joins_without_a_token_that_counts_leaves_a_line(coordinator: CoordinatorProcess) -> None:
    asked = pool_pb2.SignRequest(node="ws7", token="GSJ1-lab-nothing")
    by_tls(coordinator, "Join/Sign", asked, pool_pb2.SignAnswer)
    (line,) = lines(coordinator)
    assert (line["endpoint"], line["name"], line["code"]) == ("Join/Sign", "ws7", "permission_denied")
    assert line["user"] == "ipv4:127.0.0.1"
    assert "nothing" not in json.dumps(line)


def test_the_user_table_changes_with_a_line_and_one_that_contradicts_itself_too(
    coordinator: CoordinatorProcess,
) -> None:
    assert coordinator.process is not None
    file = coordinator.directory / "pool.toml"
    before = file.read_text()
    file.write_text(before + '[users.bob]\nprincipals = ["bob@ws1"]\n')
    coordinator.process.send_signal(signal.SIGHUP)
    until_told(coordinator, 1)
    file.write_text(before + '[users.bob]\nprincipals = ["ada@ws1"]\n')
    coordinator.process.send_signal(signal.SIGHUP)
    done, refused = until_told(coordinator, 2)
    assert (done["method"], done["endpoint"], done["status"], done["text"]) == (
        *("SIGHUP", "configuration", 200, "reloaded"),
    )
    assert refused["code"] == "invalid_argument"
    assert "both ada and bob" in refused["text"]


def test_lines_outlive_the_coordinator(coordinator: CoordinatorProcess) -> None:
    coordinator.admin.create_join_token(node="ws1")
    until_told(coordinator, 1)
    coordinator.end()
    coordinator.start()
    coordinator.admin.create_join_token(node="ws2")
    assert [one["name"] for one in lines(coordinator)] == ["ws1", "ws2"]
