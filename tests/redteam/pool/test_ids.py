"""Whose ids, arrays and requests are: attacks by members with keys of their own, and by other users.

Ada works on machine ws1 and with a token. Mallory has machine ws2, Eve has ws3; both say what they like.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from gpushared.api.v1 import jobs_pb2, link_pb2
from gpushared.config.queue_rules import UserConfig
from gpushared.domain.jobs.job import (
    After,
    AttemptState,
    Cancelled,
    Ended,
    Ending,
    EndKind,
    JobSpec,
    NodeName,
    Queued,
)
from gpushared.domain.jobs.protocol import Report
from gpushared.domain.model.lease import AttemptKey, JobId, LeaseId
from gpushared.jobs.job_requests import id_in_array, id_of, older_id_of
from gpushared.pool.link import codec
from tests.redteam.pool.in_process_pool import (
    Answer,
    InProcessPool,
    Link,
    Member,
    in_process_pool,
    spec_of,
    submit_request,
)

ADA, MALLORY, EVE, BOSS = "ada@ws1", "mallory@ws2", "eve@ws3", "boss@ws1"
ADAS_TOKEN = "ada@lab"
"""The principal of a token for the person Ada."""
OLDER = JobId("0123456789")
"""An id that a release up to 0.1 gave by chance."""
REFUSED = "invalid_argument"
USERS = {
    "ada": UserConfig(principals=(ADA, "ada@vision")),
    "boss": UserConfig(principals=(BOSS,), admin=True),
}
Ask = Callable[[str, Message], Awaitable[Answer]]


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[InProcessPool]:
    async with in_process_pool(tmp_path, **USERS) as made:
        yield made


@pytest.fixture
async def ada(pool: InProcessPool) -> Ask:
    """Ada with her token."""
    return partial(pool.call, await pool.token("ada"))


@pytest.fixture
async def links(pool: InProcessPool) -> AsyncIterator[dict[str, Link]]:
    """The streams of the machines, by whom they belong to."""
    async with AsyncExitStack() as stack:
        made: dict[str, Link] = {}
        for who, node in (("ada", "ws1"), ("mallory", "ws2"), ("eve", "ws3")):
            made[who] = await stack.enter_async_context((await pool.member(node)).link())
        yield made


def in_array(spec: JobSpec, array: str, index: int, limit: int | None = None) -> JobSpec:
    return replace(spec, array=JobId(array), index=index, array_limit=limit)


async def listed(ask: Ask, array: str, limit: int = 100) -> list[str]:
    """All pages of an array."""
    found: list[str] = []
    asked = jobs_pb2.ListJobsRequest(array_id=array, ended=True, limit=limit)
    while True:
        page = (await ask("List", asked)).said
        found += [job.id for job in page.jobs]
        asked.page_token = page.next_page_token
        if not asked.page_token:
            return found


# --- requests that nobody else can make void -----------------------------------------------------------

NIGHTLY = id_of(ADAS_TOKEN, "nightly")
PROPOSED = {
    "under her request id": spec_of(MALLORY, "nightly"),
    "without a request id": spec_of(MALLORY),
    "as of an array of that id": in_array(spec_of(MALLORY, "nightly"), NIGHTLY, 0),
    "as of another array": in_array(spec_of(MALLORY), OLDER, 0),
    "in her name": spec_of(ADAS_TOKEN, "nightly"),
}


@pytest.mark.parametrize("old", [False, True], ids=["new", "resent"])
@pytest.mark.parametrize("how", PROPOSED)
async def test_no_member_takes_the_id_that_another_s_request_gets(
    pool: InProcessPool, links: dict[str, Link], ada: Ask, how: str, *, old: bool
) -> None:
    for job in (NIGHTLY, id_in_array(NIGHTLY, 0)):
        assert (await links["mallory"].submit(job, PROPOSED[how], old=old)).code
        assert pool.job(job) is None
    assert list((await ada("Submit", submit_request("nightly"))).said.job_ids) == [NIGHTLY]
    assert (await links["mallory"].submit(id_of(MALLORY, "nightly"), spec_of(MALLORY, "nightly"))).code == ""


async def test_a_request_through_a_node_gets_its_id_whatever_other_members_proposed(
    pool: InProcessPool, links: dict[str, Link]
) -> None:
    """Two together: one under its own name, the other with the first one's word."""
    job = id_of(ADA, "nightly")
    for who, principal in (("mallory", MALLORY), ("eve", EVE), ("eve", MALLORY), ("mallory", ADA)):
        for request_id in ("", "nightly"):
            assert (await links[who].submit(job, spec_of(principal, request_id))).code
    assert (await links["ada"].submit(job, spec_of(ADA, "nightly"))).code == ""
    held = pool.job(job)
    assert held is not None
    assert held.spec.owner.principal == ADA


async def test_the_word_that_one_member_gave_is_of_no_use_to_another(
    pool: InProcessPool, links: dict[str, Link]
) -> None:
    job, body = id_of(ADA, "nightly"), codec.spec_bytes(spec_of(ADA, "nightly"))
    word = links["ada"].member.sign(ADA, codec.job_digest(job, body))
    await links["eve"].say(link_pb2.Up(job=link_pb2.OutboxJob(job_id=job, spec=body, assertion=word)))
    assert (await links["eve"].acknowledged(job, cancel=False)).code == "permission_denied"
    assert pool.job(job) is None


async def test_a_refusal_does_not_tell_whether_there_is_a_job_of_that_id(
    links: dict[str, Link], ada: Ask
) -> None:
    await ada("Submit", submit_request("nightly"))
    there = await links["mallory"].submit(NIGHTLY, spec_of(MALLORY, "nightly"))
    absent = id_of(ADAS_TOKEN, "weekly")
    none = await links["mallory"].submit(absent, spec_of(MALLORY, "nightly"))
    assert (there.code, there.message, there.hint) == (
        REFUSED, none.message.replace(absent, NIGHTLY), none.hint,
    )  # fmt: skip


async def forget_what_is_over(pool: InProcessPool, member: Member, principal: str) -> None:
    """Of the jobs that are over, all but a new one are in the archive only from now on."""
    loop = pool.coordinator.loop
    loop.take_rules(replace(loop.state.rules, ended_kept=1))
    for _ in range(len(loop.state.ended) + 1):
        (last,) = (await member.call(principal, "Submit", submit_request())).said.job_ids
        await member.call(principal, "Cancel", jobs_pb2.CancelJobRequest(job_id=last))


@pytest.mark.parametrize("is_remembered", [True, False])
async def test_nobody_overwrites_another_s_job_that_is_over(
    pool: InProcessPool, links: dict[str, Link], *, is_remembered: bool
) -> None:
    """Also where only the archive knows of it."""
    await links["ada"].submit(OLDER, spec_of(ADA))
    await links["ada"].cancel(OLDER, ADA)
    if not is_remembered:
        await forget_what_is_over(pool, links["ada"].member, ADA)
    assert (pool.job(OLDER) is not None) == is_remembered
    for old in (False, True):
        assert (await links["mallory"].submit(OLDER, spec_of(MALLORY), old=old)).code == "failed_precondition"
    await links["mallory"].cancel(OLDER, MALLORY)
    seen = await links["ada"].member.call(ADA, "Get", jobs_pb2.JobRef(job_id=OLDER))
    assert (seen.said.state, seen.said.owner) == ("cancelled", ADA)


# --- while the pool recovers ---------------------------------------------------------------------------


def attempt(job: str, spec: JobSpec, *, ended: bool) -> Report:
    """What a node tells of an attempt that nobody gave it."""
    key, ending = AttemptKey(JobId(job), 7), Ending(EndKind.EXITED, exit_code=0) if ended else None
    state = AttemptState.ENDED if ended else AttemptState.RUNNING
    return Report(key, state, 9, LeaseId("l-1"), ending, spec, spec.request)


TOLD = {
    "as its own": spec_of(MALLORY, "nightly"),
    "as its own without a request id": spec_of(MALLORY),
    "as Ada's": spec_of(ADA, "nightly"),
    "as Ada's through her node": spec_of(ADA, "nightly", origin=NodeName("ws1")),
}


@pytest.mark.parametrize("ended", [False, True], ids=["runs", "ended"])
@pytest.mark.parametrize("how", TOLD)
@pytest.mark.parametrize("old", [False, True], ids=["new", "resent"])
async def test_an_attempt_told_of_in_a_recovery_makes_no_request_of_another_void(
    pool: InProcessPool, how: str, *, ended: bool, old: bool
) -> None:
    """Nor is her node told that its job is over. By two members together."""
    members = [await pool.member(node) for node in ("ws1", "ws2", "ws3")]
    await pool.lose_memory()
    job, spec = id_of(ADA, "nightly"), spec_of(ADA, "nightly", image="another")
    async with members[0].link() as adas:
        for member in members[1:]:
            async with member.link(attempt(job, TOLD[how], ended=ended)):
                pass
        assert adas.updates() == []
        assert (await adas.submit(job, spec, old=old)).code == ""
        held = pool.job(job)
        assert held is not None
        assert (type(held.state), held.spec.owner.principal, held.spec.image) == (Queued, ADA, "another")
        async with members[1].link(attempt(job, TOLD[how], ended=ended)):
            assert isinstance(getattr(pool.job(job), "state", None), Queued)
    await pool.stop()
    await pool.start()
    assert getattr(pool.job(job), "spec", None) == held.spec
    seen = (await members[0].call(ADA, "List", jobs_pb2.ListJobsRequest(ended=True))).said
    assert [one.id for one in seen.jobs] == [job]


async def test_a_job_that_went_on_while_the_pool_forgot_is_its_owner_s_again(pool: InProcessPool) -> None:
    """Its attempt is told of by a node that may not speak for her, and her own node has it still."""
    adas, other = await pool.member("ws1"), await pool.member("ws2")
    await pool.lose_memory()
    spec = spec_of(ADA, "nightly", origin=NodeName("ws1"))
    for job, one in ((id_of(ADA, "nightly"), spec), (OLDER, replace(spec, request_id=""))):
        async with other.link(attempt(job, one, ended=False)), adas.link() as link:
            assert (await link.submit(job, one, old=True)).code == ""
            held = pool.job(job)
            assert held is not None
            assert ([part.node for part in held.parts], held.told_by) == (["ws2"], "")
            assert (await adas.call(ADA, "Get", jobs_pb2.JobRef(job_id=job))).said.state == "running"


# --- arrays --------------------------------------------------------------------------------------------


async def test_no_member_gets_into_the_array_of_another(
    pool: InProcessPool, links: dict[str, Link], ada: Ask
) -> None:
    """Under no request id and no index; nor do two members make an array together."""
    answer = (await ada("Submit", submit_request("sweep", array="0-3"))).said
    for who, principal in (("mallory", MALLORY), ("eve", EVE), ("eve", ADAS_TOKEN)):
        for request_id in ("sweep", ""):
            for index in (2, 99):
                spec = in_array(spec_of(principal, request_id), answer.array_id, index)
                for job in (id_in_array(JobId(answer.array_id), index), id_of(principal, request_id), OLDER):
                    assert (await links[who].submit(job, spec)).code
    assert await listed(ada, answer.array_id, limit=1) == list(answer.job_ids)
    theirs = id_of(MALLORY, "sweep")
    first, second = id_in_array(theirs, 0), id_in_array(theirs, 1)
    assert (await links["mallory"].submit(first, in_array(spec_of(MALLORY, "sweep"), theirs, 0))).code == ""
    assert (await links["eve"].submit(second, in_array(spec_of(EVE, "sweep"), theirs, 1))).code == REFUSED
    assert pool.job(second) is None


async def older_array(link: Link, principal: str, *numbers: int, limit: int | None = None) -> list[str]:
    """Jobs of an array as an older release proposes them: its id is one by chance."""
    jobs = [id_in_array(OLDER, number) for number in numbers]
    for job, number in zip(jobs, numbers, strict=True):
        answer = await link.submit(job, in_array(spec_of(principal), OLDER, number, limit))
        assert answer.code == ""
    return list(jobs)


async def test_an_array_of_an_older_release_is_whole_whoever_gives_jobs_its_id(
    pool: InProcessPool, links: dict[str, Link], ada: Ask
) -> None:
    """Hundreds of others' jobs, over or not, hide none and make no page the last."""
    mine = await older_array(links["ada"], ADA, 0, 1, 400)
    others = await older_array(links["mallory"], MALLORY, *range(2, 62))
    await older_array(links["eve"], EVE, *range(62, 70))
    for job in others[:-2]:
        await links["mallory"].cancel(job, MALLORY)
    await links["ada"].cancel(mine[1], ADA)
    await links["mallory"].cancel(mine[0], MALLORY)
    assert await listed(ada, OLDER, limit=1) == mine
    assert await listed(ada, OLDER) == mine
    assert len(await listed(partial(links["eve"].member.call, EVE), OLDER, limit=1)) == 8


@pytest.mark.parametrize(("principal", "person"), [(ADA, "ada"), (BOSS, "boss")])
async def test_nobody_waits_for_a_stranger_s_job_in_an_array_of_the_same_id(
    pool: InProcessPool, links: dict[str, Link], principal: str, person: str
) -> None:
    """Neither an ordinary user nor an administrator, who may see them all."""
    mine = await older_array(links["ada"], principal, 3, 5)
    await older_array(links["mallory"], MALLORY, 0, 4, 9)
    token = await pool.token(person)
    after = [jobs_pb2.JobAfter(job_id=OLDER)]
    for ask in (partial(pool.call, token), partial(links["ada"].member.call, principal)):
        (waits,) = (await ask("Submit", submit_request(after=after))).said.job_ids
        held = pool.job(waits)
        assert held is not None
        assert [one.job for one in held.awaits] == mine


async def test_a_stranger_s_job_takes_no_turn_in_a_bounded_array_of_the_same_id(
    pool: InProcessPool, links: dict[str, Link], ada: Ask
) -> None:
    def spec(principal: str, index: int, limit: int) -> JobSpec:
        return in_array(spec_of(principal), OLDER, index, limit)

    await links["mallory"].submit(id_in_array(OLDER, 0), spec(MALLORY, 0, 1), held=False)
    await links["ada"].submit(id_in_array(OLDER, 1), spec(ADA, 1, 1), held=False)
    await links["ada"].submit(id_in_array(OLDER, 2), spec(ADA, 2, 1), held=False)
    await links["eve"].submit(id_in_array(OLDER, 3), spec(EVE, 3, 9), held=False)
    codes = [
        (await ada("Explain", jobs_pb2.JobRef(job_id=id_in_array(OLDER, number)))).said.reason_code
        for number in (1, 2)
    ]
    assert codes[1] == "array_limit"
    assert codes[0] != "array_limit"


# --- what others' jobs look like -----------------------------------------------------------------------

NOBODY = "zzzzzzzzzzzzz"
"""The id of no job."""
OF_ONE_JOB: dict[str, Callable[[str], Message]] = {
    "Get": lambda job: jobs_pb2.JobRef(job_id=job),
    "Wait": lambda job: jobs_pb2.WaitJobRequest(job_id=job, timeout_seconds=0.1),
    "Watch": lambda job: jobs_pb2.JobRef(job_id=job),
    "Cancel": lambda job: jobs_pb2.CancelJobRequest(job_id=job),
    "Hold": lambda job: jobs_pb2.HoldJobRequest(job_id=job, held=True),
    "SetPriority": lambda job: jobs_pb2.JobPriorityRequest(job_id=job, priority=1),
    "Explain": lambda job: jobs_pb2.JobRef(job_id=job),
    "Logs": lambda job: jobs_pb2.LogsRequest(job_id=job),
    "Tunnel": lambda job: jobs_pb2.TunnelChunk(job_id=job),
    "Submit": lambda job: submit_request(after=[jobs_pb2.JobAfter(job_id=job, ok=True)]),
    "List": lambda job: jobs_pb2.ListJobsRequest(array_id=job, ended=True),
}


async def adas_jobs(ada: Ask) -> list[str]:
    """What Ada's jobs are called: one that waits, one that is over, and those of an array."""
    (waits,) = (await ada("Submit", submit_request(name="trainer"))).said.job_ids
    (over,) = (await ada("Submit", submit_request())).said.job_ids
    await ada("Cancel", jobs_pb2.CancelJobRequest(job_id=over))
    array = (await ada("Submit", submit_request(array="1-2"))).said
    return [waits, over, array.array_id, array.job_ids[0], "trainer", f"job-{over}", waits[:6]]


def visible(answer: Answer) -> object:
    if answer.code is grpc.StatusCode.OK and isinstance(answer.said, jobs_pb2.ListJobsResponse):
        return answer.said.SerializeToString()
    return answer


@pytest.mark.parametrize("archived", [False, True], ids=["remembered", "archived"])
@pytest.mark.parametrize("call", OF_ONE_JOB)
async def test_another_s_job_looks_as_one_that_does_not_exist(
    pool: InProcessPool, ada: Ask, call: str, *, archived: bool
) -> None:
    """To the holder of a token, and to a member that asks for users of its own."""
    names, member = await adas_jobs(ada), await pool.member("ws2")
    if archived:
        await forget_what_is_over(pool, member, MALLORY)
        assert pool.job(names[1]) is None
    before = await adas_view(ada)
    token = await pool.token("zoe")
    for ask in (partial(pool.call, token), partial(member.call, MALLORY)):
        for name in names:
            nobody = NOBODY[: len(name)]
            there, none = [await ask(call, OF_ONE_JOB[call](one)) for one in (name, nobody)]
            assert visible(there) == visible(none.about(nobody, name))
            assert there.code is (grpc.StatusCode.OK if call == "List" else grpc.StatusCode.NOT_FOUND)
    assert await adas_view(ada) == before


async def adas_view(ada: Ask) -> bytes:
    seen: bytes = (await ada("List", jobs_pb2.ListJobsRequest(ended=True))).said.SerializeToString()
    return seen


@pytest.mark.parametrize("is_over", [False, True], ids=["waits", "over"])
async def test_a_member_is_told_nothing_of_another_s_job_by_a_cancellation_or_a_dependency(
    pool: InProcessPool, links: dict[str, Link], ada: Ask, *, is_over: bool
) -> None:
    """Neither whose it is nor that there is one."""
    (job,) = (await ada("Submit", submit_request())).said.job_ids
    if is_over:
        await ada("Cancel", jobs_pb2.CancelJobRequest(job_id=job))
    before = pool.job(job)
    there, none = [await links["mallory"].cancel(one, MALLORY) for one in (job, NOBODY)]
    assert (there.code, there.message, there.hint) == (
        "not_found", none.message.replace(NOBODY, job), none.hint,
    )  # fmt: skip
    mine = id_of(MALLORY, "spy")
    for old in (False, True):
        answers = [
            await links["mallory"].submit(mine, spec_of(MALLORY, "spy", after=(After(JobId(one)),)), old=old)
            for one in (job, NOBODY)
        ]
        assert answers[0].code == "not_found"
        assert answers[0].message == answers[1].message.replace(NOBODY, job)
    gone = links["mallory"].member.sign(MALLORY, codec.gone_digest(JobId(job)))
    await links["mallory"].say(link_pb2.Up(client_gone=link_pb2.ClientGone(job_id=job, assertion=gone)))
    await links["mallory"].cancel(NOBODY, MALLORY)
    assert (pool.job(job), pool.job(mine)) == (before, None)
    assert links["mallory"].updates() == []


async def test_a_job_whose_id_is_what_another_calls_theirs_hides_it_not(
    links: dict[str, Link], ada: Ask
) -> None:
    """Ids by chance may be chosen by a member; names are each person's own."""
    (mine,) = (await ada("Submit", submit_request(name=OLDER))).said.job_ids
    await links["mallory"].submit(OLDER, spec_of(MALLORY))
    assert (await ada("Get", jobs_pb2.JobRef(job_id=OLDER))).said.id == mine
    await links["mallory"].cancel(OLDER, MALLORY)
    assert (await ada("Get", jobs_pb2.JobRef(job_id=OLDER))).said.id == mine


# --- the ordinary cases --------------------------------------------------------------------------------


async def test_one_user_s_request_through_two_nodes_is_one_job(pool: InProcessPool) -> None:
    """Where both nodes speak for the user's realm. What the one began the other ends."""
    members = [await pool.member(node, "vision") for node in ("ws1", "ws4")]
    job, spec = id_of("ada@vision", "nightly"), spec_of("ada@vision", "nightly")
    for member in members:
        async with member.link() as link:
            assert (await link.submit(job, spec)).code == ""
            assert await link.heard(lambda down: True if down.HasField("update") else None)
    assert len(pool.coordinator.loop.state.jobs) == 1
    ended = await members[1].call("ada@vision", "Cancel", jobs_pb2.CancelJobRequest(job_id=job))
    assert ended.said.state == "cancelled"


async def test_a_token_cancels_what_it_submitted_and_asking_twice_makes_one_job(
    pool: InProcessPool, ada: Ask
) -> None:
    first = (await ada("Submit", submit_request("nightly", array="0-2"))).said
    assert (await ada("Submit", submit_request("nightly", array="0-2"))).said == first
    assert await listed(ada, first.array_id) == list(first.job_ids)
    for job in first.job_ids:
        assert (await ada("Cancel", jobs_pb2.CancelJobRequest(job_id=job))).said.state == "cancelled"
    assert len(pool.coordinator.loop.state.ended) == 3


async def test_a_person_with_several_principals_sees_and_ends_the_jobs_of_each(
    pool: InProcessPool, links: dict[str, Link], ada: Ask
) -> None:
    """The same request id of two principals is two requests."""
    jobs = [id_of(principal, "r") for principal in (ADAS_TOKEN, ADA)]
    assert list((await ada("Submit", submit_request("r"))).said.job_ids) == jobs[:1]
    assert (await links["ada"].submit(jobs[1], spec_of(ADA, "r"))).code == ""
    through_node = partial(links["ada"].member.call, ADA)
    after = [jobs_pb2.JobAfter(job_id=job) for job in jobs]
    for ask in (ada, through_node):
        seen = (await ask("List", jobs_pb2.ListJobsRequest())).said
        assert {*jobs} <= {job.id for job in seen.jobs}
        assert (await ask("Submit", submit_request(after=after))).code is grpc.StatusCode.OK
    for ask, job in ((through_node, jobs[0]), (ada, jobs[1])):
        assert (await ask("Cancel", jobs_pb2.CancelJobRequest(job_id=job))).said.state == "cancelled"


async def test_an_administrator_sees_and_ends_everybody_s_jobs(
    pool: InProcessPool, links: dict[str, Link], ada: Ask
) -> None:
    answer = (await ada("Submit", submit_request("sweep", array="0-2"))).said
    boss = partial(pool.call, await pool.token("boss"))
    assert await listed(boss, answer.array_id, limit=1) == list(answer.job_ids)
    after = [jobs_pb2.JobAfter(job_id=answer.array_id)]
    (waits,) = (await boss("Submit", submit_request(after=after))).said.job_ids
    assert len(getattr(pool.job(waits), "awaits", ())) == 3
    assert (await links["ada"].cancel(answer.job_ids[0], BOSS)).code == ""
    over = pool.job(answer.job_ids[0])
    assert over is not None
    assert isinstance(over.state, Ended)
    assert over.state.outcome == Cancelled(BOSS)


@pytest.mark.parametrize("array", ["", "0-1"])
async def test_requests_of_an_older_release_go_on_under_their_ids(pool: InProcessPool, array: str) -> None:
    """Those that waited in a node's outbox, with a request id and without; asked again, they are the same."""
    member = await pool.member("ws1")
    older = older_id_of(ADA, "nightly")
    async with member.link() as link:
        for base, request_id in ((older, "nightly"), (OLDER, "")):
            numbered = in_array(spec_of(ADA, request_id), base, 0)
            job, spec = (id_in_array(base, 0), numbered) if array else (base, spec_of(ADA, request_id))
            assert (await link.submit(job, spec, old=True)).code == ""
            assert (await link.submit(job, spec, old=True)).code == ""
    again = (await member.call(ADA, "Submit", submit_request("nightly", array=array))).said
    assert again.job_ids[0] == (id_in_array(older, 0) if array else older)
    await pool.stop()
    await pool.start()
    assert (await member.call(ADA, "Get", jobs_pb2.JobRef(job_id=again.job_ids[0]))).said.state == "held"
