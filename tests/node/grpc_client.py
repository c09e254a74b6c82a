"""An unmodified gRPC client as another user: reads calls from standard input, writes their answers.

A program of its own, because gRPC connects from threads of its own, whose user must be right all along.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gpushared.api.v1 import (
    audit_pb2,
    audit_pb2_grpc,
    gpus_pb2,
    gpus_pb2_grpc,
    history_pb2,
    history_pb2_grpc,
    jobs_pb2,
    jobs_pb2_grpc,
    leases_pb2,
    leases_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
)
from gpushared.net.call_checks import HINT_METADATA
from tests.node import fork_server

SECONDS = 30
Json = dict[str, Any]
STUBS = {
    "Leases": leases_pb2_grpc.LeasesStub,
    "Gpus": gpus_pb2_grpc.GpusStub,
    "Node": node_pb2_grpc.NodeStub,
    "Jobs": jobs_pb2_grpc.JobsStub,
    "Audit": audit_pb2_grpc.AuditStub,
    "History": history_pb2_grpc.HistoryStub,
    "Policy": policy_pb2_grpc.PolicyStub,
}
REQUESTS = {
    "Leases/Acquire": leases_pb2.LeaseRequest,
    "Leases/Request": leases_pb2.LeaseRequest,
    "Leases/Wait": leases_pb2.WaitRequest,
    "Leases/Release": leases_pb2.LeaseRef,
    "Leases/Stop": leases_pb2.StopRequest,
    "Leases/Resize": leases_pb2.ResizeRequest,
    "Leases/Get": leases_pb2.LeaseRef,
    "Leases/List": leases_pb2.ListLeasesRequest,
    "Leases/Explain": leases_pb2.LeaseRef,
    "Leases/Offer": leases_pb2.LeaseRequest,
    "Gpus/List": gpus_pb2.ListGpusRequest,
    "Gpus/Drain": gpus_pb2.DrainRequest,
    "Gpus/Undrain": gpus_pb2.UndrainRequest,
    "Node/Status": node_pb2.NodeStatusRequest,
    "Node/Presets": node_pb2.PresetsRequest,
    "History/Ended": history_pb2.EndedRequest,
    "History/Usage": history_pb2.UsageRequest,
    "Node/Doctor": node_pb2.DoctorRequest,
    "Jobs/Submit": jobs_pb2.SubmitRequest,
    "Jobs/SubmitBatch": jobs_pb2.SubmitBatchRequest,
    "Jobs/Get": jobs_pb2.JobRef,
    "Jobs/List": jobs_pb2.ListJobsRequest,
    "Jobs/Wait": jobs_pb2.WaitJobRequest,
    "Jobs/Cancel": jobs_pb2.CancelJobRequest,
    "Jobs/Hold": jobs_pb2.HoldJobRequest,
    "Jobs/Explain": jobs_pb2.JobRef,
    "Jobs/Door": jobs_pb2.DoorRequest,
    "Jobs/Reserve": jobs_pb2.ReserveRequest,
    "Jobs/Nodes": jobs_pb2.NodesRequest,
    "Jobs/Watch": jobs_pb2.JobRef,
    "Jobs/Logs": jobs_pb2.LogsRequest,
    "Audit/List": audit_pb2.ListAuditRequest,
    "Policy/Explain": policy_pb2.ExplainPolicyRequest,
    "Policy/Show": policy_pb2.ShowPolicyRequest,
}
STREAMS = {"Leases/Acquire", "Jobs/Watch", "Jobs/Logs"}
"""Their answers are told as ``items``."""


def ask(path: Path, calls: Sequence[tuple[str, Mapping[str, Any]]], *, uid: int = 0) -> list[Json]:
    """Answers to calls such as ``("Leases/Get", {...})``, in order; an error is ``code, message, hint``."""
    words = [sys.executable, "-m", "tests.node.grpc_client", str(path), str(uid)]
    answers: list[Json] = json.loads(fork_server.run(words, json.dumps(calls).encode(), SECONDS))
    return answers


def main(path: str, uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        answers = [_answer(channel, name, message) for name, message in json.load(sys.stdin)]
    sys.stdout.write(json.dumps(answers))


def _answer(channel: grpc.Channel, name: str, message: Json) -> Json:
    try:
        if name == "health":
            stub: Any = health_pb2_grpc.HealthStub(channel)
            checked = stub.Check(health_pb2.HealthCheckRequest(**message))
            return {"status": checked.status}
        if name == "services":
            return {"names": _services(channel)}
        service, method = name.split("/")
        request = json_format.ParseDict(message, REQUESTS[name]())
        answer = getattr(STUBS[service](channel), method)(request, timeout=SECONDS)
        if name in STREAMS:
            return {"items": [_told(one) for one in answer]}
    except grpc.RpcError as error:
        trailing: dict[str, Any] = {one.key: one.value for one in error.trailing_metadata() or ()}
        hint = trailing.get(HINT_METADATA, b"")
        code = error.code().name.lower()
        return {"code": code, "message": error.details(), "hint": hint.decode() if hint else ""}
    return _told(answer)


def _told(answer: Any) -> Json:
    told: Json = json_format.MessageToDict(
        answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return told


def _services(channel: grpc.Channel) -> list[str]:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = stub.ServerReflectionInfo(iter([asked]))
    return sorted(service.name for service in answer.list_services_response.service)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
