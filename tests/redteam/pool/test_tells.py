"""What a member tells of: jobs that nobody submitted, users without end, what others hold.

Eve has root on a machine that is a member, and in some attacks on two. Ada works in the same pool, on a
machine of her own, which is called good. Beside the attacks stands what honest nodes tell, which is believed.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpushared.client.pipeline import JobRequest
from gpushared.client.pipeline.pool_steps import JobWarning
from gpushared.domain.jobs.job import AttemptState
from gpushared.domain.jobs.member import HeartbeatReport
from gpushared.domain.jobs.protocol import CancelPart, Place, Report
from gpushared.domain.model.lease import AttemptKey
from tests.redteam.pool.attacked_pool import (
    HAS_SEEN_MORE,
    MIB,
    SMALL,
    WHOLE,
    AttackedPool,
    attacked_pool,
    held,
    inventory,
    is_over,
    job_id,
    runs,
    spec,
)

ADA = "ada@good"
BODY = "{" + " " * 20_000 + "}"
BOUND_BYTES = 300 * MIB
"""So much more may a coordinator hold, whatever one member tells."""
USERS = """
[users.ada]
principals = ["ada@good"]

[projects.vision]
users = ["ada"]
limit = 2

"""
SMALL_QUEUE = """
[queue]
max_queued = 1000
max_queued_per_realm = 600
max_queued_size = "20MiB"
max_queued_size_per_realm = "10MiB"
"""
MAX_REPORTED_JOBS, MAX_REPORTED_BYTES = 4096, 64 * MIB
"""So much a coordinator learns from one node."""
NOT_SOON = 4.0
"""Seconds after which what was not placed is not."""


@pytest.fixture
def pool() -> Iterator[AttackedPool]:
    with attacked_pool(USERS + SMALL_QUEUE) as made:
        yield made


@pytest.fixture
def large() -> Iterator[AttackedPool]:
    """A pool with the bounds that pools have."""
    with attacked_pool(USERS) as made:
        yield made


async def submit(pool: AttackedPool, **fields: object) -> str:
    """A job of Ada's, by her token, wherever there is room for it or not."""

    def sent() -> str:
        with pool.user() as ada, warnings.catch_warnings(action="ignore", category=JobWarning):
            return ada.submit(JobRequest("busybox", ["true"], **fields))  # type: ignore[arg-type]

    return await asyncio.to_thread(sent)


# --- jobs that nobody submitted ------------------------------------------------------------------------


async def test_a_member_fills_no_settled_coordinator_with_jobs_that_nobody_submitted(
    large: AttackedPool,
) -> None:
    """Nor others' lists; and what it says that it runs is to be ended there."""
    eve = await large.member("eve")
    async with eve.linked(inventory("e0")):
        memory, store = large.memory(), large.store()
    reports = [runs(number, spec(ADA, BODY)) for number in range(2500)]
    async with eve.linked(inventory("e0"), *reports) as link:
        assert await link.ended(2500)
        assert await large.jobs() == []
        assert large.memory() - memory < BOUND_BYTES
        assert large.store() - store < 8 * MIB
        assert await large.answers() < 5


async def test_a_member_that_makes_the_pool_recover_tells_no_more_than_its_share(large: AttackedPool) -> None:
    """However often it says hello; others submit and are answered meanwhile."""
    eve = await large.member("eve")
    async with eve.linked(inventory("e0")):
        memory, store = large.memory(), large.store()
    for first in (0, 5000):
        reports = [runs(number, spec(ADA, BODY)) for number in range(first, first + 5000)]
        async with eve.linked(inventory("e0"), *reports, seen_revision=HAS_SEEN_MORE):
            assert await large.answers() < 5
    assert len(await large.jobs()) <= min(MAX_REPORTED_JOBS, MAX_REPORTED_BYTES // len(BODY))
    assert large.memory() - memory < 2 * BOUND_BYTES
    assert large.store() - store < 3 * MAX_REPORTED_BYTES
    assert await submit(large, gpu="0.25", held=True)


async def test_two_members_together_keep_nobody_from_telling_what_really_runs(pool: AttackedPool) -> None:
    """In a queue that they fill, too: an honest node with 500 jobs is believed whole."""
    for name in ("eve", "mallory"):
        member = await pool.member(name)
        reports = [runs(number, spec(f"x@{name}")) for number in range(100_000, 101_000)]
        async with member.linked(inventory(f"{name}-gpu"), *reports, seen_revision=HAS_SEEN_MORE):
            pass
    good = await pool.member("good")
    reports = [runs(number, spec(ADA)) for number in range(500)]
    async with good.linked(inventory("g0"), *reports) as link:
        assert sum(job.state == "running" for job in await pool.jobs()) == 500
        assert link.orders(CancelPart) == []


async def test_an_honest_node_is_believed_whole_after_a_loss_of_memory(large: AttackedPool) -> None:
    """Its users' jobs and those of others, and with the specs that jobs have."""
    good = await large.member("good")
    async with good.linked(inventory("g0")):
        pass
    large.lose_memory()
    reports = [
        runs(number, spec(ADA if number % 2 else "ada@lab", BODY)) for number in range(500)
    ]  # ada@lab is who came with Ada's token
    async with good.linked(inventory("g0"), *reports) as link:
        assert sum(job.state == "running" for job in await large.jobs()) == 500
        assert link.orders(CancelPart) == []


async def test_a_machine_that_has_just_joined_is_believed_no_more(pool: AttackedPool) -> None:
    eve = await pool.member("eve")
    async with eve.linked(inventory("e0"), runs(1, spec(ADA)), runs(2, spec("x@eve"))) as link:
        assert await link.ended(2)
        assert await pool.jobs() == []


async def test_a_member_takes_over_no_job_of_a_settled_pool(pool: AttackedPool) -> None:
    """Not that of its own users either; nor does it use up the numbers of attempts."""
    eve = await pool.member("eve")
    job = await submit(pool, gpu="1")
    async with eve.linked(inventory()) as link:
        await link.report(Report(AttemptKey(job_id(0), 900), AttemptState.RUNNING, 7))
        for number in (1, 900):
            await link.report(Report(AttemptKey(job, number), AttemptState.RUNNING, 7))  # type: ignore[arg-type]
        assert await link.ended(3)
    good = await pool.member("good")
    async with good.linked(inventory("g0")) as link:
        assert await link.placed(job)
        (order,) = link.orders(Place)
        assert order.key.number == 1


async def test_a_member_fills_no_memory_with_numbers_of_attempts(large: AttackedPool) -> None:
    eve = await large.member("eve")
    async with eve.linked(inventory("e0")):
        memory = large.memory()
    for first in range(0, 150_000, 30_000):
        reports = [is_over(number) for number in range(first, first + 30_000)]
        async with eve.linked(inventory("e0"), *reports, seen_revision=HAS_SEEN_MORE):
            assert await large.answers() < 5
    assert large.memory() - memory < BOUND_BYTES


async def test_a_member_fills_no_memory_with_long_reasons(large: AttackedPool) -> None:
    eve = await large.member("eve")
    async with eve.linked(inventory("e0")):
        memory = large.memory()
    reports = [is_over(number, "x" * 30_000) for number in range(3000)]
    async with eve.linked(inventory("e0"), *reports):
        assert large.memory() - memory < BOUND_BYTES


# --- the queue -----------------------------------------------------------------------------------------


async def test_a_member_with_many_users_fills_no_queue(pool: AttackedPool) -> None:
    """It can invent as many as it likes; the realm for which it speaks has its share."""
    eve = await pool.member("eve")
    async with eve.linked(inventory("e0")) as link:
        assert await link.fill(0, [spec(f"x{number}@eve") for number in range(700)]) == 600
        assert await submit(pool, gpu="0.25")
        assert await pool.answers() < 5


async def test_two_members_together_leave_room_for_others(pool: AttackedPool) -> None:
    """The queue is full, and who has little in it is let in all the same."""
    taken = []
    for number, name in enumerate(("eve", "mallory")):
        member = await pool.member(name)
        async with member.linked(inventory()) as link:
            taken.append(await link.fill(number * 1000, [spec(f"x{one}@{name}") for one in range(700)]))
    assert taken == [600, 400]
    assert await submit(pool, gpu="0.25")
    good = await pool.member("good")
    async with good.linked(inventory("g0")) as link:
        assert await link.fill(9000, [spec(ADA)]) == 1


@pytest.mark.parametrize("what", ["bodies", "names"])
async def test_a_member_fills_no_store_with_few_large_jobs(pool: AttackedPool, what: str) -> None:
    """By whichever of a job's texts."""
    eve = await pool.member("eve")
    large = spec("x@eve", "{" + " " * 90_000 + "}")
    if what == "names":
        models = tuple(f"{number:0240}" for number in range(250))
        large = spec("x@eve", request=replace(SMALL, models=models))
    async with eve.linked(inventory()) as link:
        before = pool.store()
        assert 100 < await link.fill(0, [large] * 300) < 150
        assert pool.store() - before < 60 * MIB
        assert await submit(pool, gpu="0.25")


async def test_a_member_makes_no_room_for_more_by_saying_that_its_jobs_run(pool: AttackedPool) -> None:
    """On GPUs that nobody ever saw."""
    eve = await pool.member("eve")
    async with eve.linked(inventory(*(f"e{number}" for number in range(64)))) as link:
        for first in (0, 300):
            assert await link.fill(first, [spec(f"x{number}@eve") for number in range(300)]) == 300
            assert await link.until(lambda most=first + 300: len(link.orders(Place)) == most)  # type: ignore[misc]
            for order in link.orders(Place):
                await link.report(Report(order.key, AttemptState.RUNNING, 5))
        await link.beat(HeartbeatReport())
        assert await link.fill(600, [spec(f"x{number}@eve") for number in range(300)]) == 0
        assert await submit(pool, gpu="0.25")


# --- what others hold ----------------------------------------------------------------------------------


async def test_a_member_uses_up_no_limit_of_a_project_of_others(pool: AttackedPool) -> None:
    """By saying that the project's people hold its own GPUs, which count as taken all the same."""
    eve, good = await pool.member("eve"), await pool.member("good")
    holdings = tuple(held(number, "e0", "ada", "vision") for number in range(300))
    async with (
        eve.linked(inventory("e0"), free=HeartbeatReport(holdings=holdings)) as hers,
        good.linked(inventory("g0")) as link,
    ):
        job = await submit(pool, gpu="1", project="vision")
        assert await link.placed(job)
        other = await submit(pool, gpu="1", project="vision")
        assert not await hers.placed(other, NOT_SOON)


async def test_what_an_honest_node_s_users_hold_takes_its_gpus_and_nothing_of_a_limit(
    pool: AttackedPool,
) -> None:
    """The limit of a pool counts the pool's jobs."""
    good = await pool.member("good")
    holdings = tuple(held(number, f"g{number}", "ada", "vision") for number in range(2))
    async with good.linked(inventory("g0", "g1", "g2"), free=HeartbeatReport(holdings=holdings)) as link:
        assert await link.placed(await submit(pool, gpu="1", project="vision"))
        other = await submit(pool, gpu="1", project="vision")
        assert not await link.placed(other, NOT_SOON)
        await link.beat(HeartbeatReport(holdings=holdings[:1]))
        assert await link.placed(other)


async def test_a_member_that_was_given_a_job_does_not_say_that_it_holds_more_than_was_asked(
    pool: AttackedPool,
) -> None:
    """Else one job's owner would have no more of the project's limit."""
    eve = await pool.member("eve")
    async with eve.linked(inventory("e0")) as link:
        job = await submit(pool, gpu="1", project="vision")
        assert await link.placed(job)
        (order,) = link.orders(Place)
        await link.report(Report(order.key, AttemptState.RUNNING, 5))
        told = held(0, "e0", "ada", "vision", attempt=order.key)
        await link.beat(HeartbeatReport(holdings=(replace(told, grants=300 * told.grants),)))
        good = await pool.member("good")
        async with good.linked(inventory("g0")) as theirs:
            other = await submit(pool, gpu="1", project="vision")
            assert await theirs.placed(other)


async def test_in_a_recovery_a_member_uses_up_no_limit_with_jobs_of_others(pool: AttackedPool) -> None:
    """They count to nobody before they come with their owner's own word."""
    eve, good = await pool.member("eve"), await pool.member("good")
    reports = [runs(number, spec(ADA, request=WHOLE)) for number in range(50)]
    holdings = tuple(
        held(number, "e0", "ada", "vision", attempt=AttemptKey(job_id(number), 1)) for number in range(50)
    )
    async with (
        good.linked(inventory("g0")) as link,
        eve.linked(
            inventory("e0"), *reports, free=HeartbeatReport(holdings=holdings), seen_revision=HAS_SEEN_MORE
        ),
    ):
        assert len(await pool.jobs()) == 50
        job = await submit(pool, gpu="1", project="vision")
        assert await link.placed(job)


async def test_a_member_holds_no_gpu_of_another_machine(pool: AttackedPool) -> None:
    """By telling of leases there."""
    eve, good = await pool.member("eve"), await pool.member("good")
    mine, theirs = held(0, "e0", "eve", "eve"), held(1, "g0", "eve", "eve")
    both = replace(mine, grants=mine.grants + theirs.grants)
    async with (
        good.linked(inventory("g0")) as link,
        eve.linked(inventory("e0"), free=HeartbeatReport(holdings=(both, theirs))),
    ):
        assert await link.placed(await submit(pool, gpu="1"))


async def test_a_member_gets_no_job_of_another_machine_by_naming_its_gpus(pool: AttackedPool) -> None:
    """Whoever joined first has them."""
    good = await pool.member("good")
    zoe = await pool.member("zoe")
    async with good.linked(inventory("g0")) as link, zoe.linked(inventory("g0")) as hers:
        assert await link.fill(1, [spec(ADA, request=WHOLE, target="good")]) == 1
        assert await link.placed(job_id(1))
        assert hers.orders(Place) == []
