"""A pool in which Ada has a job, and Eve a token and a machine that is a member."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gpushared.api.v1 import audit_pb2, gpus_pb2, history_pb2, jobs_pb2, leases_pb2, link_pb2, pool_pb2
from gpushared.client.pipeline import JobRequest, Pool
from gpushared.client.pipeline.pool_steps import JobWarning
from gpushared.pool.member.enrolment import Enrolment
from gpushared.pool.trust.assertions import ASSERTION_METADATA, request_digest
from gpushared.pool.trust.people import coordinator_host
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
        ("History", history_pb2),
        ("Leases", leases_pb2),
        ("Gpus", gpus_pb2),
    )
}
CALLS: dict[str, MethodDescriptor] = {
    f"{service}/{method.name}": method
    for service, one in SERVICES.items()
    for method in one.methods
    if service not in {"Leases", "Gpus"} or method.name == "List"
}


@dataclass(frozen=True)
class Lab:
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
        if isinstance(made, history_pb2.ReportRequest):
            made.name = self.job
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


@contextmanager
def eves_lab() -> Iterator[Lab]:
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
        yield Lab(made, made.anchors_file.read_bytes(), ada, job, eve, member)
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


def bearer(words: str) -> Metadata:
    return (("authorization", f"Bearer {words}"),)
