"""Leases and GPUs of all nodes as they are now: asked over real links, and told with the rights of people."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from gpushared.api.v1 import gpus_pb2, gpus_pb2_grpc, jobs_pb2, leases_pb2, leases_pb2_grpc
from gpushared.config.history_settings import Others
from gpushared.domain.jobs.coordinator_events import JobSubmitted, NodeHeartbeat
from gpushared.domain.jobs.job import JobSpec, NodeName, Owner, Queued, Running, Try
from gpushared.domain.jobs.member import HeartbeatReport, Holding
from gpushared.domain.model.errors import PermissionRefused, Unavailable
from gpushared.domain.model.lease import AttemptKey, JobId, LeaseId
from gpushared.domain.model.request import Caller, LeaseClass, Request
from gpushared.node.pool.pool_answers import ListingAnswers
from gpushared.node.pool.pool_link import PoolLink
from gpushared.pool.coordinator import node_listings
from gpushared.pool.link import codec
from gpushared.pool.member.coordinator_calls import CoordinatorCalls
from tests.pool.link.member import spec
from tests.pool.link.test_history import again
from tests.pool.link.test_whole import JOB, POOL, WAIT_SECONDS, Machine, World, linked, machine, world

__all__ = ["machine", "world"]

ADA = Owner("ada@n1", "ada@n1")


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_listings, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(node_listings, "ANSWER_SECONDS", 0.5)


def lease(name: str, owner: str, **facts: object) -> leases_pb2.Lease:
    known = {"owner_uid": 1000, "state": "active", "image": "busybox", "container_name": name}
    return leases_pb2.Lease(id=name, owner=owner, **known, **facts)  # type: ignore[arg-type]


def tell(machine: Machine, *leases: leases_pb2.Lease) -> None:
    """Let the node's own listings have these leases, a stranger and a GPU."""

    async def list_leases(_: leases_pb2.ListLeasesRequest, __: Caller) -> leases_pb2.ListLeasesResponse:
        stranger = leases_pb2.UnmanagedProcess(pid=7, user="eve", command="secret")
        return leases_pb2.ListLeasesResponse(leases=leases, unmanaged=[stranger])

    async def list_gpus(_: gpus_pb2.ListGpusRequest, __: Caller) -> gpus_pb2.ListGpusResponse:
        gpu = gpus_pb2.Gpu(uuid="GPU-0", utilization_ratio=0.5, temperature_celsius=60)
        return gpus_pb2.ListGpusResponse(gpus=[gpu], troubles=["MPS is down"])

    answers = ListingAnswers(list_leases, list_gpus, lambda: POOL, lambda: "n1")
    machine.answerers = dict(answers.answerers())


def asked_as(
    machine: Machine, link: PoolLink, name: str
) -> Callable[..., Awaitable[leases_pb2.ListLeasesResponse]]:
    calls = CoordinatorCalls(
        link.channel, machine.enrolment.asserter, lambda caller: f"{caller.name}@n1", lambda _: (), time.time
    )

    async def ask(**words: object) -> leases_pb2.ListLeasesResponse:
        message = leases_pb2.ListLeasesRequest(**words)  # type: ignore[arg-type]
        caller = Caller(1000, 1000, name)
        answer: leases_pb2.ListLeasesResponse = await calls.call(
            "List", message, caller, WAIT_SECONDS, stub=leases_pb2_grpc.LeasesStub
        )
        return answer

    return ask


async def gpus_of(machine: Machine, link: PoolLink) -> gpus_pb2.ListGpusResponse:
    calls = CoordinatorCalls(
        link.channel, machine.enrolment.asserter, lambda _: "ada@n1", lambda _: (), time.time
    )
    answer: gpus_pb2.ListGpusResponse = await calls.call(
        "List", gpus_pb2.ListGpusRequest(), Caller(1, 1, "ada"), WAIT_SECONDS, stub=gpus_pb2_grpc.GpusStub
    )
    return answer


async def test_everybody_sees_leases_without_the_names_of_local_containers(
    world: World, machine: Machine
) -> None:
    tell(machine, lease("l-1", "ada"), lease("l-2", "bob", memory_used_bytes=5))
    async with AsyncExitStack() as stack:
        link = await linked(machine, stack)
        answer = await asked_as(machine, link, "ada")()
        mine, other = answer.leases
        assert (mine.owner, mine.node, mine.image) == ("ada@n1", "n1", "")
        assert (other.owner, other.memory_used_bytes, other.container_name) == ("bob@n1", 5, "")
        (stranger,) = answer.unmanaged
        assert (stranger.node, stranger.user, stranger.command, stranger.pid) == ("n1", "eve", "", 0)
        assert [one.id for one in (await asked_as(machine, link, "ada")(user="bob@n1")).leases] == ["l-2"]


async def test_of_others_is_told_what_the_site_allows(world: World, machine: Machine) -> None:
    await again(world, Others.TOTALS)
    tell(machine, lease("l-1", "ada"), lease("l-2", "bob"))
    async with AsyncExitStack() as stack:
        link = await linked(machine, stack)
        seen = await asked_as(machine, link, "ada")()
        assert ([one.id for one in seen.leases], list(seen.unmanaged)) == (["l-1"], [])
        assert len((await asked_as(machine, link, "boss")()).leases) == 2


async def test_a_jobs_lease_is_its_owners_and_a_waiting_job_is_listed(world: World, machine: Machine) -> None:
    async with AsyncExitStack() as stack:
        tell(
            machine,
            lease("l-1", "nobody", job_id=JOB, job_pool=POOL, job_attempt=1),
            lease("l-2", "x", job_id="y", job_pool=POOL),
        )
        await world.submit()
        link = await linked(machine, stack)
        await world.until(lambda job: bool(job.parts))
        found = {one.id: one for one in (await asked_as(machine, link, "ada")()).leases}
        assert (found["l-1"].owner, found["l-1"].image, found["l-1"].job_id) == ("ada@n1", "busybox", JOB)
        # The coordinator sent no such job there.
        assert (found["l-2"].owner, found["l-2"].job_id, found["l-2"].image) == ("x@n1", "", "")


async def test_a_job_that_waits_is_listed_without_a_node(world: World, machine: Machine) -> None:
    async with AsyncExitStack() as stack:
        tell(machine)
        link = await linked(machine, stack)
        for number in range(1, 10):
            await world.submit(f"{number:010d}")  # type: ignore[arg-type]
        answer = await asked_as(machine, link, "ada")(states=["queued"])
        waiting = [one for one in answer.leases if one.job_id]
        assert waiting
        assert {(one.node, one.owner, one.state) for one in waiting} == {("", "ada@n1", "queued")}
        assert all(one.waiting.queue_length and one.since == one.created_at for one in waiting)
        others = (await asked_as(machine, link, "bob")(states=["queued"])).leases
        assert len(others) == len(waiting)
        # That somebody waits is told; which job it is, is its owner's business.
        assert {(one.id, one.job_id, one.container_name, one.waiting.text) for one in others} == {
            ("", "", "", "")
        }


async def test_waiting_jobs_are_listed_in_the_order_of_the_queue(world: World, machine: Machine) -> None:
    """A person who may see no others learns the place in the whole queue."""
    large = Request(gpu_count=9)
    submitted = [
        JobSubmitted(JobId("held000000"), spec("ada@n1"), held=True, priority=100),
        JobSubmitted(JobId("train00000"), JobSpec(large, ADA)),
        JobSubmitted(JobId("build00000"), JobSpec(replace(large, lease_class=LeaseClass.BUILD), ADA)),
        JobSubmitted(JobId("later00000"), JobSpec(large, ADA)),
        JobSubmitted(JobId("first00000"), JobSpec(large, Owner("bob@n1", "bob@n1")), priority=100),
        JobSubmitted(JobId("gang000000"), JobSpec(large, ADA, nodes=2)),
    ]
    await again(world, Others.TOTALS)
    for job in submitted:
        await world.coordinator.loop.send(job)
    async with AsyncExitStack() as stack:
        tell(machine)
        link = await linked(machine, stack)
        listed = (await asked_as(machine, link, "boss")()).leases
        ids = [one.id.rstrip("0") for one in listed]
        assert ids == ["gang", "first", "build", "train", "later", "held"]
        assert [one.waiting.position for one in listed] == [1, 2, 3, 4, 5, 6]
        own = (await asked_as(machine, link, "bob")()).leases
        assert [(one.waiting.position, one.waiting.queue_length) for one in own] == [(2, 6)]


async def test_a_job_that_gave_way_waits_since_then(world: World, machine: Machine) -> None:
    async with AsyncExitStack() as stack:
        tell(machine)
        link = await linked(machine, stack)
        for number in range(1, 10):
            await world.submit(f"{number:010d}")  # type: ignore[arg-type]
        loop = world.coordinator.loop
        job = next(one for one in loop.state.jobs.values() if isinstance(one.state, Queued))
        at = job.submitted_at
        ran = replace(job, state=Queued(at + 60), tries=(Try(1, (), at + 10, at + 60),))
        loop.state = replace(loop.state, jobs=loop.state.jobs.put(job.id, ran))
        answer = await asked_as(machine, link, "ada")(states=["queued"])
        (found,) = [one for one in answer.leases if one.job_id == job.id]
        assert found.since - found.created_at == pytest.approx(60)


async def test_root_of_a_node_lists_the_jobs_of_its_realm_and_those_on_it(
    world: World, machine: Machine
) -> None:
    """Root could ask as these users anyhow, and sees what runs there; of other jobs root learns nothing."""
    async with AsyncExitStack() as stack:
        link = await linked(machine, stack)
        calls = CoordinatorCalls(
            link.channel,
            machine.enrolment.asserter,
            lambda caller: f"{caller.name}@n1",
            lambda _: (),
            time.time,
        )

        async def listed(name: str) -> set[str]:
            asked = jobs_pb2.ListJobsRequest(all=True, ended=True)
            answer = await calls.call("List", asked, Caller(0, 0, name), WAIT_SECONDS)
            return {job.id for job in answer.jobs}

        await world.submit()
        await world.until(lambda job: isinstance(job.state, Running))
        await machine.finish(AttemptKey(JOB, 1))
        there, elsewhere = JobId("1111111111"), JobId("2222222222")
        for job in (there, elsewhere):
            await world.coordinator.loop.send(JobSubmitted(job, spec("carl@n9"), held=job == elsewhere))
        await world.until(lambda job: bool(job.parts), there)
        assert await listed("root") == {JOB, there}
        with pytest.raises(PermissionRefused, match="only administrators"):
            await listed("ada")


async def test_a_node_that_does_not_answer_is_shown_with_the_age_of_what_is_known(
    world: World, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(machine, lease("l-1", "ada"))

    async def silent(_: bytes) -> bytes:
        raise Unavailable("it hangs")

    async with AsyncExitStack() as stack:
        link = await linked(machine, stack)
        ask = asked_as(machine, link, "ada")
        assert not (await ask()).notices
        machine.answerers[codec.LEASES] = silent
        monkeypatch.setattr(node_listings, "ANSWER_SECONDS", 0.0)
        answer = await ask()
        assert [one.id for one in answer.leases] == ["l-1"]
        assert list(answer.notices) == ["n1 does not answer: shown as it was 1s ago"]


async def test_an_old_answer_is_corrected_by_later_heartbeats(
    world: World, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of GPUs a heartbeat tells all that changes little; of leases which ones still hold GPUs."""
    grants = [leases_pb2.Grant(gpu_uuid="GPU-0")]
    tell(machine, lease("l-1", "ada", grants=grants), lease("l-2", "ada", grants=grants), lease("l-3", "ada"))
    node = NodeName("n1")
    async with AsyncExitStack() as stack:
        link = await linked(machine, stack)
        ask = asked_as(machine, link, "ada")
        await ask()
        assert (await gpus_of(machine, link)).gpus[0].temperature_celsius == 60
        machine.answerers.clear()
        monkeypatch.setattr(node_listings, "ANSWER_SECONDS", 0.0)
        held = Holding(LeaseId("l-2"), (), "ada", "")
        await world.coordinator.loop.send(NodeHeartbeat(node, None, HeartbeatReport((held,))))
        answer = await ask()
        assert [one.id for one in answer.leases] == ["l-2", "l-3"]
        assert len(answer.unmanaged) == 1
        less = ", less the leases that have left its GPUs since"
        assert list(answer.notices) == [f"n1 does not answer: shown as it was 1s ago{less}"]
        listed = await gpus_of(machine, link)
        assert [(gpu.node, gpu.HasField("temperature_celsius")) for gpu in listed.gpus] == [("n1", False)]
        assert list(listed.notices) == ["n1 does not answer: what it has is not shown in full"]


@pytest.mark.parametrize("kind", [b"\x0a\x00", b"\x12\x00"])
async def test_an_answer_with_more_than_a_node_has_is_not_kept(
    world: World, machine: Machine, kind: bytes
) -> None:
    """Leases that take two bytes each would hold up the coordinator for seconds."""
    tell(machine, lease("l-1", "ada"))
    async with AsyncExitStack() as stack:
        link = await linked(machine, stack)
        ask = asked_as(machine, link, "ada")
        await ask()

        async def flood(_: bytes) -> bytes:
            return kind * (node_listings.MAX_BODY_BYTES // 2)

        machine.answerers[codec.LEASES] = flood
        answer = await ask()
        assert [one.id for one in answer.leases] == ["l-1"]
        assert len(answer.unmanaged) == 1


async def test_an_answer_is_read_once_for_all_callers_of_a_moment(
    world: World, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what one caller may not see is not lost for the next."""
    monkeypatch.setattr(node_listings, "FRESH_SECONDS", 60.0)
    tell(machine, lease("l-1", "ada", job_id=JOB, job_pool=POOL, job_attempt=1))
    async with AsyncExitStack() as stack:
        await world.submit()
        link = await linked(machine, stack)
        await world.until(lambda job: bool(job.parts))
        assert [one.image for one in (await asked_as(machine, link, "bob")()).leases] == [""]
        machine.answerers.clear()
        assert [one.image for one in (await asked_as(machine, link, "ada")()).leases] == ["busybox"]


async def test_gpus_have_their_use_and_an_older_node_what_it_reported(world: World, machine: Machine) -> None:
    async with AsyncExitStack() as stack:
        link = await linked(machine, stack)
        answer = await gpus_of(machine, link)
        (reported,) = answer.gpus
        assert reported.node == "n1"
        assert not reported.HasField("utilization_ratio")
        assert "not shown in full" in answer.notices[0]
        assert list((await asked_as(machine, link, "ada")()).notices) == list(answer.notices)
    tell(machine)
    async with AsyncExitStack() as stack:
        link = await linked(machine, stack)
        answer = await gpus_of(machine, link)
        (gpu,) = answer.gpus
        assert (gpu.node, gpu.utilization_ratio, gpu.temperature_celsius) == ("n1", 0.5, 60)
        assert list(answer.troubles) == ["n1: MPS is down"]
        assert not answer.notices
