"""A coordinator's end of links with real certificates, and a machine that notes what it hears."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpushared.api.v1 import jobs_pb2, link_pb2, link_pb2_grpc
from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.job import HERE, Job, NodeName
from gpushared.domain.jobs.member import Member
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.lease import JobId
from gpushared.net.call_checks import OPTIONS
from gpushared.pool.coordinator.node_links import LinkService
from gpushared.pool.trust.authority import Authority, key_pem, new_key
from gpushared.pool.trust.certificates import ASSERTION_KEY_OID, pem_of, read_node_certificate
from gpushared.pool.trust.people import People, coordinator_host
from gpushared.pool.trust.trust import CA_FOLDER, PoolTrust
from gpushared.testing.fake_job_store import MemoryStore

WAIT_SECONDS = 20.0
"""Only a test that fails waits so long."""


@dataclass
class Credentials:
    """What a node has after joining."""

    node: NodeName
    key: ec.EllipticCurvePrivateKey
    assertion_key: Ed25519PrivateKey
    certificate: bytes
    anchors: bytes
    pool: str

    def channel(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.anchors, key_pem(self.key), self.certificate)

    @property
    def server_name(self) -> str:
        return coordinator_host(self.pool)


def enlist(
    trust: PoolTrust, node: str, *, name_inside: str | None = None, realms: frozenset[str] = frozenset()
) -> Credentials:
    """A node's credentials, signed and written down as joining does it."""
    key, assertion_key = new_key(), Ed25519PrivateKey.generate()
    raw = assertion_key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .add_extension(x509.UnrecognizedExtension(ASSERTION_KEY_OID, raw), critical=False)
        .sign(key, hashes.SHA256())
    )
    name = NodeName(name_inside or node)
    pem = csr.public_bytes(serialization.Encoding.PEM)
    certificate = pem_of(trust.authority.sign_node(pem, name, realms, time.time()))
    trust.ledger.issued(read_node_certificate(certificate), time.time())
    anchors = trust.authority.anchors_pem
    return Credentials(NodeName(node), key, assertion_key, certificate, anchors, trust.pool)


@dataclass
class State:
    members: dict[NodeName, Member] = field(default_factory=dict)
    epoch: int = 1


class Machine:
    """Notes events; ``answer`` may refuse them or do something about them."""

    def __init__(self) -> None:
        self.state = State()
        self.revision = 1
        self.events: list[m.PoolEvent] = []
        self.answer: Callable[[m.PoolEvent], GpushareError | None] = lambda _: None
        self._heard = asyncio.Condition()

    async def send(self, event: m.PoolEvent) -> Job | None:
        error = self.answer(event)
        if error is not None:
            raise error
        async with self._heard:
            self.events.append(event)
            self._heard.notify_all()
        return None

    async def heard(self, which: Callable[[m.PoolEvent], bool], times: int = 1) -> m.PoolEvent:
        """Wait until so many such events came; the newest of them."""
        async with asyncio.timeout(WAIT_SECONDS), self._heard:
            await self._heard.wait_for(lambda: sum(map(which, self.events)) >= times)
        return [event for event in self.events if which(event)][-1]

    def count(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.events)


class Jobs:
    """What is told to the nodes through which jobs came in."""

    def __init__(self) -> None:
        self.origins: dict[JobId, NodeName] = {}
        self.states: dict[JobId, str] = {}

    def origin_of(self, job: JobId) -> NodeName:
        return self.origins.get(job, HERE)

    def update_of(self, job: JobId) -> link_pb2.JobUpdate | None:
        state = self.states.get(job)
        if state is None:
            return None
        view = jobs_pb2.Job(id=job, state=state)
        return link_pb2.JobUpdate(job=view.SerializeToString(), over=state == "succeeded")


class Coordinator:
    """Serves NodeLink on a port of this machine while ``serving`` lasts; may be served again."""

    def __init__(self, folder: Path, pool: str = "lab") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        Authority.create(folder / CA_FOLDER, pool, time.time())
        self.machine = Machine()
        self.beat_seconds = 0.05
        self.jobs = Jobs()
        self.trust = PoolTrust(
            folder,
            MemoryStore(),
            epoch=lambda: self.machine.state.epoch,
            people=People,
            now=time.time,
        )
        self.link = self._service()
        self.trust.on_invalid(self.link.drop)
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _service(self) -> LinkService:
        return LinkService(self.machine, self.trust.guard, self.jobs, beat=lambda _: self.beat_seconds)

    def other_service(self) -> LinkService:
        """Another coordinator's end, with the same machine and trust."""
        return self._service()

    def enrol(self, node: str) -> Credentials:
        self.machine.state.members[NodeName(node)] = Member(NodeName(node), enrolled_at=time.time())
        return enlist(self.trust, node)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Coordinator]:
        server = grpc.aio.server(options=OPTIONS)
        link_pb2_grpc.add_NodeLinkServicer_to_server(self.link, server)
        self.port = server.add_secure_port(self.address, self.trust.identity.for_nodes())
        await server.start()
        try:
            yield self
        finally:
            await self.link.close()
            await server.stop(0)

    def begin_anew(self) -> None:
        """As after a restart: nothing is known of streams."""
        self.machine.state.epoch += 1
        self.link = self._service()
        self.trust.on_invalid(self.link.drop)


def foreign(folder: Path, node: str) -> Credentials:
    """A node's credentials of another pool of the same name: another incarnation."""
    return Coordinator(folder).enrol(node)
