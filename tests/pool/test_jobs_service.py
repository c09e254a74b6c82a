"""The calls about jobs, over a coordinator's loop on a store in memory: who sees, finds and ends what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from gpushared.api.v1 import jobs_pb2, leases_pb2
from gpushared.domain.jobs.coordinator_events import AttemptReported, JobSubmitted, Send
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import AttemptState, Ending, EndKind, Owner
from gpushared.domain.jobs.protocol import CancelPart, Report
from gpushared.domain.model.errors import (
    GpushareError,
    LimitReached,
    NotFound,
    PermissionRefused,
    RequestError,
    StateConflict,
    Unavailable,
)
from gpushared.domain.model.lease import JobId, LeaseId
from gpushared.jobs.job_search import WALKED, Archive
from gpushared.jobs.job_views import JobViews
from gpushared.jobs.jobs_service import SHOWN_AT_ONCE, JobsService
from tests.pool.pools import NODE, SECONDS, Pool, coordinator, spec

ADA, BOB = Owner("ada@lab", "ada"), Owner("bob@lab", "bob")
EVE = Owner("eve@lab", "eve", admin=True)
HELD = {"held": True}


class Jobs(JobsService):
    """The service, and what its tests say to it."""

    def __init__(self, pool: Pool) -> None:
        views = JobViews(lambda: pool.loop.state, pool.loop.now)
        super().__init__(
            pool.loop, Archive(pool.store), views, check=self._refuse, why_incomplete=lambda: self.missing
        )
        self.pool = pool
        self.missing = ""
        self.refusal: GpushareError | None = None

    async def _refuse(self, *_: object) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def ask(self, owner: Owner = ADA, lease: dict[str, Any] | None = None, **fields: Any) -> list[str]:
        """The ids of the jobs."""
        asked = leases_pb2.LeaseRequest(gpu="0.1", **(HELD if lease is None else lease))
        body = json.dumps({"Image": "busybox"}).encode()
        message = jobs_pb2.SubmitRequest(lease=asked, image="busybox", create_body=body, **fields)
        return list((await self.submit(message, owner)).job_ids)

    async def ids(self, owner: Owner = ADA, **asked: Any) -> list[str]:
        """Those of all pages."""
        found: list[str] = []
        token = ""
        while True:
            page = await self.list_jobs(jobs_pb2.ListJobsRequest(page_token=token, **asked), owner)
            found += [job.id for job in page.jobs]
            token = page.next_page_token
            if not token:
                return found

    async def seen(self, reference: str, owner: Owner = ADA) -> jobs_pb2.Job:
        return await self.get(jobs_pb2.JobRef(job_id=reference), owner)

    async def end(self, reference: str, owner: Owner = ADA) -> jobs_pb2.Job:
        return await self.cancel(jobs_pb2.CancelJobRequest(job_id=reference), owner)


@pytest.fixture
async def jobs() -> AsyncIterator[Jobs]:
    async with coordinator() as pool:
        yield Jobs(pool)


# --- taking


async def test_all_of_an_array_is_kept_and_asked_for_again_it_is_the_same(jobs: Jobs) -> None:
    first = await jobs.ask(array="0-299", request_id="r")
    assert len(first) == 300
    assert await jobs.ask(array="0-299", request_id="r") == first
    assert sorted(await jobs.ids()) == sorted(first)


async def test_nothing_of_an_array_is_kept_where_there_is_no_room_for_all_of_it() -> None:
    async with coordinator(rules=PoolRules(max_queued_per_person=5)) as pool:
        jobs = Jobs(pool)
        with pytest.raises(LimitReached):
            await jobs.ask(array="0-9")
        assert await jobs.ids() == []
        assert len(await jobs.ask(array="0-4")) == 5


async def test_of_a_batch_each_stands_for_itself(jobs: Jobs) -> None:
    good = jobs_pb2.SubmitRequest(
        lease=leases_pb2.LeaseRequest(gpu="0.1", held=True), image="a", create_body=b'{"Image": "a"}'
    )
    answer = await jobs.submit_batch(
        jobs_pb2.SubmitBatchRequest(jobs=[good, jobs_pb2.SubmitRequest(), good]), ADA
    )
    assert [bool(result.answer.job_ids) for result in answer.results] == [True, False, True]
    assert answer.results[1].code == "invalid_argument"
    with pytest.raises(RequestError):
        await jobs.submit_batch(jobs_pb2.SubmitBatchRequest(jobs=[good] * 65), ADA)


async def test_a_job_waits_for_all_of_an_array_by_its_id(jobs: Jobs) -> None:
    array = await jobs.ask(array="1-3")
    after = [jobs_pb2.JobAfter(job_id=array[0].partition("_")[0], ok=True)]
    (name,) = await jobs.ask(after=after, lease={})
    assert (await jobs.seen(name)).reason.startswith("it waits for 3 jobs")
    for one in array[:2]:
        await jobs.end(one)
    assert (await jobs.seen(name)).state == "failed"


async def test_nobody_waits_for_what_they_may_not_see(jobs: Jobs) -> None:
    (name,) = await jobs.ask()
    with pytest.raises(NotFound):
        await jobs.ask(BOB, after=[jobs_pb2.JobAfter(job_id=name)])


# --- finding


async def test_a_job_is_found_by_its_id_its_name_and_an_unmistakable_beginning(jobs: Jobs) -> None:
    (name,) = await jobs.ask(name="trainer")
    for reference in (name, "trainer", name[:6]):
        assert (await jobs.seen(reference)).id == name
    (other,) = await jobs.ask()
    assert (await jobs.seen(f"job-{other}")).id == other


async def test_a_beginning_of_several_is_none_of_them(jobs: Jobs) -> None:
    array = await jobs.ask(array="0-1")
    with pytest.raises(RequestError, match="is the beginning of 2 jobs") as refused:
        await jobs.seen(array[0][:5])
    assert refused.value.hint == f"say which: {array[0]}, {array[1]}"


async def test_an_array_is_found_by_its_name_and_stands_for_all_of_its_jobs(jobs: Jobs) -> None:
    first = await jobs.ask(array="0-4", name="sweep")
    await jobs.ask(name="sweep-up")
    array = first[0].partition("_")[0]
    assert await jobs.ids(array_id="sweep", limit=2) == sorted(first)
    for reference in ("sweep", array):
        with pytest.raises(RequestError, match=f"'{reference}' is an array of more than 3 jobs") as refused:
            await jobs.seen(reference)
        named = ", ".join(sorted(first)[:3])
        assert refused.value.hint == f"name one: {named}, ...; or all: $(gpushare jobs -q --array {array})"
    (name,) = await jobs.ask(after=[jobs_pb2.JobAfter(job_id="sweep")], lease={})
    assert (await jobs.seen(name)).reason.startswith("it waits for 5 jobs")
    with pytest.raises(NotFound):
        await jobs.seen("sweep", BOB)
    assert await jobs.ids(BOB, array_id="sweep") == []


async def test_of_arrays_and_jobs_of_a_name_those_that_are_not_over_are_meant(jobs: Jobs) -> None:
    first = await jobs.ask(array="0-1", name="sweep")
    for one in first:
        await jobs.end(one)
    assert await jobs.ids(array_id="sweep", ended=True) == first
    second = await jobs.ask(array="3-4", name="sweep")
    assert await jobs.ids(array_id="sweep", ended=True) == second
    for one in second:
        await jobs.end(one)
    (alone,) = await jobs.ask(name="sweep")
    assert (await jobs.seen("sweep")).id == alone
    assert await jobs.ids(array_id="sweep", ended=True) == []
    await jobs.end(alone)
    (last,) = await jobs.ask(array="7", name="sweep")
    assert (await jobs.seen("sweep")).id == last


async def test_two_arrays_of_a_name_are_none_of_them_to_whoever_sees_both(jobs: Jobs) -> None:
    for owner in (ADA, BOB):
        await jobs.ask(owner, array="0-1", name="sweep")
    with pytest.raises(RequestError, match="'sweep' is the name of 2 arrays") as refused:
        await jobs.seen("sweep", EVE)
    assert "(bob@lab)" in refused.value.hint


async def test_of_two_of_a_name_the_one_that_is_not_over_is_meant(jobs: Jobs) -> None:
    (first,) = await jobs.ask(name="trainer")
    await jobs.end(first)
    assert (await jobs.seen("trainer")).id == first
    (second,) = await jobs.ask(name="trainer")
    assert (await jobs.seen("trainer")).id == second


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [
        ({"name": "x"}, {"name": "x"}, "job {0},"),
        ({"name": "x", "retries": 3}, {"name": "x"}, "job {0},"),
        ({"name": "x", "array": "0-1"}, {"name": "x-1"}, "job {1},"),
        ({"name": "x-2"}, {"name": "x", "array": "1-3"}, "job {0},"),
        ({"name": "x", "array": "0-1"}, {"name": "x", "array": "2-3"}, ""),
        ({"name": "x", "array": "0-1"}, {"name": "x"}, ""),
        ({"name": "x"}, {}, ""),
        ({}, {}, ""),
    ],
)
async def test_a_name_is_given_once_until_its_job_is_over(
    jobs: Jobs, first: dict[str, Any], second: dict[str, Any], taken: str
) -> None:
    """And whoever asks for it once more is told at once which job has it; of an array nothing is kept."""
    have = await jobs.ask(**first)
    if taken:
        with pytest.raises(StateConflict, match=taken.format(*have)):
            await jobs.ask(**second)
        assert await jobs.ids() == have
        for one in have:
            await jobs.end(one)
    await jobs.ask(**second)


async def test_a_request_that_is_sent_again_does_not_meet_its_own_name(jobs: Jobs) -> None:
    first = await jobs.ask(name="x", request_id="r1")
    assert await jobs.ask(name="x", request_id="r1") == first


@pytest.mark.parametrize("reference", ["", "0000000000", "trainer", "nothing"])
async def test_what_is_not_there_or_somebody_else_s_is_not_found(jobs: Jobs, reference: str) -> None:
    (name,) = await jobs.ask(name="trainer")
    for sought in (reference, name):
        with pytest.raises((NotFound, RequestError)):
            await jobs.seen(sought, BOB)
        with pytest.raises((NotFound, RequestError)):
            await jobs.end(sought, BOB)
    assert (await jobs.seen(name, EVE)).id == name


# --- listing


async def test_while_something_may_be_missing_nobody_hears_that_a_job_does_not_exist(jobs: Jobs) -> None:
    """Nor of an array; what is known is told as ever."""
    (name,) = await jobs.ask()
    array = (await jobs.ask(array="0-1"))[0].partition("_")[0]
    jobs.missing = "nodes are asked what they have"
    for call in (jobs.seen("k3m9x0p2qa"), jobs.end("nobody"), jobs.ids(array_id="k3m9x0p2qa")):
        with pytest.raises(Unavailable, match="nodes are asked"):
            await call
    assert (await jobs.seen(name)).id == name
    assert await jobs.ids(array_id=name) == []
    assert len(await jobs.ids(array_id=array)) == 2
    jobs.pool.loop.state.recovering_since = jobs.pool.loop.now()
    with pytest.raises(Unavailable, match="nodes are asked"):  # others of it may be told of
        await jobs.ids(array_id=array)


async def test_a_request_that_is_repeated_is_not_judged_anew(jobs: Jobs) -> None:
    """It was accepted: that it would be refused by now is no answer to whoever asks again."""
    first = await jobs.ask(request_id="r")
    jobs.refusal = NotFound("there is no lease l-7f3k any more")
    assert await jobs.ask(request_id="r") == first
    with pytest.raises(NotFound):
        await jobs.ask(request_id="another")


async def test_everybody_lists_their_own_and_administrators_all(jobs: Jobs) -> None:
    mine, theirs = await jobs.ask(), await jobs.ask(BOB)
    assert await jobs.ids() == mine
    assert await jobs.ids(BOB) == theirs
    assert await jobs.ids(EVE) == []
    assert await jobs.ids(EVE, all=True) == mine + theirs
    with pytest.raises(PermissionRefused):
        await jobs.ids(all=True)


@pytest.mark.parametrize("token", ["x9x", "l-1", "l" + "9" * 5000, "l٣"], ids=lambda token: token[:4])
async def test_a_page_token_that_is_none_is_refused(jobs: Jobs, token: str) -> None:
    with pytest.raises(RequestError, match="none of ours"):
        await jobs.list_jobs(jobs_pb2.ListJobsRequest(page_token=token), ADA)


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_pages_give_each_job_once_live_ones_first_then_the_newest_that_are_over(
    jobs: Jobs, limit: int
) -> None:
    names = [(await jobs.ask())[0] for _ in range(6)]
    await jobs.ask(BOB)
    for name in (names[1], names[4]):
        await jobs.end(name)
        jobs.pool.clock.advance(1)
    live = [name for name in names if name not in {names[1], names[4]}]
    assert await jobs.ids(limit=limit) == live
    assert await jobs.ids(limit=limit, ended=True) == [*live, names[4], names[1]]


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_an_array_is_listed_whole_whether_its_jobs_are_over_or_not(jobs: Jobs, limit: int) -> None:
    names = await jobs.ask(array="0-11")
    await jobs.ask(array="0-2")
    for name in names[::3]:
        await jobs.end(name)
    array = names[0].partition("_")[0]
    assert sorted(await jobs.ids(array_id=array, ended=True, limit=limit)) == sorted(names)
    assert sorted(await jobs.ids(array_id=array, limit=limit)) == sorted(set(names) - set(names[::3]))
    assert await jobs.ids(BOB, array_id=array, ended=True, limit=limit) == []


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
async def test_others_jobs_that_bear_an_array_s_id_take_no_room_on_its_pages(jobs: Jobs, limit: int) -> None:
    """Nor do they end the list, whether they are over or not; an administrator sees both."""
    names = await jobs.ask(array="0-5")
    array = names[0].partition("_")[0]
    theirs = [JobId(f"{array}_{number}") for number in (10, 11, 12, 20, 21, 22, 60)]
    for name in theirs:
        await jobs.pool.loop.send(JobSubmitted(name, spec(owner=BOB, array=array)))
    for ended in (*names[::2], *theirs[::2]):
        await jobs.end(ended, EVE)
    for owner, whole in ((ADA, names), (BOB, theirs), (EVE, [*names, *theirs])):
        assert await jobs.ids(owner, array_id=array, ended=True, limit=limit) == sorted(whole)
    assert await jobs.ids(array_id=array, limit=limit) == names[1::2]


async def test_a_beginning_is_unmistakable_among_one_s_own_jobs_over_or_not(jobs: Jobs) -> None:
    (mine,) = await jobs.ask()
    theirs = [JobId(f"{mine[:5]}{number:05}") for number in range(4)]
    for name in theirs:
        await jobs.pool.loop.send(JobSubmitted(name, spec(owner=BOB)))
    for _ in range(2):
        assert (await jobs.seen(mine[:5])).id == mine
        with pytest.raises(RequestError, match="is the beginning of more than 3 jobs"):
            await jobs.seen(mine[:5], BOB)
        for ended in (mine, *theirs):
            await jobs.end(ended, EVE)


# --- waiting, and what is told


async def test_a_wait_comes_back_when_the_job_looks_otherwise(jobs: Jobs) -> None:
    (name,) = await jobs.ask()
    token = (await jobs.seen(name)).token
    asked = jobs_pb2.WaitJobRequest(job_id=name, token=token, timeout_seconds=SECONDS)
    waiting = asyncio.create_task(jobs.wait(asked, ADA))
    await asyncio.sleep(0)
    await jobs.end(name)
    async with asyncio.timeout(SECONDS):
        assert (await waiting).state == "cancelled"
    over = jobs_pb2.WaitJobRequest(job_id=name, token=(await jobs.seen(name)).token, timeout_seconds=60)
    async with asyncio.timeout(SECONDS):
        assert (await jobs.wait(over, ADA)).state == "cancelled"


async def test_each_change_is_watched_until_the_end(jobs: Jobs) -> None:
    (name,) = await jobs.ask()
    seen: list[str] = []
    async with asyncio.timeout(SECONDS):
        async for view in jobs.watch(jobs_pb2.JobRef(job_id=name), ADA):
            seen.append(view.state)
            if view.state == "held":
                await jobs.end(name)
    assert seen == ["held", "cancelled"]


async def test_a_job_that_runs_tells_where_and_how_it_ended(jobs: Jobs) -> None:
    await jobs.pool.join()
    (name,) = await jobs.ask(lease={})
    async with asyncio.timeout(SECONDS):
        while not (found := (await jobs.seen(name)).parts):
            jobs.pool.clock.advance(0.1)
            await jobs.pool.loop.changed(0.01)
    assert [part.node for part in found] == [NODE]
    assert (await jobs.seen(name)).state == "placing"
    key = next(iter(jobs.pool.told)).order.key  # type: ignore[union-attr]
    for revision, state in enumerate((AttemptState.RESERVED, AttemptState.RUNNING), start=1):
        await jobs.pool.loop.send(AttemptReported(NODE, Report(key, state, revision, LeaseId("l-7f3k"))))
    running = await jobs.seen(name)
    assert (running.state, running.parts[0].lease_id, bool(running.started_at)) == ("running", "l-7f3k", True)
    ended = Report(key, AttemptState.ENDED, 9, LeaseId("l-7f3k"), Ending(EndKind.EXITED, exit_code=3))
    await jobs.pool.loop.send(AttemptReported(NODE, ended))
    over = await jobs.seen(name)
    assert (over.state, over.exit_code, over.reason) == ("failed", 3, "exit code 3")
    explanation = await jobs.explain(jobs_pb2.JobRef(job_id=name), ADA)
    assert explanation.reason_code == "failed"
    assert explanation.story[0].text == "submitted by ada@lab"


async def test_a_job_without_room_is_told_what_stands_against_it_on_the_nodes(jobs: Jobs) -> None:
    (name,) = await jobs.ask(lease={})
    explanation = await jobs.explain(jobs_pb2.JobRef(job_id=name), ADA)
    assert explanation.sentence == "the pool has no nodes"
    assert "gpushare pool token" in explanation.hint


async def test_who_holds_a_job_is_said_and_what_runs_is_not_held(jobs: Jobs) -> None:
    (name,) = await jobs.ask()
    explanation = await jobs.explain(jobs_pb2.JobRef(job_id=name), ADA)
    assert (explanation.job.state, explanation.reason_code) == ("held", "held")
    await jobs.hold(jobs_pb2.HoldJobRequest(job_id=name, held=False), ADA)
    assert (await jobs.seen(name)).state == "queued"
    await jobs.end(name)
    with pytest.raises(StateConflict):
        await jobs.hold(jobs_pb2.HoldJobRequest(job_id=name, held=True), ADA)


@pytest.mark.parametrize("grace", [-1, 3601])
async def test_a_grace_that_cannot_be_is_refused(jobs: Jobs, grace: int) -> None:
    (name,) = await jobs.ask()
    with pytest.raises(RequestError):
        await jobs.cancel(jobs_pb2.CancelJobRequest(job_id=name, grace_seconds=grace), ADA)


async def test_a_grace_of_the_configuration_holds_after_a_reload(jobs: Jobs) -> None:
    await jobs.pool.join()
    (name,) = await jobs.ask(lease={})
    async with asyncio.timeout(SECONDS):
        while not (await jobs.seen(name)).parts:
            jobs.pool.clock.advance(0.1)
            await jobs.pool.loop.changed(0.01)
    jobs.pool.loop.take_rules(PoolRules(stop_grace_seconds=3))
    await jobs.end(name)
    orders = [one.order for one in jobs.pool.told if isinstance(one, Send)]
    assert [order.grace_seconds for order in orders if isinstance(order, CancelPart)] == [3]


# --- how long others wait


async def passes(work: Coroutine[Any, Any, Any]) -> int:
    """How often others had a turn of the event loop during the work."""
    task, count = asyncio.create_task(work), 0
    while not task.done():
        await asyncio.sleep(0)
        count += 1
    await task
    return count


async def test_a_list_goes_on_in_steps_between_which_others_have_turns(jobs: Jobs) -> None:
    await jobs.ask(array="0-2999")
    assert await passes(jobs.list_jobs(jobs_pb2.ListJobsRequest(limit=10), ADA)) > 3000 // WALKED
    long = await passes(jobs.list_jobs(jobs_pb2.ListJobsRequest(limit=1000), ADA))
    assert long > 1000 // SHOWN_AT_ONCE


async def test_a_list_costs_by_its_owner_s_jobs(jobs: Jobs) -> None:
    await jobs.ask(array="0-2999")
    assert await jobs.ids(BOB) == []
    few = await passes(jobs.list_jobs(jobs_pb2.ListJobsRequest(), BOB))
    assert few < 3000 // WALKED


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda jobs, _: jobs.list_jobs(jobs_pb2.ListJobsRequest(), ADA), id="list"),
        pytest.param(lambda jobs, job: jobs.explain(jobs_pb2.JobRef(job_id=job), ADA), id="explain"),
    ],
)
async def test_of_one_person_calls_that_look_at_much_take_turns(
    jobs: Jobs, call: Callable[[Jobs, str], Coroutine[Any, Any, Any]]
) -> None:
    (job,) = await jobs.ask()
    (other,) = await jobs.ask(BOB)
    async with jobs.turn(ADA):
        waiting = asyncio.create_task(call(jobs, job))
        await jobs.explain(jobs_pb2.JobRef(job_id=other), BOB)
        assert await jobs.ids(BOB) == [other]
        assert not waiting.done()
    await waiting
