"""Programs that use a pool by TLS and a token: a real coordinator, which is killed and started again."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from gpushared.client.http import ConnectionLost
from gpushared.client.pipeline import AsyncPool, Job, JobRequest, Pool
from gpushared.domain.model.errors import GpushareError, NotFound, PermissionRefused, RequestError, TimedOut
from tests.node.daemon import make_directory
from tests.pool.processes import CoordinatorProcess

REQUEST = JobRequest("busybox", ["true"], gpu="0.25")
PRESETS = '[presets.small]\ngpu = "0.25"\nclass = "infer"\n'
SECONDS = 30
AGAIN = pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])


@pytest.fixture(scope="module")
def shared_coordinator() -> Iterator[CoordinatorProcess]:
    """One without nodes: what is submitted waits."""
    made = CoordinatorProcess(make_directory(), config=PRESETS)
    yield made
    made.dispose()


@pytest.fixture
def coordinator(shared_coordinator: CoordinatorProcess) -> CoordinatorProcess:
    """The same, running. Tests see only jobs of their own, because each has a person of its own."""
    if not shared_coordinator.running:
        shared_coordinator.start()
    return shared_coordinator


@pytest.fixture
def person() -> str:
    return f"ada-{secrets.token_hex(4)}"


@pytest.fixture
def pool(coordinator: CoordinatorProcess, person: str) -> Iterator[Pool]:
    """With all that a token gives unless said otherwise."""
    with connected(coordinator, person) as made:
        yield made


def connected(coordinator: CoordinatorProcess, person: str, *scopes: str) -> Pool:
    token = coordinator.token_file(person, *scopes)
    return Pool(coordinator.address, ca_file=coordinator.anchors_file, token_file=token)


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """Where calls run that wait for something."""
    with ThreadPoolExecutor() as threads:
        yield threads


def test_a_job_is_submitted_found_listed_explained_and_ended(pool: Pool, person: str) -> None:
    job = pool.submit(REQUEST)
    assert pool.get(job[:6]).id == job
    found = pool.get(job)
    assert (found.state, found.owner, found.asks) == ("queued", f"{person}@lab", "0.25")
    assert [one.id for one in pool.jobs()] == [job]
    assert pool.explain(job).story
    assert pool.cancel(job).state == "cancelled"
    assert pool.wait(job).state == "cancelled"
    assert list(pool.jobs()) == []
    assert [one.id for one in pool.jobs(ended=True)] == [job]
    assert pool.nodes().pool == "lab"


def test_an_array_has_a_job_for_each_number(pool: Pool) -> None:
    array = pool.submit_array(REQUEST, "1,3-5")
    jobs = {job.id: job.array_index for job in pool.jobs(array_id=array.array_id)}
    assert [jobs[job] for job in array.job_ids] == [1, 3, 4, 5]


def test_a_list_of_more_than_a_page_is_whole(pool: Pool) -> None:
    array = pool.submit_array(REQUEST, "0-1200")
    listed = [job.id for job in pool.jobs(array_id=array.array_id)]
    assert sorted(listed) == sorted(array.job_ids)


def test_a_program_that_begins_again_gets_the_jobs_that_it_had(pool: Pool) -> None:
    first = pool.submit_array(REQUEST, "0-3", request_id="tonight")
    assert pool.submit_array(REQUEST, "0-3", request_id="tonight") == first
    assert pool.submit(REQUEST) != pool.submit(REQUEST)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        pytest.param(lambda pool: pool.get("nothing000"), NotFound, id="no such job"),
        pytest.param(
            lambda pool: pool.submit(JobRequest("busybox", gpu="much")), RequestError, id="no size of a GPU"
        ),
        pytest.param(lambda pool: next(pool.watch("nothing000")), NotFound, id="watching no such job"),
        pytest.param(lambda pool: next(pool.logs("nothing000")), NotFound, id="the output of no such job"),
        pytest.param(
            lambda pool: pool.wait(pool.submit(REQUEST), timeout_seconds=0.1), TimedOut, id="waits too long"
        ),
    ],
)
def test_a_refusal_is_an_error_of_the_tree_with_a_hint(
    pool: Pool, call: Callable[[Pool], object], kind: type[GpushareError]
) -> None:
    with pytest.raises(kind) as refused:
        call(pool)
    assert refused.value.hint


def test_a_program_asks_by_the_pool_s_presets_and_its_own_words_win(pool: Pool) -> None:
    asked = [pool.get(pool.submit(JobRequest("busybox", preset="small", gpu=gpu))) for gpu in ("", "0.5")]
    assert [(job.asks, job.job_class) for job in asked] == [("0.25", "infer"), ("0.5", "infer")]
    with pytest.raises(NotFound) as refused:
        pool.submit(JobRequest("busybox", preset="smaller"))
    assert refused.value.hint == "did you mean small?"


def test_a_token_is_good_for_what_it_was_made_for(coordinator: CoordinatorProcess, person: str) -> None:
    with connected(coordinator, person, "read") as pool:
        assert list(pool.jobs()) == []
        with pytest.raises(PermissionRefused, match="submit"):
            pool.submit(REQUEST)


def test_a_token_for_submitting_alone_is_refused_advice_once(
    coordinator: CoordinatorProcess, person: str
) -> None:
    with connected(coordinator, person, "submit") as pool:
        jobs = {pool.submit(REQUEST) for _ in range(3)}
    assert len(jobs) == 3
    lines = json.loads(coordinator.gpushare("audit", "--pool", "-o", "json", "--refused"))["items"]
    (refused,) = (text for text in map(json.dumps, lines) if person in text)
    assert "Jobs/Explain" in refused


def test_another_pools_coordinator_is_not_told_the_token(coordinator: CoordinatorProcess) -> None:
    """And not waited for: it will be another one tomorrow, too."""
    other = CoordinatorProcess(make_directory())
    other.start()
    try:
        files = (other.anchors_file, coordinator.token_file())
        with (
            Pool(coordinator.address, ca_file=files[0], token_file=files[1]) as pool,
            pytest.raises(PermissionRefused) as refused,
        ):
            pool.nodes()
        assert "not this pool's coordinator" in refused.value.message
    finally:
        other.dispose()


def test_where_nobody_listens_it_says_so(coordinator: CoordinatorProcess) -> None:
    anchors, token = coordinator.anchors_file, coordinator.token_file()
    coordinator.end()
    with (
        Pool(coordinator.address, ca_file=anchors, token_file=token, patience_seconds=0.5) as pool,
        pytest.raises(ConnectionLost) as refused,
    ):
        pool.nodes()
    assert coordinator.address in refused.value.message


# --- a coordinator that goes away and comes back


@AGAIN
def test_a_watch_goes_on_through_a_restart_and_tells_each_change_once(
    coordinator: CoordinatorProcess, pool: Pool, how: signal.Signals
) -> None:
    job = pool.submit(REQUEST)
    seen: list[Job] = []
    watching = threading.Thread(target=lambda: seen.extend(pool.watch(job)))
    watched = pool.watch(job)
    assert next(watched).state == "queued"
    watching.start()
    coordinator.end(how)
    coordinator.start()
    assert pool.cancel(job).state == "cancelled"
    assert [one.state for one in watched][-1] == "cancelled"
    watching.join(SECONDS)
    assert seen[-1].state == "cancelled"
    tokens = [one.token for one in seen]
    assert all(one != other for one, other in pairwise(tokens))


@AGAIN
def test_what_is_submitted_while_it_is_away_is_there_once_when_it_is_back(
    coordinator: CoordinatorProcess, pool: Pool, aside: ThreadPoolExecutor, how: signal.Signals
) -> None:
    pool.nodes()
    coordinator.end(how)
    submitted = [aside.submit(pool.submit, REQUEST) for _ in range(3)]
    time.sleep(0.5)  # so that each was refused at least once; the outcome does not depend on it
    coordinator.start()
    assert {one.result(SECONDS) for one in submitted} == {one.id for one in pool.jobs()}
    assert len(list(pool.jobs())) == 3


def test_who_waits_for_a_job_is_told_after_a_restart(
    coordinator: CoordinatorProcess, pool: Pool, aside: ThreadPoolExecutor
) -> None:
    jobs = pool.submit_array(REQUEST, "0-1").job_ids
    waited: Future[list[Job]] = aside.submit(pool.wait_all, jobs)
    coordinator.end()
    coordinator.start()
    for job in jobs:
        pool.cancel(job)
    assert [job.state for job in waited.result(SECONDS)] == ["cancelled", "cancelled"]


# --- the twin


async def test_the_asynchronous_client_does_the_same(coordinator: CoordinatorProcess) -> None:
    anchors, token = coordinator.anchors_file, coordinator.token_file()
    async with (
        asyncio.timeout(SECONDS),
        AsyncPool(coordinator.address, ca_file=anchors, token_file=token) as pool,
    ):
        array = await pool.submit_array(REQUEST, "0-2", request_id="mine")
        assert await pool.submit_array(REQUEST, "0-2", request_id="mine") == array
        assert {job.id async for job in pool.jobs(array_id=array.array_id)} == set(array.job_ids)
        job = await pool.submit(REQUEST)
        assert (await pool.get(job)).state == "queued"
        assert (await pool.explain(job)).story
        assert (await pool.nodes()).pool == "lab"
        with pytest.raises(NotFound):
            await pool.get("nothing000")
        with pytest.raises(TimedOut):
            await pool.wait(job, timeout_seconds=0.1)

        async def watch() -> list[str]:
            return [one.state async for one in pool.watch(job)]

        watched = asyncio.create_task(watch())
        waited = asyncio.create_task(pool.wait_all([job, *array.job_ids]))
        await asyncio.to_thread(coordinator.end)
        await asyncio.to_thread(coordinator.start)
        for one in (job, *array.job_ids):
            await pool.cancel(one)
        assert (await watched)[-1] == "cancelled"
        assert {one.state for one in await waited} == {"cancelled"}


def test_files_are_named_by_variables(
    coordinator: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUSHARE_POOL", coordinator.address)
    monkeypatch.setenv("GPUSHARE_POOL_CA", str(coordinator.anchors_file))
    monkeypatch.setenv("GPUSHARE_POOL_TOKEN_FILE", str(coordinator.token_file()))
    with Pool() as pool:
        assert pool.nodes().pool == "lab"
