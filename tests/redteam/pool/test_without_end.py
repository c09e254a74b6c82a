"""Calls that never end, come again and again, or ask for very much."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gpushared.api.v1 import jobs_pb2, leases_pb2, pool_pb2
from gpushared.jobs.jobs_service import MAX_AFTER
from gpushared.pool.coordinator.service_factories import FIRST_MESSAGE_SECONDS
from tests.pool.http2 import http2
from tests.redteam.pool.lab import Code, Lab, ask, bearer


def renewal(lab: Lab) -> pool_pb2.RenewRequest:
    """What the member asks for when its certificate gets old, with a new key."""
    assert lab.member.membership is not None
    old = x509.load_pem_x509_certificate(lab.member.membership.certificate.encode())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    for extension in old.extensions:
        if isinstance(extension.value, x509.UnrecognizedExtension):
            request = request.add_extension(extension.value, critical=False)
    signed = request.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return pool_pb2.RenewRequest(csr=signed.public_bytes(serialization.Encoding.PEM), now=time.time())


def test_a_member_does_not_fill_the_signature_log(lab: Lab) -> None:
    """It has several in a row, for an honest one may be interrupted; then one an hour."""
    asked = renewal(lab)
    signatures = lab.coordinator.directory / "s" / "ca" / "issued.jsonl"
    before = len(signatures.read_bytes().splitlines())
    with lab.as_member() as channel:
        codes = [ask(channel, "Join/Renew", asked)[0] for _ in range(60)]
    assert codes[0] is Code.OK
    assert codes[-1] is Code.RESOURCE_EXHAUSTED
    assert len(signatures.read_bytes().splitlines()) - before < 30


def test_strangers_keep_no_answer_open_that_never_ends(lab: Lab) -> None:
    """How the coordinator is they may ask, once a call."""
    with lab.as_stranger(lab.coordinator.ports[0]) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)  # types-grpcio-health-checking lacks its calls
        with pytest.raises(grpc.RpcError) as refused:
            next(health.Watch(health_pb2.HealthCheckRequest(), timeout=20))
        assert refused.value.code() is Code.UNIMPLEMENTED
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_tunnel_that_does_not_say_where_it_leads_ends(lab: Lab) -> None:
    async with http2(lab.coordinator.ports[0]) as eve:
        stream = await eve.call("/gpushare.v1.Jobs/Tunnel", list(bearer(lab.eve)))  # type: ignore[arg-type]
        assert await eve.over(stream, FIRST_MESSAGE_SECONDS + 20) in {"end", "reset"}


def test_a_job_that_waits_for_too_many_is_refused_before_any_is_looked_for(lab: Lab) -> None:
    """The first of them does not exist, which would be the answer if it had been looked for."""
    asked = jobs_pb2.SubmitRequest(lease=leases_pb2.LeaseRequest(gpu="0.25"), image="busybox")
    asked.after.extend(jobs_pb2.JobAfter(job_id="nothing") for _ in range(MAX_AFTER + 1))
    with lab.as_stranger(lab.coordinator.ports[0]) as channel:
        assert ask(channel, "Jobs/Submit", asked, bearer(lab.eve))[0] is Code.INVALID_ARGUMENT
