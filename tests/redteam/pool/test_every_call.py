"""Every call that a coordinator serves, made by everybody who may not make it: nothing is told or changed.

The calls come from the descriptors, so that a new one is attacked as soon as it is there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gpushared.api.v1 import audit_pb2, jobs_pb2, leases_pb2, link_pb2, pool_pb2
from gpushared.client.pipeline import JobRequest, Pool
from gpushared.client.pipeline.calls import JobWarning
from gpushared.pool.member.enrolment import Enrolment
from gpushared.pool.trust.assertions import ASSERTION_METADATA, request_digest
from gpushared.pool.trust.names import coordinator_host
from tests.node.daemon import make_directory
from tests.pool.processes import POOL, CoordinatorProcess

SECONDS = 20
Code = grpc.StatusCode
Metadata = tuple[tuple[str, str | bytes], ...]
SERVICES = {
    name: file.DESCRIPTOR.services_by_name[name]
    for name, file in (
        ("Jobs", jobs_pb2),
        ("PoolAdmin", pool_pb2),
        ("Join", pool_pb2),
        ("Audit", audit_pb2),
        ("NodeLink", link_pb2),
    )
}
CALLS: dict[str, MethodDescriptor] = {
    f"{service}/{method.name}": method for service, one in SERVICES.items() for method in one.methods
}
ONLY_ON_NODES = {"Jobs/Door", "Jobs/Reserve"}
OPEN_TO_STRANGERS = {"Join/GetTrust"}
OF_ONE_JOB = {
    f"Jobs/{name}"
    for name in ("Get", "Wait", "Watch", "Cancel", "Hold", "SetPriority", "Explain", "Logs", "Tunnel")
}
OWN_BUSINESS = {"Jobs/List", "Jobs/Nodes", "Jobs/SubmitBatch"}
"""Calls that every user may make, and that tell and change nothing of others."""


@dataclass(frozen=True)
class Scene:
    """A pool with Ada's waiting job, Eve's token, and a machine of Eve's that is a member."""

    coordinator: CoordinatorProcess
    anchors: bytes
    ada: Pool
    job: str
    eve: str
    member: Enrolment

    def message(self, call: str) -> Message:
        """What the call is asked with: of Ada's job, of the node, of Ada."""
        fields = {"job_id": self.job, "node": "ws2", "id": "anything", "person": "eve", "is_off": True}
        fields |= {"reason": "because", "token": "GSJ1-lab-nothing", "priority": 9, "held": True}
        kind = CALLS[call].input_type
        made = GetMessageClass(kind)(
            **{name: value for name, value in fields.items() if name in kind.fields_by_name}
        )
        if isinstance(made, jobs_pb2.SubmitRequest):
            made = jobs_pb2.SubmitRequest(
                lease=leases_pb2.LeaseRequest(gpu="0.25"),
                image="busybox",
                create_body=b"{}",
                after=[jobs_pb2.JobAfter(job_id=self.job)],
            )
        return made

    def channel(self, port: int, credentials: grpc.ChannelCredentials) -> grpc.Channel:
        named = [("grpc.ssl_target_name_override", coordinator_host(POOL))]
        return grpc.secure_channel(f"127.0.0.1:{port}", credentials, named)

    def as_stranger(self, port: int) -> grpc.Channel:
        return self.channel(port, grpc.ssl_channel_credentials(self.anchors))

    def as_member(self) -> grpc.Channel:
        return self.channel(self.coordinator.ports[1], self.member.credentials())

    def word(self, principal: str, message: Message) -> Metadata:
        """The member's word that this user asks for this."""
        signed = self.member.asserter().sign(principal, (), request_digest(message), time.time())
        return ((ASSERTION_METADATA, signed),)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    made = CoordinatorProcess(make_directory())
    made.start()
    member = Enrolment(Path(made.directory) / "ws2" / "pool", time.time, spread_seconds=0)
    words = made.admin.create_join_token(node="ws2").token
    asyncio.run(member.join(made.address, words, "ws2"))
    ada = Pool(made.address, ca_file=made.anchors_file, token_file=made.token_file("ada"))
    with pytest.warns(JobWarning, match="until a node joins"):
        job = ada.submit(JobRequest("busybox", ["true"], gpu="0.25"))
    eve = made.token_file("eve").read_text().strip()
    with ada:
        yield Scene(made, made.anchors_file.read_bytes(), ada, job, eve, member)
    made.dispose()


def ask(channel: grpc.Channel, call: str, message: Message, metadata: Metadata = ()) -> tuple[Code, Any]:
    """How the call ends, or its first answer. On the wire every call is a stream."""
    method = CALLS[call]
    answers = channel.stream_stream(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=type(message).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )(iter([message]), metadata=metadata, timeout=SECONDS)
    try:
        answer = next(answers, None)
    except grpc.RpcError as error:
        return error.code(), None
    answers.cancel()
    return Code.OK, answer


def picture(scene: Scene) -> tuple[object, ...]:
    """All that an attack could have changed."""
    admin = scene.coordinator.admin
    return (
        scene.ada.get(scene.job),
        [(one.id, one.revoked) for one in admin.api_tokens()],
        [(one.id, one.revoked) for one in admin.join_tokens()],
        admin.anchors(),
        scene.ada.nodes(),
    )


def bearer(words: str) -> Metadata:
    return (("authorization", f"Bearer {words}"),)


def expected_of_a_stranger(call: str) -> set[Code]:
    if call in ONLY_ON_NODES or call.startswith("NodeLink/"):
        return {Code.UNIMPLEMENTED, Code.PERMISSION_DENIED}
    return {Code.OK} if call in OPEN_TO_STRANGERS else {Code.PERMISSION_DENIED}


def expected_of_another_user(call: str) -> set[Code]:
    """Whoever may use the pool, and has nothing to do with Ada."""
    if call in OF_ONE_JOB or call == "Jobs/Submit":
        return {Code.NOT_FOUND}
    return {Code.OK} if call in OWN_BUSINESS else expected_of_a_stranger(call)


NO_TOKEN: dict[str, Metadata] = {
    "nothing": (),
    "a made-up token": bearer("gsp_0123456789_0123456789012345678901234567890123456789012"),
    "a node's word on the users' port": ((ASSERTION_METADATA, b"x"),),
    "two tokens": (*bearer("a"), *bearer("b")),
}


@pytest.mark.parametrize("having", NO_TOKEN)
def test_nobody_without_a_token_is_answered_at_the_users_port(scene: Scene, having: str) -> None:
    before = picture(scene)
    with scene.as_stranger(scene.coordinator.ports[0]) as channel:
        ended = {call: ask(channel, call, scene.message(call), NO_TOKEN[having])[0] for call in CALLS}
    assert {call: code for call, code in ended.items() if code not in expected_of_a_stranger(call)} == {}
    assert picture(scene) == before


def test_nobody_without_a_certificate_is_answered_at_the_nodes_port(scene: Scene) -> None:
    before = picture(scene)
    with scene.as_stranger(scene.coordinator.ports[1]) as channel:
        ended = {call: ask(channel, call, scene.message(call), bearer(scene.eve))[0] for call in CALLS}
    assert set(ended.values()) == {Code.UNAVAILABLE}
    assert picture(scene) == before


def test_another_user_s_token_finds_and_changes_nothing_of_ada_s(scene: Scene) -> None:
    before = picture(scene)
    with scene.as_stranger(scene.coordinator.ports[0]) as channel:
        ended = {call: ask(channel, call, scene.message(call), bearer(scene.eve)) for call in CALLS}
    check_others(scene, {call: ended[call] for call in CALLS})
    assert picture(scene) == before


def test_a_member_s_user_finds_and_changes_nothing_of_ada_s(scene: Scene) -> None:
    """Also where the member calls its user Ada: it speaks for its own realm, and that is another Ada."""
    before = picture(scene)
    for principal in ("eve@ws2", "ada@ws2", "root@ws2"):
        with scene.as_member() as channel:
            ended = {}
            for call in sorted(CALLS.keys() - {"NodeLink/Connect", "NodeLink/Serve"}):
                message = scene.message(call)
                ended[call] = ask(channel, call, message, scene.word(principal, message))
        check_others(scene, ended)
    assert picture(scene) == before


def check_others(scene: Scene, ended: dict[str, tuple[Code, Any]]) -> None:
    """That a user was answered as one who has nothing to do with Ada's job, and was told nothing of it."""
    wrong = {call: code for call, (code, _) in ended.items() if code not in expected_of_another_user(call)}
    assert wrong == {}
    assert scene.job not in str([answer for _, answer in ended.values()])


WORDS: dict[str, Callable[[Scene, Message], Metadata]] = {
    "no word": lambda _scene, _message: (),
    "a word for Ada, of whose realm it is not": lambda scene, message: scene.word("ada@lab", message),
    "a word for root of the pool": lambda scene, message: scene.word("root@lab", message),
    "a word for another request": lambda scene, _: scene.word("eve@ws2", jobs_pb2.JobRef(job_id="other")),
    "Ada's token beside no word": lambda scene, _: bearer(scene.eve),
}


@pytest.mark.parametrize("having", WORDS)
def test_a_member_without_its_word_for_exactly_this_is_not_answered(scene: Scene, having: str) -> None:
    before = picture(scene)
    asked = [call for call in CALLS if not call.startswith(("NodeLink/", "Join/"))]
    with scene.as_member() as channel:
        ended = {
            call: ask(channel, call, message, WORDS[having](scene, message))[0]
            for call in asked
            for message in [scene.message(call)]
        }
    allowed = {Code.PERMISSION_DENIED, Code.UNIMPLEMENTED}
    assert {call: code for call, code in ended.items() if code not in allowed} == {}
    assert {call for call, code in ended.items() if code is Code.UNIMPLEMENTED} == ONLY_ON_NODES
    assert picture(scene) == before


def test_a_word_counts_once(scene: Scene) -> None:
    message = jobs_pb2.ListJobsRequest()
    word = scene.word("eve@ws2", message)
    with scene.as_member() as channel:
        assert [ask(channel, "Jobs/List", message, word)[0] for _ in range(2)] == [
            Code.OK,
            Code.PERMISSION_DENIED,
        ]


SCOPES: dict[str, Sequence[str]] = {
    "submit": ["Jobs/Submit", "Jobs/SubmitBatch"],
    "read": ["Jobs/Get", "Jobs/List", "Jobs/Wait", "Jobs/Watch", "Jobs/Explain", "Jobs/Nodes"],
    "cancel": ["Jobs/Cancel", "Jobs/Hold", "Jobs/SetPriority"],
    "logs": ["Jobs/Logs"],
}


@pytest.mark.parametrize("scope", SCOPES)
def test_ada_s_own_token_does_no_more_than_its_scope(scene: Scene, scope: str) -> None:
    words = scene.coordinator.token_file("ada", scope).read_text().strip()
    before = picture(scene)
    others = [
        call for call in CALLS if call not in SCOPES[scope] and not call.startswith(("NodeLink/", "Join/"))
    ]
    with scene.as_stranger(scene.coordinator.ports[0]) as channel:
        ended = {call: ask(channel, call, scene.message(call), bearer(words))[0] for call in others}
    wrong = {call: code for call, code in ended.items() if code is not Code.PERMISSION_DENIED}
    assert wrong == dict.fromkeys(ONLY_ON_NODES, Code.UNIMPLEMENTED)
    assert picture(scene) == before


def test_ada_s_token_does_what_its_scope_says(scene: Scene) -> None:
    with scene.as_stranger(scene.coordinator.ports[0]) as channel:
        words = scene.coordinator.token_file("ada", "read").read_text().strip()
        for call in ("Jobs/Get", "Jobs/List", "Jobs/Explain", "Jobs/Watch"):
            code, answer = ask(channel, call, scene.message(call), bearer(words))
            assert code is Code.OK
            assert scene.job in str(answer)
