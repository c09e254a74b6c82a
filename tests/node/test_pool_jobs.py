"""The pool's jobs on a node: what users see and may do, whether the coordinator answers or not.

The coordinator here is a service on a store in memory, called without a network; what its link would carry
is carried by hand, so that each order of events can be had.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import Message

from gpushared.api.v1 import jobs_pb2, leases_pb2, link_pb2
from gpushared.domain.jobs.coordinator_events import CancelAsked, JobSubmitted
from gpushared.domain.jobs.job import Ended, NodeName, Owner
from gpushared.domain.model.errors import GpushareError, NotFound, RequestError, TimedOut, Unavailable
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.request import Caller
from gpushared.jobs.job_requests import id_of, older_id_of, read_submit
from gpushared.jobs.job_search import Archive
from gpushared.jobs.job_views import JobViews
from gpushared.jobs.jobs_service import JobsService
from gpushared.node.pool.pool_jobs import PoolJobs
from gpushared.pool.member.outbox import Outbox
from gpushared.pool.trust.assertions import Asserter
from tests.pool.pools import Pool, coordinator

ADA, BOB = Owner("ada@ws3", "ada@ws3"), Owner("bob@ws3", "bob@ws3")
CALLER = Caller(1000, 1000, "ada")
CALLS = {"List": "list_jobs"}


def submit_message(**fields: Any) -> jobs_pb2.SubmitRequest:
    lease = leases_pb2.LeaseRequest(gpu="0.1", held=True)
    body = json.dumps({"Image": "busybox"}).encode()
    return jobs_pb2.SubmitRequest(lease=lease, image="busybox", create_body=body, **fields)


class World:
    """A node's view of a pool, and the pool; ``connected`` is whether they reach each other."""

    def __init__(self, pool: Pool, node: Pool) -> None:
        self.pool = pool
        self.connected = True
        self.asker = ADA
        self.told: list[str] = []
        self.came = asyncio.Event()
        key = Ed25519PrivateKey.generate()
        self.outbox = Outbox({}, node.loop.write, lambda: Asserter(key, "lab"), pool.clock.now)
        self.outbox.sender = self
        views = JobViews(lambda: pool.loop.state, pool.loop.now)
        self.service = JobsService(pool.loop, Archive(pool.store), views)
        self.jobs = PoolJobs("lab", NodeName("ws3"), self.outbox, self, self, presets=dict)

    def away(self) -> str:
        return "" if self.connected else "the cable is out"

    def submit(self, job: str) -> None:
        self.told.append(job)
        self.came.set()

    def cancel(self, job: str) -> None:
        self.told.append(job)

    async def call(self, name: str, message: Message, caller: Caller, timeout_seconds: float) -> Any:
        if not self.connected:
            raise Unavailable("nobody answers")
        return await getattr(self.service, CALLS.get(name, name.lower()))(message, self.asker)

    async def stream(self, name: str, message: Message, caller: Caller) -> AsyncGenerator[Any, None]:
        if not self.connected:
            raise Unavailable("nobody answers")
        async for view in getattr(self.service, name.lower())(message, ADA):
            yield view

    async def carry(self) -> None:
        """What the link does: up what is in the outbox, down how it stands."""
        for job in self.outbox.jobs():
            kept = self.outbox.job(job)
            assert kept is not None
            try:
                await self.pool.loop.send(JobSubmitted(job, kept.spec, kept.held, kept.priority))
            except GpushareError as error:
                await self.outbox.taken(job, error)
                continue
            await self.outbox.taken(job, None)
            if job in self.outbox.cancels():
                await self.pool.loop.send(CancelAsked(job, ADA, 0))
                await self.outbox.cancelled(job, None)
            found = self.pool.loop.state.find(job)
            view = self.service.views.job(found).SerializeToString()
            over = isinstance(found.state, Ended)
            await self.outbox.updated(link_pb2.JobUpdate(job=view, over=over))

    async def ask(self, owner: Owner = ADA, **fields: Any) -> jobs_pb2.SubmitAnswer:
        return await self.jobs.submit(submit_message(pool=True, **fields), owner, CALLER)

    async def of(self, name: str, message: Any, owner: Owner = ADA) -> Any:
        return await self.jobs.of_job(name, message, owner, CALLER)

    async def listed(self, owner: Owner = ADA, **asked: Any) -> jobs_pb2.ListJobsResponse:
        return await self.jobs.list_jobs(jobs_pb2.ListJobsRequest(**asked), owner, CALLER)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with coordinator() as pool, coordinator() as node:
        made = World(pool, node)
        made.connected = False
        yield made


async def test_while_the_pool_is_away_a_job_is_kept_here_and_says_so(world: World) -> None:
    answer = await world.ask()
    (name,) = answer.job_ids
    assert "the cable is out" in answer.notes[0]
    assert world.told == [name]
    seen = await world.of("Get", jobs_pb2.JobRef(job_id=name))
    assert (seen.state, seen.pool) == ("held", True)
    assert "the pool does not answer" in seen.reason
    listed = await world.listed()
    assert [job.id for job in listed.jobs] == [name]
    assert "the cable is out" in listed.notices[0]


async def test_a_job_that_waits_for_another_is_taken_also_where_the_pool_died_a_moment_ago(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one came in elsewhere, and whether it is an array only the pool knows."""

    async def dead(*_: Any) -> Any:
        raise Unavailable("nobody answers")

    world.connected = True
    monkeypatch.setattr(world, "call", dead)
    monkeypatch.setattr("gpushared.node.pool.pool_jobs.TAKEN_SECONDS", 0.0)
    after = [jobs_pb2.JobAfter(job_id="k3m9x0p2qa", ok=True)]
    (name,) = (await world.ask(after=after)).job_ids
    kept = world.outbox.job(JobId(name))
    assert kept is not None
    assert [one.job for one in kept.spec.after] == ["k3m9x0p2qa"]


async def test_what_the_pool_said_last_is_shown_while_it_is_away(world: World) -> None:
    (name,) = (await world.ask(name="trainer")).job_ids
    await world.carry()
    for reference in (name, "trainer", name[:6]):
        seen = await world.of("Explain", jobs_pb2.JobRef(job_id=reference))
        assert (seen.job.id, seen.reason_code) == (name, "pool_away")
        assert "held by ada@ws3" in seen.sentence
    with pytest.raises(Unavailable):
        await world.of("Hold", jobs_pb2.HoldJobRequest(job_id=name, held=False))


async def test_a_pool_that_gives_no_answer_over_its_link_is_said_to_be_slow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link counts as there until a ping of it fails."""

    async def call(*_: object) -> None:
        raise TimedOut("no answer")

    world.connected = True
    monkeypatch.setattr(world, "call", call)
    (notice,) = (await world.listed()).notices
    slow = "the pool lab does not answer: it is slow"
    assert notice == f"{slow}; of its jobs those that came in here are shown, as they were then"


async def test_with_the_pool_its_own_word_counts(world: World) -> None:
    (name,) = (await world.ask()).job_ids
    await world.carry()
    world.connected = True
    assert "does not answer" not in (await world.of("Get", jobs_pb2.JobRef(job_id=name))).reason
    let_go = await world.of("Hold", jobs_pb2.HoldJobRequest(job_id=name, held=False))
    assert let_go.state == "queued"
    assert (await world.listed()).notices == []


async def test_a_cancellation_outlives_the_absence_of_the_pool(world: World) -> None:
    (name,) = (await world.ask()).job_ids
    await world.carry()
    seen = await world.of("Cancel", jobs_pb2.CancelJobRequest(job_id=name, grace_seconds=3))
    assert seen.state == "cancelling"
    assert seen.reason.startswith("to be cancelled as soon as it can be; ")
    assert "this machine keeps the cancellation" in seen.hint
    await world.carry()
    assert (await world.of("Get", jobs_pb2.JobRef(job_id=name))).state == "cancelled"
    assert list((await world.listed()).jobs) == []
    assert [job.id for job in (await world.listed(ended=True)).jobs] == [name]


async def test_a_cancellation_that_the_pool_hears_has_nothing_to_say(world: World) -> None:
    (name,) = (await world.ask()).job_ids
    await world.carry()
    world.connected = True
    seen = await world.of("Cancel", jobs_pb2.CancelJobRequest(job_id=name))
    assert (seen.state, seen.reason, seen.hint) == ("cancelling", "", "")


async def test_a_wait_comes_back_with_what_was_told_meanwhile(world: World) -> None:
    (name,) = (await world.ask()).job_ids
    token = (await world.of("Get", jobs_pb2.JobRef(job_id=name))).token
    await world.of("Cancel", jobs_pb2.CancelJobRequest(job_id=name))
    await world.carry()
    asked = jobs_pb2.WaitJobRequest(job_id=name, token=token, timeout_seconds=60)
    assert (await world.of("Wait", asked)).state == "cancelled"


async def test_what_the_pool_refuses_is_refused_and_not_kept(world: World) -> None:
    world.connected = True
    task = asyncio.create_task(world.ask(node="nowhere"))
    await world.came.wait()
    await world.carry()
    with pytest.raises(NotFound, match="no node"):
        await task
    assert world.outbox.records() == []


async def test_a_name_means_the_run_that_is_not_over_and_never_one_of_several(world: World) -> None:
    first, second = [
        (await world.ask(name="x", interactive=True, request_id=request)).job_ids[0] for request in "ab"
    ]
    with pytest.raises(Unavailable):
        await world.of("Cancel", jobs_pb2.CancelJobRequest(job_id="x"))
    world.connected = True
    await world.carry()
    with pytest.raises(RequestError, match="the name of 2 jobs"):
        await world.of("Cancel", jobs_pb2.CancelJobRequest(job_id="x"))
    await world.of("Cancel", jobs_pb2.CancelJobRequest(job_id=second))
    await world.carry()
    assert (await world.of("Get", jobs_pb2.JobRef(job_id="x"))).id == first
    world.connected = False
    assert (await world.of("Get", jobs_pb2.JobRef(job_id="x"))).id == first


async def test_others_neither_see_nor_end_it(world: World) -> None:
    (name,) = (await world.ask(name="trainer")).job_ids
    for reference in (name, "trainer", name[:6]):
        with pytest.raises(Unavailable):  # whether the pool knows it, nobody here can tell
            await world.of("Get", jobs_pb2.JobRef(job_id=reference), BOB)
        with pytest.raises(Unavailable):
            await world.of("Cancel", jobs_pb2.CancelJobRequest(job_id=reference), BOB)
    assert list((await world.listed(BOB)).jobs) == []
    assert world.outbox.cancels() == {}


async def test_a_job_waits_for_another_that_is_only_here_yet(world: World) -> None:
    array = (await world.ask(array="0-2")).array_id
    after = [jobs_pb2.JobAfter(job_id=array, ok=True)]
    (name,) = (await world.ask(after=after)).job_ids
    await world.carry()
    assert len(world.pool.loop.state.jobs[name].awaits) == 3  # type: ignore[index]


async def test_an_array_is_shown_whole_while_the_pool_has_only_a_part_of_it(world: World) -> None:
    """Whoever waits for all of it would else take what is on its way for jobs that are over."""
    answer = await world.ask(array="0-2")
    first = JobId(answer.job_ids[0])
    kept = world.outbox.job(first)
    assert kept is not None
    await world.pool.loop.send(JobSubmitted(first, kept.spec, kept.held, kept.priority))
    await world.outbox.taken(first, None)
    world.connected = True
    shown = await world.listed(array_id=answer.array_id, ended=True)
    assert sorted(job.id for job in shown.jobs) == sorted(answer.job_ids)
    await world.carry()
    shown = await world.listed(array_id=answer.array_id, ended=True)
    assert sorted(job.id for job in shown.jobs) == sorted(answer.job_ids)
    assert shown.notices == []


async def test_nobody_hears_of_no_array_while_the_pool_is_away(world: World) -> None:
    """It may have come in elsewhere. A single job's id looks as an array's does."""
    (name,) = (await world.ask()).job_ids
    assert list((await world.listed(array_id=name)).jobs) == []
    with pytest.raises(Unavailable, match="the cable is out"):
        await world.listed(array_id="k3m9x0p2qa")


async def test_another_user_s_array_is_as_none_at_all(world: World) -> None:
    """Neither a list nor a dependency tells that it came in here, whether the pool answers or not."""
    array = (await world.ask(array="0-2")).array_id
    said = []
    for one in (array, "zzzzzzzzzzzzz"):
        with pytest.raises(Unavailable) as refused:
            await world.listed(BOB, array_id=one)
        said.append(str(refused.value))
        (waits,) = (await world.ask(BOB, after=[jobs_pb2.JobAfter(job_id=one)])).job_ids
        kept = world.outbox.job(JobId(waits))
        assert kept is not None
        assert [after.job for after in kept.spec.after] == [one]
    assert said[0] == said[1]
    await world.carry()
    world.connected, world.asker = True, BOB
    assert list((await world.listed(BOB, array_id=array)).jobs) == []


async def test_a_job_waits_for_all_of_an_array_or_is_refused(world: World) -> None:
    """The pool lists a part of it at a time."""
    array = (await world.service.submit(submit_message(array="0-1000"), ADA)).array_id
    world.connected = True
    with pytest.raises(RequestError, match="at most"):
        await world.ask(after=[jobs_pb2.JobAfter(job_id=array)])


async def test_a_request_of_before_the_update_is_found_in_the_outbox(world: World) -> None:
    spec = read_submit(submit_message(request_id="r"), ADA, (), {}).jobs[0][1]
    older = older_id_of(ADA.principal, "r")
    await world.outbox.put([(older, spec)], principal=ADA.principal)
    assert list((await world.ask(request_id="r")).job_ids) == [older]
    assert list((await world.ask(BOB, request_id="r")).job_ids) == [id_of(BOB.principal, "r")]


async def test_the_nodes_are_the_pool_s_to_tell(world: World) -> None:
    with pytest.raises(Unavailable, match="the cable is out"):
        await world.jobs.nodes(jobs_pb2.NodesRequest(), CALLER)


async def test_pages_of_what_is_known_here_give_each_job_once(world: World) -> None:
    names = list((await world.ask(array="0-4")).job_ids)
    seen: list[str] = []
    token = ""
    while True:
        page = await world.listed(limit=2, page_token=token)
        seen += [job.id for job in page.jobs]
        token = page.next_page_token
        if not token:
            break
    assert seen == names


async def test_a_grace_that_cannot_be_is_refused(world: World) -> None:
    (name,) = (await world.ask()).job_ids
    with pytest.raises(GpushareError):
        await world.of("Cancel", jobs_pb2.CancelJobRequest(job_id=name, grace_seconds=-1))


# --- who waits for a lease ---------------------------------------------------------------------------------


async def test_whoever_waits_is_told_as_soon_as_the_pool_knows_enough(world: World) -> None:
    """Before the time is over, and without being told of every change by themselves."""
    (name,) = (await world.ask()).job_ids
    world.connected = True
    await world.carry()
    job = JobId(name)
    async with asyncio.timeout(30):
        waiting = asyncio.create_task(
            world.jobs.wait_for_report(job, lambda view: view.state == "queued", CALLER, 60)
        )
        held = await world.jobs.wait_for_report(job, lambda view: view.state == "held", CALLER, 60)
        assert held is not None
        await world.of("Hold", jobs_pb2.HoldJobRequest(job_id=name, held=False))
        seen = await waiting
    assert seen is not None
    assert (seen.id, seen.state) == (name, "queued")


@pytest.mark.parametrize("connected", [True, False])
async def test_nobody_waits_longer_than_they_said(world: World, *, connected: bool) -> None:
    (name,) = (await world.ask()).job_ids
    world.connected = True
    await world.carry()
    world.connected = connected
    async with asyncio.timeout(30):
        assert await world.jobs.wait_for_report(JobId(name), lambda _: False, CALLER, 0.01) is None


async def test_a_job_that_did_not_come_in_here_is_not_waited_for(world: World) -> None:
    world.connected = True
    assert await world.jobs.wait_for_report(JobId("9999999999"), lambda _: True, CALLER, 60) is None
