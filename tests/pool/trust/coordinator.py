"""A coordinator with nothing but its trust: real gRPC ports with real TLS, a real store, real files."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpushared.api.v1 import jobs_pb2, jobs_pb2_grpc, link_pb2, link_pb2_grpc, pool_pb2_grpc
from gpushared.config.queue_rules import UserConfig
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import GpushareError
from gpushared.net.call_checks import OPTIONS, Context, abort, error_of
from gpushared.net.intake import Intake
from gpushared.net.limits import Rates
from gpushared.pool.coordinator.join_service import JoinService
from gpushared.pool.member.enrolment import Enrolment
from gpushared.pool.trust.assertions import ASSERTION_METADATA, request_digest
from gpushared.pool.trust.authority import NODE_SECONDS, Authority
from gpushared.pool.trust.callers import PoolCaller
from gpushared.pool.trust.certificate_status import LedgerMember
from gpushared.pool.trust.people import coordinator_host, people_of
from gpushared.pool.trust.token_records import Scope
from gpushared.pool.trust.trust import CA_FOLDER, PoolTrust
from gpushared.storage.job_store import SqliteStore

POOL = "lab"
NO_LIMIT = 1_000_000


@dataclass
class Clock:
    """The machine's, and so much beside it."""

    offset: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.offset


class Jobs(jobs_pb2_grpc.JobsServicer):
    """Answers a cancellation with who asked for it; who waits, waits until ``may_answer``."""

    def __init__(self, trust: PoolTrust) -> None:
        self._trust = trust
        self.waits, self.may_answer = asyncio.Event(), asyncio.Event()

    async def Wait(  # noqa: N802 - gRPC's name
        self, request: jobs_pb2.WaitJobRequest, context: Context[Any, Any]
    ) -> jobs_pb2.Job:
        return await self._trust.callers.unary(self._wait, request, context)

    async def _wait(self, request: jobs_pb2.WaitJobRequest, caller: PoolCaller) -> jobs_pb2.Job:
        caller.require(Scope.READ)
        self.waits.set()
        await self.may_answer.wait()
        return jobs_pb2.Job(id=request.job_id, owner=caller.owner.person)

    async def Cancel(  # noqa: N802 - gRPC's name
        self, request: jobs_pb2.CancelJobRequest, context: Context[Any, Any]
    ) -> jobs_pb2.Job:
        return await self._trust.callers.unary(self._cancel, request, context)

    async def _cancel(self, request: jobs_pb2.CancelJobRequest, caller: PoolCaller) -> jobs_pb2.Job:
        caller.require(Scope.CANCEL)
        who = f"{caller.owner.person} as {caller.owner.principal}{' (admin)' if caller.is_admin else ''}"
        return jobs_pb2.Job(id=request.job_id, owner=who)

    async def Watch(  # noqa: N802 - gRPC's name
        self, request: jobs_pb2.JobRef, context: Context[Any, Any]
    ) -> AsyncIterator[jobs_pb2.Job]:
        async for answer in self._trust.callers.stream(_watch, request, context):
            yield answer


async def _watch(request: jobs_pb2.JobRef, caller: PoolCaller) -> AsyncIterator[jobs_pb2.Job]:
    """Says who asks, and then nothing for ever; of the job ``over`` that is all."""
    caller.require(Scope.READ)
    yield jobs_pb2.Job(id=request.job_id, owner=caller.owner.person)
    if request.job_id != "over":
        await asyncio.Event().wait()


class Link(link_pb2_grpc.NodeLinkServicer):
    """A stream that stays open as long as the node's certificate counts."""

    def __init__(self, trust: PoolTrust) -> None:
        self._trust = trust

    async def Connect(  # noqa: N802 - gRPC's name
        self, requests: AsyncIterator[link_pb2.Up], context: Context[Any, Any]
    ) -> AsyncIterator[link_pb2.Down]:
        try:
            certificate = self._trust.callers.node_of(context)
            with self._trust.certificate_status.watching(
                self._trust.certificate_status.proof_check(certificate)
            ) as gone:
                yield link_pb2.Down(welcome=link_pb2.Welcome(pool=certificate.node))
                raise await gone
        except GpushareError as error:
            await abort(context, error)


@dataclass
class Coordinator:
    """As it runs. ``users`` may be changed at any time."""

    trust: PoolTrust
    clock: Clock
    users_port: int
    nodes_port: int
    users: dict[str, UserConfig] = field(default_factory=dict)
    enrolled: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    jobs: Jobs = field(init=False)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.users_port}"

    @property
    def anchors(self) -> bytes:
        return self.trust.authority.anchors_pem

    async def token(self, node: str = "", **more: Any) -> str:
        words, _ = await self.trust.join_tokens.make("root", self.clock(), node=node, **more)
        return str(words)

    async def api_token(self, person: str, *scopes: str, **more: Any) -> str:
        admins = people_of(self.users).admins
        words, _ = await self.trust.api_tokens.make(
            "root", self.clock(), person=person, scopes=scopes, admins=admins, **more
        )
        return str(words)

    async def expel(self, node: str) -> None:
        await self.trust.enrolment.expel(NodeName(node), "root")

    def members(self) -> dict[str, LedgerMember]:
        return {str(node): one for node, one in self.trust.members().items()}

    def channel(self, port: int, credentials: grpc.ChannelCredentials) -> grpc.aio.Channel:
        options = [
            ("grpc.ssl_target_name_override", coordinator_host(POOL)),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options)


@asynccontextmanager
async def coordinator(
    folder: Path,
    *,
    users: Mapping[str, UserConfig] | None = None,
    node_seconds: int = NODE_SECONDS,
    rates: Rates | None = None,
    ports: tuple[int, int] = (0, 0),
    founded_at: float | None = None,
) -> AsyncIterator[Coordinator]:
    """Founded where there is none yet."""
    clock = Clock()
    if not (folder / CA_FOLDER).exists():
        Authority.create(folder / CA_FOLDER, POOL, founded_at or clock())
    store = SqliteStore(folder / "pool.db")
    epoch = await store.lead()
    made = Coordinator(None, clock, 0, 0, dict(users or {}))  # type: ignore[arg-type]  # follows

    async def enrolled(node: str, realms: tuple[str, ...]) -> None:
        made.enrolled.append((node, realms))

    made.trust = trust = PoolTrust(
        folder,
        store,
        epoch=lambda: epoch,
        people=lambda: people_of(made.users),
        now=clock,
        hosts=["127.0.0.1", "localhost"],
        enrolled=enrolled,
        node_seconds=node_seconds,
    )
    intake = Intake(trust.callers.admitted, trust.callers.refuse_unread)
    server = grpc.aio.server(options=OPTIONS, interceptors=[intake])
    join = JoinService(trust, lambda: made.nodes_port, clock, rates or Rates(time.monotonic, burst=NO_LIMIT))
    pool_pb2_grpc.add_JoinServicer_to_server(join, server)
    made.jobs = Jobs(trust)  # type: ignore[abstract]  # a few calls are enough here
    jobs_pb2_grpc.add_JobsServicer_to_server(made.jobs, server)
    link_pb2_grpc.add_NodeLinkServicer_to_server(
        Link(trust),  # type: ignore[abstract]  # one call is enough here
        server,
    )
    made.users_port = server.add_secure_port(f"127.0.0.1:{ports[0]}", trust.identity.for_users())
    made.nodes_port = server.add_secure_port(f"127.0.0.1:{ports[1]}", trust.identity.for_nodes())
    await server.start()
    try:
        async with trust.running():
            yield made
    finally:
        await server.stop(grace=None)
        await store.close()


async def within(awaited: Any, seconds: float = 20.0) -> Any:
    """Its result; fails rather than hangs."""
    async with asyncio.timeout(seconds):
        return await awaited


async def refusal(awaited: Any) -> GpushareError:
    """What it is refused with, whichever side says so; it says what helps."""
    with pytest.raises((GpushareError, grpc.aio.AioRpcError)) as caught:
        await within(awaited)
    raised = caught.value
    error = error_of(raised, "the coordinator") if isinstance(raised, grpc.aio.AioRpcError) else raised
    assert isinstance(error, GpushareError)
    assert error.hint
    return error


async def member(pool: Coordinator, folder: Path, name: str, **token: Any) -> Enrolment:
    """A node of the pool; its clock is the coordinator's."""
    joined = Enrolment(folder / name / "pool", pool.clock, chance=random.Random(1), spread_seconds=0)
    await joined.join(pool.address, await pool.token(name, **token), name)
    return joined


async def cancel(
    pool: Coordinator, node: Enrolment, principal: str, *, signed: bytes | None = None, job: str = "j"
) -> str:
    """What a node's user does over the nodes' port; who the coordinator took them for."""
    request = jobs_pb2.CancelJobRequest(job_id=job)
    word = signed or node.asserter().sign(principal, (), request_digest(request), pool.clock())
    async with pool.channel(pool.nodes_port, node.credentials()) as channel:
        call = jobs_pb2_grpc.JobsStub(channel).Cancel
        answer = await within(call(request, metadata=((ASSERTION_METADATA, word),)))
    return str(answer.owner)


async def cancel_with(pool: Coordinator, *metadata: tuple[str, str | bytes]) -> str:
    """The same over the users' port, with a token or whatever else."""
    async with pool.channel(pool.users_port, grpc.ssl_channel_credentials(pool.anchors)) as channel:
        call = jobs_pb2_grpc.JobsStub(channel).Cancel
        return str((await within(call(jobs_pb2.CancelJobRequest(job_id="j"), metadata=metadata))).owner)


class Stream:
    """A node's open stream."""

    def __init__(self, pool: Coordinator, credentials: grpc.ChannelCredentials) -> None:
        self._channel = pool.channel(pool.nodes_port, credentials)
        self._call = link_pb2_grpc.NodeLinkStub(self._channel).Connect()

    async def open(self) -> str:
        """The node's name as the coordinator has it."""
        return str((await within(self._call.read())).welcome.pool)

    async def ended(self) -> GpushareError:
        """Why."""
        return await refusal(self._call.read())

    @property
    def is_open(self) -> bool:
        return not self._call.done()

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()
