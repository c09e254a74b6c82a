"""What strangers, tokens and members can keep others from by connections and by calls that do not end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager

import grpc
import psutil
import pytest

from gpushared.api.v1 import jobs_pb2, jobs_pb2_grpc, leases_pb2, pool_pb2
from gpushared.client.http import ConnectionLost
from gpushared.client.pipeline import JobRequest, Pool
from gpushared.client.pipeline.pool_steps import JobWarning
from gpushared.pool.coordinator.connections import ConnectionBounds, bounds_here
from gpushared.pool.trust.callers import CALLS_OF_A_PRINCIPAL
from gpushared.pool.trust.people import coordinator_host
from tests.pool.http2 import http2
from tests.pool.processes import POOL
from tests.redteam.pool.lab import Code, Lab, Metadata, ask, bearer

STRANGER = "127.0.0.2"
FLOOD = 15_000
"""Connections at once, for which the attacker and the coordinator have descriptors."""
PROMPT_SECONDS = 2.0
USERS, NODES = 0, 1
PORTS = pytest.mark.parametrize("port", [USERS, NODES], ids=["users' port", "nodes' port"])
A_JOB = jobs_pb2.SubmitRequest(
    lease=leases_pb2.LeaseRequest(gpu="0.25"), image="busybox", create_body=b'{"Image": "busybox"}'
)
BOB = "bob@ws2"


@pytest.fixture(scope="module")
def bounds() -> ConnectionBounds:
    """Those of the coordinator, which has the limits of this process."""
    return bounds_here()


@contextmanager
def flood(lab: Lab, port: int, *addresses: str) -> Iterator[None]:
    """Silent connections, each of which is opened anew when it ends; begun when many came."""
    words = ["-m", "tests.pool.flood", str(lab.coordinator.ports[port]), str(FLOOD), *addresses]
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as attacker:
        try:
            assert attacker.stdout is not None
            for line in attacker.stdout:
                if int(line.split()[1]) >= FLOOD:
                    break
            yield
        finally:
            attacker.kill()


def descriptors(lab: Lab) -> int:
    assert lab.coordinator.process is not None
    return psutil.Process(lab.coordinator.process.pid).num_fds()


def took(deed: Callable[[], object]) -> float:
    since = time.monotonic()
    deed()
    return time.monotonic() - since


def served_after(deed: Callable[[], object]) -> float:
    """Return how long the deed took, all its tries together.

    Until surplus connections are ended, a flood may fill a port, and then gRPC refuses what comes: nodes and
    people dial again.
    """
    since = time.monotonic()
    while time.monotonic() - since < PROMPT_SECONDS:
        try:
            deed()
        except (AssertionError, ConnectionLost):
            time.sleep(0.05)
        else:
            break
    return time.monotonic() - since


@contextmanager
def members_watch(lab: Lab) -> Iterator[Iterator[jobs_pb2.Job]]:
    """A member's open stream, on which a user of its follows a job of theirs; it has told once."""
    with lab.as_member() as channel:
        code, answer = ask(channel, "Jobs/Submit", A_JOB, lab.word(BOB, A_JOB))
        assert code is Code.OK
        job = jobs_pb2.JobRef(job_id=answer.job_ids[0])
        changes = jobs_pb2_grpc.JobsStub(channel).Watch(job, metadata=lab.word(BOB, job))
        assert next(changes).state == "queued"
        yield changes
        asked_end = jobs_pb2.CancelJobRequest(job_id=job.job_id)
        assert ask(channel, "Jobs/Cancel", asked_end, lab.word(BOB, asked_end))[0] is Code.OK
        assert "cancelled" in {one.state for one in changes}


def as_bob(lab: Lab) -> None:
    """A new connection of the member's, and a call on it."""
    with lab.as_member() as channel:
        asked = jobs_pb2.ListJobsRequest()
        assert ask(channel, "Jobs/List", asked, lab.word(BOB, asked))[0] is Code.OK


def as_carla(lab: Lab) -> None:
    """A new connection of a token's, and a call on it."""
    token = lab.coordinator.directory / "token-carla-"
    with Pool(lab.coordinator.address, ca_file=lab.coordinator.anchors_file, token_file=token) as carla:
        carla.nodes()


@contextmanager
def others_are_served(lab: Lab) -> Iterator[None]:
    """A member's stream goes on; during the block others are answered, again and again."""
    lab.coordinator.token_file("carla")
    with members_watch(lab):
        yield
        for _ in range(5):
            assert took(lab.coordinator.admin.status) < PROMPT_SECONDS
            assert served_after(lambda: as_carla(lab)) < PROMPT_SECONDS
            assert served_after(lambda: as_bob(lab)) < PROMPT_SECONDS
            time.sleep(0.5)


# --- connections -----------------------------------------------------------------------------------------


@PORTS
def test_silent_connections_from_an_address_keep_nobody_else_out(lab: Lab, port: int) -> None:
    with ExitStack() as attack, others_are_served(lab):
        attack.enter_context(flood(lab, port, STRANGER))


@PORTS
def test_silent_connections_from_many_addresses_keep_nobody_else_out(lab: Lab, port: int) -> None:
    """From each there are fewer than an address may have."""
    addresses = [f"127.0.{net}.{host}" for net in (1, 2) for host in range(1, 101)]
    with ExitStack() as attack, others_are_served(lab):
        attack.enter_context(flood(lab, port, *addresses))


def test_silent_connections_at_both_ports_leave_descriptors(lab: Lab, bounds: ConnectionBounds) -> None:
    with flood(lab, USERS, STRANGER, "127.0.0.3"), flood(lab, NODES, STRANGER, "127.0.0.3"):
        time.sleep(2)
        assert descriptors(lab) < 2 * bounds.of_port
        assert took(lab.coordinator.admin.status) < PROMPT_SECONDS


def test_an_address_is_served_again_after_its_flood(lab: Lab, bounds: ConnectionBounds) -> None:
    """From 127.0.0.1, where all of these tests come from."""
    with flood(lab, USERS, "127.0.0.1"):
        assert took(lab.coordinator.admin.status) < PROMPT_SECONDS
    lab.coordinator.token_file("carla")
    until = time.monotonic() + 30
    while took(lambda: as_carla(lab)) > PROMPT_SECONDS or descriptors(lab) >= bounds.of_address:
        assert time.monotonic() < until, f"{descriptors(lab)} descriptors are open"


def silent(port: int, count: int) -> list[asyncio.Task[float]]:
    """Connections that say nothing; each ends with how long it was open."""

    async def one() -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        since = time.monotonic()
        await reader.read()
        writer.close()
        return time.monotonic() - since

    return [asyncio.create_task(one()) for _ in range(count)]


@PORTS
async def test_a_connection_that_says_nothing_ends_in_seconds(lab: Lab, port: int) -> None:
    ends = silent(lab.coordinator.ports[port], 20)
    assert max(await asyncio.gather(*ends)) < 15
    assert await asyncio.to_thread(took, lambda: as_bob(lab)) < PROMPT_SECONDS


async def test_a_handshake_of_a_byte_now_and_then_ends_in_seconds(lab: Lab) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", lab.coordinator.ports[USERS])
    since = time.monotonic()
    hello = b"\x16\x03\x01\x01\x00\x01\x00\x00\xfc\x03\x03" + bytes(200)
    for at in range(len(hello)):
        writer.write(hello[at : at + 1])
        await asyncio.sleep(0.5)
        if reader.at_eof() or writer.transport.is_closing():
            break
    assert time.monotonic() - since < 20
    writer.transport.abort()


async def test_a_connection_on_which_nothing_is_called_ends_in_seconds(lab: Lab) -> None:
    """TLS and HTTP/2 are spoken, and pings are answered."""
    async with http2(lab.coordinator.ports[USERS]) as stranger:
        assert await stranger.over(1, 45) == "gone"


async def test_connections_of_a_token_keep_nobody_else_out(lab: Lab, bounds: ConnectionBounds) -> None:
    """Each has made a call, so that it is no stranger's."""
    lab.coordinator.token_file("carla")
    surplus = 100
    async with AsyncExitStack() as stack:
        eves = []
        for _ in range(bounds.of_caller + surplus):
            eve = await stack.enter_async_context(http2(lab.coordinator.ports[USERS], STRANGER))
            await eve.call("/gpushare.v1.Jobs/Wait", [(name, str(value)) for name, value in bearer(lab.eve)])
            eves.append(eve)
        async with asyncio.timeout(30):
            while sum(one.is_gone for one in eves) < surplus:  # noqa: ASYNC110 - the kernel tells of no end
                await asyncio.sleep(0.2)
        assert await asyncio.to_thread(took, lambda: as_carla(lab)) < PROMPT_SECONDS


# --- calls under way -------------------------------------------------------------------------------------


@asynccontextmanager
async def channels(
    lab: Lab, port: int, credentials: grpc.ChannelCredentials, count: int
) -> AsyncIterator[list[grpc.aio.Channel]]:
    """Each is a connection of its own."""
    options = [
        ("grpc.ssl_target_name_override", coordinator_host(POOL)),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with AsyncExitStack() as stack:
        address = f"127.0.0.1:{lab.coordinator.ports[port]}"
        made = [grpc.aio.secure_channel(address, credentials, options) for _ in range(count)]
        yield [await stack.enter_async_context(one) for one in made]


@asynccontextmanager
async def under_way(
    some: list[grpc.aio.Channel], count: int, wait: jobs_pb2.WaitJobRequest, word: Callable[[], Metadata]
) -> AsyncIterator[Counter[Code]]:
    """So many waits for a job that does not change, and how those ended that did. Others go on waiting."""

    async def one(channel: grpc.aio.Channel) -> Code:
        try:
            await jobs_pb2_grpc.JobsStub(channel).Wait(wait, metadata=word(), timeout=60)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return Code.OK

    calls = [asyncio.create_task(one(some[at % len(some)])) for at in range(count)]
    done, waiting = await asyncio.wait(calls, timeout=12)
    yield Counter(call.result() for call in done)
    for call in waiting:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def refused(ends: Counter[Code]) -> int:
    """How many calls were refused. Of some hundred at once gRPC's client calls a few cancelled."""
    assert set(ends) <= {Code.RESOURCE_EXHAUSTED, Code.CANCELLED}
    assert ends[Code.RESOURCE_EXHAUSTED] > 10 * ends[Code.CANCELLED]
    return ends.total()


def eves_wait(lab: Lab) -> jobs_pb2.WaitJobRequest:
    """A wait for a job of Eve's that nothing changes."""
    with lab.as_stranger(lab.coordinator.ports[USERS]) as channel:
        _, answer = ask(channel, "Jobs/Submit", A_JOB, bearer(lab.eve))
        wanted = jobs_pb2.JobRef(job_id=answer.job_ids[0])
        _, job = ask(channel, "Jobs/Get", wanted, bearer(lab.eve))
    return jobs_pb2.WaitJobRequest(job_id=job.id, token=job.token, timeout_seconds=50)


async def test_a_token_has_so_many_calls_under_way_and_no_more(lab: Lab) -> None:
    wait = await asyncio.to_thread(eves_wait, lab)
    credentials = grpc.ssl_channel_credentials(lab.anchors)
    count = CALLS_OF_A_PRINCIPAL + 200
    async with (
        channels(lab, USERS, credentials, 8) as some,
        under_way(some, count, wait, lambda: bearer(lab.eve)) as ends,
    ):
        assert refused(ends) == 200
        assert await asyncio.to_thread(took, lambda: list(lab.ada.jobs())) < PROMPT_SECONDS


async def test_a_script_that_waits_for_64_jobs_at_once_is_served(lab: Lab) -> None:
    wait = await asyncio.to_thread(eves_wait, lab)
    credentials = grpc.ssl_channel_credentials(lab.anchors)
    async with (
        channels(lab, USERS, credentials, 1) as some,
        under_way(some, 64, wait, lambda: bearer(lab.eve)) as ends,
    ):
        assert not ends


async def test_a_user_of_a_node_does_not_use_up_the_calls_of_its_others(lab: Lab) -> None:
    with members_watch(lab):
        job = await asyncio.to_thread(bobs_job, lab)
        wait = jobs_pb2.WaitJobRequest(job_id=job.id, token=job.token, timeout_seconds=50)
        count = CALLS_OF_A_PRINCIPAL + 200
        async with (
            channels(lab, NODES, lab.member.credentials(), 2) as some,
            under_way(some, count, wait, lambda: lab.word(BOB, wait)) as ends,
        ):
            assert refused(ends) == 201  # the stream that is watched is one of Bob's calls, too
            asked = jobs_pb2.ListJobsRequest()
            stub = jobs_pb2_grpc.JobsStub(some[0])
            await stub.List(asked, metadata=lab.word("carol@ws2", asked), timeout=PROMPT_SECONDS)


def bobs_job(lab: Lab) -> jobs_pb2.Job:
    """The one that is being watched."""
    with lab.as_member() as channel:
        asked = jobs_pb2.ListJobsRequest()
        _, answer = ask(channel, "Jobs/List", asked, lab.word(BOB, asked))
        found: jobs_pb2.Job = answer.jobs[0]
        return found


async def test_calls_of_strangers_that_are_never_finished_keep_nobody_else_out(lab: Lab) -> None:
    """Their messages do not come; an address has so many under way, and each ends by itself."""
    lab.coordinator.token_file("carla")
    async with AsyncExitStack() as stack:
        strangers = [
            await stack.enter_async_context(http2(lab.coordinator.ports[USERS], STRANGER)) for _ in range(12)
        ]
        for one in strangers:
            for _ in range(200):
                await one.call("/gpushare.v1.Join/GetTrust")
        await asyncio.sleep(2)
        assert sum(len(one.ended) for one in strangers) >= 200
        with lab.as_stranger(lab.coordinator.ports[USERS]) as channel:
            asked = pool_pb2.GetTrustRequest()
            began = time.monotonic()
            await asyncio.to_thread(ask, channel, "Join/GetTrust", asked)
            assert time.monotonic() - began < PROMPT_SECONDS
        assert await asyncio.to_thread(took, lambda: as_carla(lab)) < PROMPT_SECONDS


# --- work on the event loop ------------------------------------------------------------------------------


async def test_lists_of_one_person_hold_nobody_else_up(lab: Lab) -> None:
    """96 at once, of a thousand jobs each, beside ten thousand of the person's own."""
    token = lab.coordinator.token_file("dave")
    dave = Pool(lab.coordinator.address, ca_file=lab.coordinator.anchors_file, token_file=token)
    with dave, pytest.warns(JobWarning):
        await asyncio.to_thread(dave.submit_array, JobRequest("busybox", ["true"], gpu="0.25"), "0-9999")
    asked, word = jobs_pb2.ListJobsRequest(limit=1000), bearer(token.read_text().strip())
    async with channels(lab, USERS, grpc.ssl_channel_credentials(lab.anchors), 4) as some:
        lists = [
            asyncio.ensure_future(jobs_pb2_grpc.JobsStub(some[at % 4]).List(asked, metadata=word, timeout=60))
            for at in range(96)
        ]
        longest = 0.0
        for _ in range(20):
            longest = max(longest, await asyncio.to_thread(took, lambda: lab.ada.get(lab.job)))
        assert longest < PROMPT_SECONDS
        assert len((await lists[0]).jobs) == 1000
        for one in lists:
            one.cancel()
        await asyncio.gather(*lists, return_exceptions=True)
