"""Calls of attackers on a pool: who makes them, what the attackers know, and the messages that they send."""

from __future__ import annotations

import json
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from gpushared.api.v1 import audit_pb2, jobs_pb2, link_pb2, pool_pb2
from gpushared.domain.jobs.job import AttemptState, JobSpec, Owner
from gpushared.domain.jobs.protocol import Report, StaleEpoch
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.request import Request
from gpushared.jobs.job_requests import id_of
from gpushared.pool.link import codec
from gpushared.pool.member.enrolment import make_csr
from gpushared.pool.trust.authority import new_key
from tests.pool.processes import POOL
from tests.redteam.pool.honest import INVENTORY, NODE, PERSON, RUNNING_JOB, SENT_KEPT, submit_request
from tests.redteam.pool.lab import CALLS
from tests.redteam.pool.messages import TEXTS, AttackerKnowledge, altered, messages, wires

MEMBERS = 8
"""Each may say 60 hellos in a row, and then one a second."""
ATTACKER = "mallory"
ME, SIGNED, TOKEN, DIGEST, NONCE, NOW = "me", b"signed", "token", "digest", "0" * 32, 1_000_000.0
"""These stand for the name of the member that sends a message, for a valid assertion and its parts, for a
join token, and for the time, until the message is sent."""
METHODS = {f"/gpushare.v1.{name}": method for name, method in CALLS.items()}
CONNECT, SERVE = "/gpushare.v1.NodeLink/Connect", "/gpushare.v1.NodeLink/Serve"
SIGN, RENEW = "/gpushare.v1.Join/Sign", "/gpushare.v1.Join/Renew"
_TAKING = ("RotateCa", "RevokeToken", "DrainNode", "ForgetNode", "ForgetCoordinator")
NOT_BY_ADMINS = frozenset(f"/gpushare.v1.PoolAdmin/{name}" for name in _TAKING)
"""By each of these an administrator may take from the honest ones what they have."""

REQUESTS = [f"own {number}" for number in range(6)]
OWN_JOBS = [id_of(f"{ATTACKER}@{realm}", request) for request in REQUESTS for realm in (POOL, f"{ME}0")]
OWN_JOB = OWN_JOBS[0]
SPEC = JobSpec(Request(), Owner(f"{ATTACKER}@{ME}", ATTACKER), image="busybox", body='{"Image":"busybox"}')
KEYS = (AttemptKey(RUNNING_JOB, 1), AttemptKey(JobId("madeap0000"), 1), AttemptKey(OWN_JOB, 1))
REPORTS = [
    codec.report_bytes(Report(key, AttemptState.RUNNING, 1, spec=SPEC, request=Request())) for key in KEYS
]
OUTBOX = [f"000000000{number}" for number in range(3)]
HELLO = link_pb2.Hello(
    node=ME,
    version="0.1.0",
    boot_id="boot-1",
    capabilities=codec.CAPABILITIES,
    inventory=codec.inventory_bytes(INVENTORY),
    free=b"{}",
    reports=REPORTS[1:],
    seen_epoch=1,
    now=1.0,
)
UPS = [
    link_pb2.Up(hello=HELLO),
    link_pb2.Up(beat=link_pb2.Beat(seq=1, inventory=HELLO.inventory, free=HELLO.free)),
    *(link_pb2.Up(report=report) for report in REPORTS),
    link_pb2.Up(stale=codec.stale_bytes(StaleEpoch(KEYS[0], 1))),
    *(
        link_pb2.Up(job=link_pb2.OutboxJob(job_id=job, spec=codec.spec_bytes(SPEC), assertion=SIGNED))
        for job in OUTBOX
    ),
    *(
        link_pb2.Up(cancel=link_pb2.OutboxCancel(job_id=job, assertion=SIGNED))
        for job in (RUNNING_JOB, OUTBOX[0])
    ),
    *(link_pb2.Up(client_gone=link_pb2.ClientGone(job_id=job, assertion=SIGNED)) for job in OUTBOX),
    link_pb2.Up(trust_seen=link_pb2.TrustSeen(generation=1)),
]
SUBMITS = [submit_request(request) for request in REQUESTS]
ARRAY = submit_request("")
ARRAY.array = "0-9%2"
CSR = make_csr(new_key(), Ed25519PrivateKey.generate())
ASSERTION = {
    "principal": f"{ATTACKER}@{ME}",
    "groups": ["x"],
    "audience": POOL,
    "digest": DIGEST,
    "nonce": NONCE,
}
WORD = json.dumps({**ASSERTION, "issued_at": NOW, "expires_at": NOW + 50}).encode()
HONEST: list[Message] = [
    *UPS,
    *(*SUBMITS, ARRAY, jobs_pb2.SubmitBatchRequest(jobs=[*SUBMITS, ARRAY]), ARRAY.lease),
    *(jobs_pb2.JobRef(job_id=job) for job in (*OWN_JOBS, RUNNING_JOB)),
    *(jobs_pb2.ListJobsRequest(ended=True, limit=10, page_token=token) for token in ("", "l1", "o1", "a1")),
    jobs_pb2.ListJobsRequest(array_id=OWN_JOB, page_token="a1"),
    *(jobs_pb2.WaitJobRequest(job_id=job, token="t", timeout_seconds=0.1) for job in OWN_JOBS),
    *(jobs_pb2.CancelJobRequest(job_id=job, grace_seconds=1) for job in OWN_JOBS),
    *(jobs_pb2.HoldJobRequest(job_id=job, held=True) for job in OWN_JOBS),
    *(jobs_pb2.JobPriorityRequest(job_id=job, priority=1) for job in OWN_JOBS),
    *(jobs_pb2.LogsRequest(job_id=job, tail=1) for job in OWN_JOBS),
    *(jobs_pb2.TunnelChunk(job_id=job, data=b"GET / HTTP/1.1\r\n\r\n", stream_id="s") for job in OWN_JOBS),
    link_pb2.TunnelData(tunnel_id="0" * 32, data=b"x"),
    pool_pb2.JoinTokenRequest(node="new", valid_seconds=60, realms=["lab"]),
    pool_pb2.ApiTokenRequest(person=ATTACKER, scopes=["read"], valid_seconds=60, description="x"),
    pool_pb2.SignRequest(node="new", csr=CSR, token=TOKEN, now=NOW),
    pool_pb2.RenewRequest(csr=CSR, now=NOW),
    audit_pb2.ListAuditRequest(user=ATTACKER, since=1.0, limit=10, after=1),
]
WORDS = [
    *(NODE, ME, PERSON, ATTACKER, f"{PERSON}@{POOL}", RUNNING_JOB, OWN_JOB, f"{OWN_JOB}_1", RUNNING_JOB[:4]),
    *("0.5", "1", "8g", "30%", "2h", "train", "h100", "0-9", "0-9999%2", "SIGUSR1", "exclusive", "missing"),
    *("l", "o", "a", "l1", "o1", "busybox", "submit", "read", "new", "link-1", "tunnel", "docker"),
]


def known() -> AttackerKnowledge:
    honest: dict[str, list[Message]] = {}
    for message in HONEST:
        honest.setdefault(message.DESCRIPTOR.full_name, []).append(message)
    return AttackerKnowledge(honest, WORDS)


KNOWN = known()


@dataclass(frozen=True)
class Call:
    """One call of an attacker; a number among its messages stands for one that the honest node has sent.

    ``word``: what a member signs instead of a valid assertion.
    """

    who: str
    path: str
    messages: tuple[bytes | int, ...]
    word: bytes = b""

    def __repr__(self) -> str:
        shown = [
            one if isinstance(one, int) or len(one) < 300 else one[:300] + b"..." for one in self.messages
        ]
        return f"Call({self.who!r}, {self.path!r}, {shown})"


def callers(path: str) -> list[str]:
    """Who makes a call, the more often those for whom it is."""
    members = [f"{ME}{number}" for number in range(MEMBERS)]
    if path in {CONNECT, SERVE, RENEW}:
        return [*members, "user"]
    if "/gpushare.v1.Join/" in path:
        return [*["nobody"] * 4, "user", members[0]]
    most = "user" if "/gpushare.v1.Jobs/" in path or path in NOT_BY_ADMINS else "admin"
    return ["user", "nobody", *[most] * 3, *members[:2]]


@st.composite
def calls(draw: st.DrawFn, path: str) -> Call:
    method = METHODS[path]
    kind: type[Message] = GetMessageClass(method.input_type)
    message: st.SearchStrategy[bytes | int] = wires(kind, KNOWN)
    if path == CONNECT:
        whole = messages(kind, KNOWN).map(lambda one: one.SerializeToString())
        message = st.one_of(*[whole] * 8, message, st.integers(0, SENT_KEPT - 1))
    most = 12 if method.client_streaming else draw(st.sampled_from([1, 1, 1, 1, 2]))
    sent = draw(st.lists(message, min_size=0 if most == 2 else 1, max_size=most))
    if path == CONNECT and draw(st.integers(0, 7)):
        sent.insert(0, UPS[0].SerializeToString())
    word = draw(altered(WORD)) if draw(st.integers(0, 3)) == 0 else b""
    return Call(draw(st.sampled_from(callers(path))), path, tuple(sent), word)


@st.composite
def noises(draw: st.DrawFn) -> Call:
    """Bytes that are no gRPC, in the clear or by TLS."""
    who = draw(st.sampled_from(["users", "users by TLS", "nodes", "nodes by TLS"]))
    text = st.sampled_from(TEXTS).map(str.encode)
    begin = st.sampled_from(
        [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"]
    )
    return Call(who, "", (draw(begin) + draw(text | st.binary(max_size=200)),))
