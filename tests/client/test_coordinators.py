"""A program that knows several coordinators: real TLS, one that leads, and others that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpushared.api.v1 import jobs_pb2, jobs_pb2_grpc
from gpushared.client.pipeline import AsyncPool, JobRequest, Pool, pool_address
from gpushared.client.pipeline.pool_address import PoolAddress, find_pool
from gpushared.domain.model.errors import NotFound, NotLeader, RequestError, Unavailable
from gpushared.net.call_checks import Context, abort
from gpushared.pool.coordinator import service_factories
from tests.pool.link.coordinator import Coordinator
from tests.pool.link.proxy import Proxy
from tests.pool.test_keepalive import FASTER, faster

DEAD = "127.0.0.1:1"
SECONDS = 20.0


class Jobs(jobs_pb2_grpc.JobsServicer):
    """A coordinator that leads, or refuses all calls; if its job runs, it is deposed within a stream."""

    def __init__(self, *, leads: bool = True, state: str = "succeeded") -> None:
        self.leads = leads
        self.state = state
        self.answered_by_all = frozenset[str]()
        self.calls: list[str] = []

    async def Submit(self, request: Any, context: Context[Any, Any]) -> Any:  # noqa: N802 - gRPC's name
        await self._note("Submit", context)
        return jobs_pb2.SubmitAnswer(job_ids=[f"job-of-{request.request_id}"])

    async def Get(self, request: Any, context: Context[Any, Any]) -> Any:  # noqa: N802 - gRPC's name
        await self._note("Get", context)
        if request.job_id == "nothing":
            await abort(context, NotFound("there is no job nothing", hint="gpushare queue"))
        return jobs_pb2.Job(id=request.job_id, state=self.state)

    async def Explain(self, request: Any, context: Context[Any, Any]) -> Any:  # noqa: N802 - gRPC's name
        await self._note("Explain", context)
        return jobs_pb2.JobExplanation(job=jobs_pb2.Job(id=request.job_id, state=self.state))

    async def Watch(self, request: Any, context: Context[Any, Any]) -> AsyncIterator[Any]:  # noqa: N802 - gRPC's name
        await self._note("Watch", context)
        yield jobs_pb2.Job(id=request.job_id, state=self.state, token=self.state)
        if self.state == "running":
            self.leads = False
            await abort(context, NotLeader("dgx1 leads no longer", hint="ask the others"))

    async def Logs(self, _: Any, context: Context[Any, Any]) -> AsyncIterator[Any]:  # noqa: N802 - gRPC's name
        await self._note("Logs", context)
        yield jobs_pb2.LogChunk(data=b"some output")

    async def _note(self, name: str, context: Context[Any, Any]) -> None:
        self.calls.append(name)
        if not self.leads and name not in self.answered_by_all:
            await abort(context, NotLeader("dgx1 stands by: dgx2 leads the pool lab", hint="ask dgx2"))


def coordinator(*, leads: bool = True, state: str = "succeeded") -> Jobs:
    return Jobs(leads=leads, state=state)  # type: ignore[abstract]  # a few calls are enough here


class Coordinators:
    """Serves them with one pool's certificates, in this order."""

    def __init__(self, folder: Path) -> None:
        trust = Coordinator(folder / "pool").trust
        self._identity = trust.identity
        self.anchors = folder / "anchors.pem"
        self.anchors.write_bytes(trust.authority.anchors_pem)
        self.token = folder / "token"
        self.token.write_text("gsp_one\n")

    @asynccontextmanager
    async def serving(self, *jobs: Jobs) -> AsyncIterator[list[str]]:
        """Yield their addresses."""
        async with AsyncExitStack() as stack:
            addresses = []
            for one in jobs:
                server = grpc.aio.server()
                jobs_pb2_grpc.add_JobsServicer_to_server(one, server)
                port = server.add_secure_port("127.0.0.1:0", self._identity.for_users())
                await server.start()
                stack.push_async_callback(server.stop, 0)
                addresses.append(f"127.0.0.1:{port}")
            yield addresses

    def pool(self, *addresses: str, patience_seconds: float = SECONDS) -> AsyncPool:
        return AsyncPool(
            ",".join(addresses),
            ca_file=self.anchors,
            token_file=self.token,
            patience_seconds=patience_seconds,
        )


@pytest.fixture
def coordinators(tmp_path: Path) -> Coordinators:
    return Coordinators(tmp_path)


async def test_the_one_that_leads_is_found_and_stayed_with(coordinators: Coordinators) -> None:
    """No call but the first goes to one that does not lead."""
    standby, leader = coordinator(leads=False), coordinator()
    async with (
        coordinators.serving(standby, leader) as addresses,
        coordinators.pool(DEAD, *addresses) as pool,
    ):
        job = await pool.submit(JobRequest("busybox"), request_id="mine")
        assert job == "job-of-mine"
        assert (await pool.wait(job)).state == "succeeded"
    assert standby.calls == ["Submit"]
    assert leader.calls == ["Submit", "Explain", "Get"]


async def test_a_plain_program_finds_it_too(coordinators: Coordinators) -> None:
    async with coordinators.serving(coordinator(leads=False), coordinator()) as addresses:
        made = Pool(",".join(addresses), ca_file=coordinators.anchors, token_file=coordinators.token)
        with made as pool:
            assert (await asyncio.to_thread(pool.get, "j")).id == "j"


async def test_a_watch_is_taken_up_at_the_next_leader(coordinators: Coordinators) -> None:
    first, second = coordinator(state="running"), coordinator()
    async with coordinators.serving(first, second) as addresses, coordinators.pool(*addresses) as pool:
        assert [job.state async for job in pool.watch("j")] == ["running", "succeeded"]
    assert (first.calls, second.calls) == (["Watch"], ["Watch"])


async def test_a_leader_that_falls_silent_is_left_within_a_call(
    coordinators: Coordinators, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its machine is frozen; the time-out of the call itself is not waited for."""
    monkeypatch.setattr(pool_address, "_CALL_OPTIONS", faster(pool_address._CALL_OPTIONS, FASTER))
    silent, leader = coordinator(), coordinator()
    async with (
        coordinators.serving(silent, leader) as (first, second),
        Proxy(int(first.rpartition(":")[2])).running() as proxy,
        coordinators.pool(proxy.address, second) as pool,
    ):
        await pool.get("j")
        proxy.up.lossy = proxy.down.lossy = True
        async with asyncio.timeout(SECONDS):
            await pool.submit(JobRequest("busybox"))
    assert (silent.calls, leader.calls) == (["Get"], ["Submit", "Explain"])


async def test_while_nobody_leads_all_are_asked_again_until_one_does(coordinators: Coordinators) -> None:
    """Also by a program that has just begun: a refusal shows that the pool is there."""
    one, other = coordinator(leads=False), coordinator(leads=False)
    async with coordinators.serving(one, other) as addresses, coordinators.pool(*addresses) as pool:
        asked = asyncio.create_task(pool.get("j"))
        async with asyncio.timeout(SECONDS):
            while len(one.calls) < 2 or not other.calls:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.01)
        other.leads = True
        assert (await asked).id == "j"


async def test_the_patience_is_of_all_together(coordinators: Coordinators) -> None:
    async with coordinators.serving(coordinator(leads=False)) as addresses:
        pool = coordinators.pool(DEAD, *addresses, patience_seconds=0.1)
        with pytest.raises(Unavailable):
            await pool.get("j")
        await pool.close()


async def test_output_is_read_from_the_leader_where_a_standby_tells_of_the_job(
    coordinators: Coordinators,
) -> None:
    """Reading once, without following."""
    standby, leader = coordinator(leads=False), coordinator()
    standby.answered_by_all = frozenset({"Get"})
    async with coordinators.serving(standby, leader) as addresses, coordinators.pool(*addresses) as pool:
        assert [piece async for piece in pool.logs("j")] == [b"some output"]
    assert standby.calls == ["Get", "Logs"]


async def test_a_refusal_of_the_leader_is_asked_of_no_other(coordinators: Coordinators) -> None:
    leader, other = coordinator(), coordinator()
    async with coordinators.serving(leader, other) as addresses, coordinators.pool(*addresses) as pool:
        with pytest.raises(NotFound):
            await pool.get("nothing")
    assert other.calls == []


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("dgx1,dgx2", "dgx1:7440,dgx2:7440"),
        ("dgx1:1, [::1]:2 ,192.0.2.1", "dgx1:1,[::1]:2,192.0.2.1:7440"),
        ("dgx,dgx:7440", "dgx:7440"),
    ],
)
def test_a_list_of_coordinators_is_read(address: str, target: str, coordinators: Coordinators) -> None:
    found = find_pool(address, ca_file=coordinators.anchors, token_file=coordinators.token)
    assert (found.target, found.targets) == (target, tuple(target.split(",")))


@pytest.mark.parametrize("address", [",", "dgx,b c", "dgx1,dgx2:x"])
def test_a_list_with_what_is_no_address_is_refused(address: str, coordinators: Coordinators) -> None:
    with pytest.raises(RequestError, match="is not the address of a pool"):
        find_pool(address, ca_file=coordinators.anchors, token_file=coordinators.token)


def test_a_program_closes_an_idle_connection_before_the_coordinator_does() -> None:
    idle_ms = dict(PoolAddress("dgx1:7440,dgx2:7440").options)["grpc.client_idle_timeout_ms"]
    name, coordinators_ms = service_factories._IDLE
    assert name == "grpc.max_connection_idle_ms"
    assert 2 * int(idle_ms) < coordinators_ms
