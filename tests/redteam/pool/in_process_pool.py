"""A real coordinator in this process, with members that say what they like, and holders of tokens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gpushared.api.v1 import jobs_pb2, leases_pb2, link_pb2, link_pb2_grpc
from gpushared.config.pool_settings import CoordinatorConfig, CoordinatorSection
from gpushared.config.queue_rules import UserConfig
from gpushared.daemon.systemd import Notifier
from gpushared.domain.jobs.coordinator_events import NodeEnrolled
from gpushared.domain.jobs.job import Job, JobSpec, NodeName, Owner
from gpushared.domain.jobs.member import HeartbeatReport, Inventory
from gpushared.domain.jobs.protocol import Report
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.request import Request
from gpushared.pool.coordinator.app import SERVICE_FACTORIES, PoolDaemon, real_pool_parts
from gpushared.pool.coordinator.running_parts import CoordinatorParts, Service
from gpushared.pool.coordinator.stores import STORE_NAME
from gpushared.pool.link import codec
from gpushared.pool.member.link_session import Call
from gpushared.pool.trust.assertions import ASSERTION_METADATA, Asserter, request_digest
from gpushared.pool.trust.people import coordinator_host
from gpushared.pool.trust.pool_init import found_pool
from tests.pool.link.coordinator import WAIT_SECONDS, Credentials, enlist

POOL = "lab"
BODY = json.dumps({"Image": "busybox"}, separators=(",", ":"))
_JOBS = jobs_pb2.DESCRIPTOR.services_by_name["Jobs"]
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Answer:
    """How a call ended, and what it said first: all that its caller can see of it."""

    code: grpc.StatusCode
    said: Any = None
    message: str = ""
    metadata: tuple[tuple[str, str], ...] = ()

    def about(self, other: str, job: str) -> Answer:
        """The same, said of another job."""
        return replace(self, message=self.message.replace(other, job))


def spec_of(principal: str, request_id: str = "", **more: Any) -> JobSpec:
    """What a node proposes for one of its users."""
    owner = Owner(principal, principal)
    return replace(JobSpec(Request(), owner, "busybox", BODY, request_id=request_id), **more)


def submit_request(request_id: str = "", **more: Any) -> jobs_pb2.SubmitRequest:
    lease = leases_pb2.LeaseRequest(gpu="0.25", held=True)
    return jobs_pb2.SubmitRequest(
        request_id=request_id, lease=lease, image="busybox", create_body=BODY.encode(), **more
    )


async def ask(
    channel: grpc.aio.Channel, call: str, message: Message, metadata: tuple[tuple[str, str | bytes], ...]
) -> Answer:
    """On the wire every call is a stream."""
    method = _JOBS.methods_by_name[call]
    asked = channel.stream_stream(
        f"/{_JOBS.full_name}/{call}",
        request_serializer=type(message).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )(metadata=metadata, timeout=WAIT_SECONDS)
    try:
        await asked.write(message)
        await asked.done_writing()
        said = await asked.read()
        if said is not grpc.aio.EOF:
            return Answer(grpc.StatusCode.OK, said)
        code, told = await asked.code(), await asked.trailing_metadata()
    except grpc.aio.AioRpcError as error:
        code, told = error.code(), error.trailing_metadata()
    hints = tuple((str(key), str(value)) for key, value in told)
    return Answer(code, None, await asked.details() or "", hints)


class Link:
    """A member's stream to the coordinator, by hand. ``downs`` is all that came."""

    def __init__(self, member: Member, call: Call) -> None:
        self.member = member
        self._call = call
        self._came = asyncio.Condition()
        self.downs: list[link_pb2.Down] = []

    async def hear(self) -> None:
        while isinstance(down := await self._call.read(), link_pb2.Down):
            async with self._came:
                self.downs.append(down)
                self._came.notify_all()

    async def say(self, up: link_pb2.Up) -> None:
        await self._call.write(up)

    async def heard(self, which: Callable[[link_pb2.Down], _Found | None]) -> _Found:
        """Wait for something that the coordinator says."""

        def found() -> list[_Found]:
            return [one for one in map(which, self.downs) if one is not None]

        async with asyncio.timeout(WAIT_SECONDS), self._came:
            await self._came.wait_for(found)
        return found()[-1]

    async def acknowledged(self, job: str, *, cancel: bool) -> link_pb2.OutboxAck:
        def ack(down: link_pb2.Down) -> link_pb2.OutboxAck | None:
            told = down.outbox_ack
            is_it = down.HasField("outbox_ack") and (told.job_id, told.cancel) == (job, cancel)
            return told if is_it else None

        answer = await self.heard(ack)
        self.downs = [down for down in self.downs if ack(down) is None]
        return answer

    async def submit(
        self, job: str, spec: JobSpec, *, old: bool = False, held: bool = True
    ) -> link_pb2.OutboxAck:
        """Propose a job under an id, in the name of its owner, and wait for the answer."""
        body = codec.spec_bytes(spec)
        word = self.member.sign(spec.owner.principal, codec.job_digest(JobId(job), body))
        told = link_pb2.OutboxJob(job_id=job, spec=body, held=held, old=old, assertion=word)
        await self.say(link_pb2.Up(job=told))
        return await self.acknowledged(job, cancel=False)

    async def cancel(self, job: str, principal: str) -> link_pb2.OutboxAck:
        word = self.member.sign(principal, codec.cancel_digest(JobId(job), 0))
        await self.say(link_pb2.Up(cancel=link_pb2.OutboxCancel(job_id=job, assertion=word)))
        return await self.acknowledged(job, cancel=True)

    def updates(self) -> list[str]:
        """The jobs of whose state this node was told."""
        told = [down.update for down in self.downs if down.HasField("update")]
        return [jobs_pb2.Job.FromString(update.job).id for update in told]


class Member:
    """A machine with a certificate and a key of its own, in whosever hands."""

    def __init__(self, pool: InProcessPool, credentials: Credentials) -> None:
        self.pool = pool
        self.name = credentials.node
        self._credentials = credentials
        self._asserter = Asserter(credentials.assertion_key, credentials.pool)

    def sign(self, principal: str, digest: bytes) -> bytes:
        """The word of this machine for a user."""
        return self._asserter.sign(principal, (), digest, time.time())

    def _channel(self) -> grpc.aio.Channel:
        named = [("grpc.ssl_target_name_override", self._credentials.server_name)]
        address = f"127.0.0.1:{self.pool.daemon.nodes_port}"
        return grpc.aio.secure_channel(address, self._credentials.channel(), named)

    @asynccontextmanager
    async def link(self, *reports: Report) -> AsyncIterator[Link]:
        """Its stream, welcomed. ``reports``: the attempts that its hello tells of."""
        hello = link_pb2.Hello(
            node=self.name,
            capabilities=codec.CAPABILITIES,
            inventory=codec.inventory_bytes(Inventory(())),
            free=codec.free_bytes(HeartbeatReport()),
            reports=map(codec.report_bytes, reports),
        )
        async with self._channel() as channel:
            made = Link(self, link_pb2_grpc.NodeLinkStub(channel).Connect())
            hearing = asyncio.create_task(made.hear())
            try:
                await made.say(link_pb2.Up(hello=hello))
                await made.heard(lambda down: True if down.HasField("welcome") else None)
                yield made
            finally:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)

    async def call(self, principal: str, call: str, message: Message) -> Answer:
        """A call of ``Jobs`` with this machine's word for a user."""
        word = self.sign(principal, request_digest(message))
        async with self._channel() as channel:
            return await ask(channel, call, message, ((ASSERTION_METADATA, word),))


@dataclass
class InProcessPool:
    """The pool's folder, and its coordinator while it runs. ``users`` is its user table."""

    folder: Path
    users: dict[str, UserConfig] = field(default_factory=dict)
    parts: list[CoordinatorParts] = field(default_factory=list)
    _daemons: list[PoolDaemon] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    @property
    def daemon(self) -> PoolDaemon:
        return self._daemons[-1]

    @property
    def coordinator(self) -> CoordinatorParts:
        return self.parts[-1]

    async def start(self) -> None:
        section = CoordinatorSection(
            listen="127.0.0.1:0",
            listen_nodes="127.0.0.1:0",
            state_dir=str(self.folder / "state"),
            runtime_dir=str(self.folder / "run"),
        )
        config, ready = CoordinatorConfig(section, users=self.users), _Ready()
        self._daemons.append(
            PoolDaemon(config, real_pool_parts(config), ready, factories=(*SERVICE_FACTORIES, self._note))
        )
        self._task = asyncio.create_task(self.daemon.run())
        told = asyncio.create_task(ready.told.wait())
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.wait({self._task, told}, return_when=asyncio.FIRST_COMPLETED)
        assert not self._task.done(), self._task

    def _note(self, coordinator: CoordinatorParts) -> Sequence[Service]:
        self.parts.append(coordinator)
        return ()

    async def stop(self) -> None:
        assert self._task is not None
        self.daemon.stop()
        await self._task

    async def lose_memory(self) -> None:
        """The store is lost; the certificates are not. The coordinator waits for all members."""
        await self.stop()
        for file in (self.folder / "state").glob(f"{STORE_NAME}*"):
            file.unlink()
        await self.start()

    async def member(self, name: str, *realms: str) -> Member:
        """A machine that joined, with the realms for which its token let it speak."""
        credentials = enlist(self.coordinator.trust, name, realms=frozenset(realms))
        await self.coordinator.loop.send(NodeEnrolled(NodeName(name), (name, *realms)))
        return Member(self, credentials)

    async def token(self, person: str) -> str:
        tokens = self.coordinator.trust.api_tokens
        admins = frozenset(name for name, user in self.users.items() if user.admin)
        scopes = ("submit", "read", "logs", "cancel", *(["admin"] if person in admins else []))
        words, _ = await tokens.make("root", time.time(), person=person, scopes=scopes, admins=admins)
        return str(words)

    async def call(self, token: str, call: str, message: Message) -> Answer:
        """A call of ``Jobs`` with an API token."""
        anchors = grpc.ssl_channel_credentials(self.coordinator.trust.authority.anchors_pem)
        named = [("grpc.ssl_target_name_override", coordinator_host(POOL))]
        address = f"127.0.0.1:{self.daemon.users_port}"
        async with grpc.aio.secure_channel(address, anchors, named) as channel:
            return await ask(channel, call, message, (("authorization", f"Bearer {token}"),))

    def job(self, job: str) -> Job | None:
        """As the coordinator has it."""
        state = self.coordinator.loop.state
        return state.jobs.get(JobId(job)) or state.ended.get(JobId(job))


class _Ready(Notifier):
    def __init__(self) -> None:
        super().__init__("")
        self.told = asyncio.Event()

    def ready(self, status: str) -> None:
        self.told.set()


@asynccontextmanager
async def in_process_pool(folder: Path, **users: UserConfig) -> AsyncIterator[InProcessPool]:
    found_pool(folder / "state", POOL, time.time())
    made = InProcessPool(folder, users)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
