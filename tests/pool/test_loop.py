"""The coordinator's loop: nothing is true before it is durable, and what fails changes nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count

import pytest

from gpushared.daemon.write_ahead_loop import MAX_PENDING
from gpushared.domain.jobs.coordinator_events import (
    AttemptReported,
    CancelAsked,
    JobSubmitted,
    NodeEnrolled,
    NodeForgotten,
    NodeHeartbeat,
    NodeRegistered,
    PoolInstruction,
    PoolTick,
    Send,
)
from gpushared.domain.jobs.coordinator_rules import PoolRules
from gpushared.domain.jobs.job import (
    After,
    AfterKind,
    AttemptState,
    Ended,
    Ending,
    EndKind,
    Job,
    NodeName,
    Placing,
    Queued,
    Running,
)
from gpushared.domain.jobs.member import HeartbeatReport, Member
from gpushared.domain.jobs.protocol import CancelPart, Place, Report, StaleEpoch
from gpushared.domain.model.errors import (
    GpushareError,
    LimitReached,
    NotFound,
    RequestError,
    StateConflict,
    TimedOut,
    Unavailable,
)
from gpushared.domain.model.lease import AttemptKey, LeaseId
from gpushared.jobs import coordinator_loop as loop_module
from gpushared.jobs.job_records import ENDED, JOB, MEMBER, OVER, RECOVERING
from gpushared.jobs.job_search import GONE_KEPT_SECONDS
from gpushared.ports.job_store import MAX_OPERATIONS, Conflict, Deposed, StoreUnavailable, Transaction
from gpushared.testing import StoreWorld
from tests.pool.pools import ADA, INVENTORY, NODE, REQUEST, SECONDS, Pool, coordinator, job_id, spec


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with coordinator() as made:
        yield made


# --- durable first -------------------------------------------------------------------------------------


async def test_a_job_is_in_the_store_before_its_submitter_is_answered(pool: Pool) -> None:
    job = await pool.submit(1)
    assert isinstance(job.state, Queued)
    assert pool.kept(JOB) == [JOB + job.id]
    assert pool.loop.state.jobs[job.id] == job


async def test_an_attempt_is_in_the_store_before_its_node_is_told(pool: Pool) -> None:
    seen: list[bytes] = []

    def look(instruction: PoolInstruction) -> None:
        if isinstance(instruction, Send):
            seen.append(pool.store.world.records[JOB + instruction.order.key.job].value)

    pool.loop.subscribe(look)
    await pool.join()
    await pool.submit(1)
    await pool.until_placed(1)
    assert b'"kind":"placing"' in seen[0]


async def test_what_a_stranger_told_of_a_job_is_in_the_store_no_more_once_its_owner_means_another() -> None:
    report = Report(
        AttemptKey(job_id(1), 1),
        AttemptState.ENDED,
        1,
        LeaseId("l-1"),
        Ending(EndKind.EXITED, exit_code=0),
        spec(image="told"),
        REQUEST,
    )
    async with coordinator(enrolled=(Member(NODE, 0.0),)) as pool:
        await pool.loop.send(NodeRegistered(NODE, INVENTORY, HeartbeatReport(), reports=(report,)))
        pool.clock.advance(PoolRules().recover_seconds)
        await pool.loop.send(PoolTick())
        assert pool.kept(ENDED) == [ENDED + job_id(1)]
        await pool.submit(1)
        assert (pool.kept(JOB), pool.kept(ENDED), pool.kept(OVER)) == ([JOB + job_id(1)], [], [])


async def test_what_cannot_be_written_did_not_happen(pool: Pool) -> None:
    before = pool.loop.state.jobs
    pool.store.fail_next(StoreUnavailable("the disk is full"))
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await pool.submit(1)
    assert pool.loop.state.jobs is before
    assert pool.kept() == []
    assert pool.told == []
    assert "disk is full" in pool.troubles.of("store")
    await pool.submit(1)
    assert pool.troubles.of("store") == ""


async def test_an_idle_pool_notices_that_its_store_can_be_written_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "RETRY_SECONDS", 0.0)
    pool.store.fail_next(StoreUnavailable("the disk is full"), times=3)
    with pytest.raises(StoreUnavailable):
        await pool.submit(1)
    assert pool.troubles.of("store")
    assert pool.loop._healing is not None
    await pool.loop._healing
    assert pool.troubles.of("store") == ""


async def test_a_store_that_writes_slowly_is_told_until_it_is_fast_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "RETRY_SECONDS", 0.0)
    commit, slow = pool.store.commit, True

    async def commit_slowly(transaction: Transaction) -> int:
        if slow:
            pool.clock.advance(2.0)
        return await commit(transaction)

    monkeypatch.setattr(pool.store, "commit", commit_slowly)
    await pool.submit(1)
    assert "takes more than 1 s for a write" in pool.troubles.of("slow store")
    assert pool.troubles.of("store") == ""
    slow = False
    assert pool.loop._healing is not None
    await pool.loop._healing
    assert pool.troubles.all() == ()


async def test_a_tick_that_cannot_be_written_is_no_warning(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for its answer, so nobody takes the error from it."""
    said: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    await pool.join()
    pool.loop.state = replace(pool.loop.state, planned_at=pool.clock.now() + 0.2)
    assert isinstance((await pool.submit(1)).state, Queued)
    pool.store.fail_next(StoreUnavailable("the disk is full"), times=1000)
    refused = asyncio.Event()
    monkeypatch.setattr(pool.troubles, "raised", lambda *_: refused.set())
    pool.clock.advance(1.0)
    async with asyncio.timeout(SECONDS):
        await refused.wait()
    pool.store._failures.clear()  # an error holds the frames that it passed, and these the tick
    await pool.submit(2)
    gc.collect()
    assert said == []


async def test_a_pass_that_takes_long_leaves_as_much_time_to_all_the_rest(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pool.join()
    readings = count(pool.clock.now() + 1.0, 2.0)
    monkeypatch.setattr(pool.clock, "now", lambda: next(readings))
    state = (await pool.submit(1)).state
    assert isinstance(state, Placing)
    ended = state.since + 2.0
    assert pool.loop.state.plan_at >= ended + 2.0


async def test_beats_are_taken_while_nothing_can_be_written(pool: Pool) -> None:
    """What waits is tried to be placed now and then, not with each beat, which would be refused with it."""
    await pool.join()
    await pool.submit(1)
    pool.store.fail_next(StoreUnavailable("the disk is full"), times=1000)
    with pytest.raises(StoreUnavailable):
        await pool.submit(2)
    for _ in range(5):
        await pool.loop.send(NodeHeartbeat(NODE, free=HeartbeatReport(waiting=1)))
        await pool.loop.send(NodeHeartbeat(NODE, free=HeartbeatReport(waiting=2)))
    assert pool.loop.state.members[NODE].free == HeartbeatReport(waiting=2)
    assert isinstance(pool.loop.state.jobs[job_id(1)].state, Queued)


async def test_beats_write_nothing(pool: Pool) -> None:
    await pool.join()
    before = len(pool.store.world.transactions)
    for _ in range(5):
        pool.clock.advance(5)
        await pool.loop.send(NodeHeartbeat(NODE, free=HeartbeatReport(waiting=1)))
    assert len(pool.store.world.transactions) == before
    assert pool.loop.state.members[NODE].heard_at == pool.clock.now()


async def test_events_that_come_together_are_written_together(pool: Pool) -> None:
    await asyncio.gather(*(pool.submit(number) for number in range(50)))
    assert len(pool.kept(JOB)) == 50
    assert len(pool.store.world.transactions) < 5


async def test_a_batch_that_is_too_large_for_one_transaction_takes_several(pool: Pool) -> None:
    body = "x" * 20_000
    await asyncio.gather(*(pool.submit(number, body=body) for number in range(200)))
    assert len(pool.kept(JOB)) == 200
    for transaction in pool.store.world.transactions:
        assert len(transaction.puts) + len(transaction.deletes) <= MAX_OPERATIONS


async def test_of_a_batch_what_was_written_counts_and_the_rest_is_refused() -> None:
    async with coordinator() as pool:
        commits = 0
        original = pool.store.commit

        async def second_fails(transaction: Transaction) -> int:
            nonlocal commits
            commits += 1
            if commits == 2:
                raise StoreUnavailable("the disk is full")
            return await original(transaction)

        pool.store.commit = second_fails  # type: ignore[method-assign]
        body = "x" * 20_000
        answers = await asyncio.gather(
            *(pool.submit(number, body=body) for number in range(100)), return_exceptions=True
        )
        kept = [answer.id for answer in answers if isinstance(answer, Job)]
        assert 0 < len(kept) < 100
        assert pool.kept(JOB) == [JOB + job for job in sorted(kept)]
        assert sorted(pool.loop.state.jobs) == sorted(kept)


# --- a store that is slow ------------------------------------------------------------------------------


async def slow_commit(pool: Pool, *, happens: bool) -> None:
    """The next commit is not answered; whether it happened only the store knows."""
    original = pool.store.commit

    async def once(transaction: Transaction) -> int:
        pool.store.commit = original  # type: ignore[method-assign]
        if happens:
            await original(transaction)
        raise TimedOut("the store did not answer in 15 s")

    pool.store.commit = once  # type: ignore[method-assign]


async def test_a_commit_of_which_nothing_was_heard_but_that_happened_counts(pool: Pool) -> None:
    epoch = pool.loop.epoch
    await slow_commit(pool, happens=True)
    job = await pool.submit(1)
    assert pool.loop.state.jobs[job.id] == job
    assert pool.kept(JOB) == [JOB + job.id]
    assert pool.loop.state.epoch == pool.loop.epoch > epoch
    await pool.submit(2)


async def test_a_commit_of_which_nothing_was_heard_and_that_did_not_happen_does_not_count(pool: Pool) -> None:
    await pool.submit(1)
    await slow_commit(pool, happens=False)
    with pytest.raises(StoreUnavailable, match="took too long"):
        await pool.submit(2)
    assert pool.kept(JOB) == [JOB + job_id(1)]
    await pool.submit(2)
    assert pool.kept(JOB) == [JOB + job_id(1), JOB + job_id(2)]


async def test_a_commit_that_comes_after_all_is_shut_out(pool: Pool) -> None:
    """What was under way when the answer did not come is of an earlier epoch."""
    late: list[Transaction] = []
    original = pool.store.commit

    async def once(transaction: Transaction) -> int:
        pool.store.commit = original  # type: ignore[method-assign]
        late.append(transaction)
        raise TimedOut("the store did not answer in 15 s")

    pool.store.commit = once  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await pool.submit(1)
    with pytest.raises(Deposed):
        await pool.store.commit(late[0])
    assert pool.kept(JOB) == []


async def test_it_asks_until_the_store_answers(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "RETRY_SECONDS", 0.0)
    await slow_commit(pool, happens=True)
    original = pool.store.lead
    left = 3

    async def lead(above: int = 0) -> int:
        nonlocal left
        left -= 1
        if left > 0:
            raise TimedOut("still nothing")
        return await original(above)

    pool.store.lead = lead  # type: ignore[method-assign]
    await pool.submit(1)
    assert left == 0


# --- deposed -------------------------------------------------------------------------------------------


async def test_who_is_deposed_ends_and_refuses_everybody(pool: Pool) -> None:
    await pool.submit(1)
    pool.store.depose()
    waiting = [asyncio.create_task(pool.submit(number)) for number in (2, 3)]
    with pytest.raises(Deposed):
        await pool.loop.ended()
    for answer in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(answer, Unavailable)
    with pytest.raises(Unavailable, match="ending"):
        await pool.submit(4)


# --- rules and parts that fail -------------------------------------------------------------------------


async def test_what_a_rule_refuses_is_told_to_who_asked_only(pool: Pool) -> None:
    answers = await asyncio.gather(
        pool.loop.send(CancelAsked(job_id(9), ADA)), pool.submit(1), return_exceptions=True
    )
    assert isinstance(answers[0], NotFound)
    assert isinstance(answers[1], Job)


async def test_a_bug_in_a_rule_does_not_end_the_daemon(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(GpushareError, match="made a mistake"):
        await pool.loop.send("no event")  # type: ignore[arg-type]
    assert "rule failed" in caplog.text
    await pool.submit(1)


async def test_a_bug_in_one_part_keeps_no_other_from_hearing(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: PoolInstruction) -> None:
        raise ValueError("broken")

    told: list[PoolInstruction] = []
    pool.loop.subscribe(broken)
    end = pool.loop.subscribe(told.append)
    await pool.join()
    await pool.submit(1)
    await pool.until_placed(1)
    assert told
    assert "instruction failed" in caplog.text
    end()
    heard = len(told)
    await pool.submit(2)
    await pool.until_placed(2)
    assert len(told) == heard


async def test_more_than_can_wait_is_refused_at_once(pool: Pool) -> None:
    calls = [asyncio.create_task(pool.loop.send(PoolTick())) for _ in range(MAX_PENDING + 10)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(answer, LimitReached) for answer in answers) == 10


async def test_whoever_floods_the_pool_with_jobs_does_not_keep_nodes_from_being_heard(pool: Pool) -> None:
    """Or what ends without the pool's word would end."""
    await pool.join()
    flood = [asyncio.create_task(pool.submit(number)) for number in range(MAX_PENDING + 10)]
    await asyncio.sleep(0)
    await pool.loop.send(NodeHeartbeat(NODE))
    assert any(isinstance(one, LimitReached) for one in await asyncio.gather(*flood, return_exceptions=True))


# --- those who wait ------------------------------------------------------------------------------------


async def test_who_waits_for_a_job_hears_of_its_changes_only(pool: Pool) -> None:
    first, second = await pool.submit(1), await pool.submit(2)
    waits = [asyncio.create_task(pool.loop.job_changed(job.id, SECONDS)) for job in (first, second)]
    await asyncio.sleep(0)
    await pool.loop.send(CancelAsked(first.id, ADA))
    assert await waits[0]
    assert not waits[1].done()
    waits[1].cancel()
    assert not await pool.loop.job_changed(second.id, 0.01)


async def test_beats_wake_nobody(pool: Pool) -> None:
    await pool.join()
    waiting = asyncio.create_task(pool.loop.changed(SECONDS))
    await asyncio.sleep(0)
    await pool.loop.send(NodeHeartbeat(NODE))
    await asyncio.sleep(0)
    assert not waiting.done()
    await pool.submit(1)
    assert await waiting


# --- epochs --------------------------------------------------------------------------------------------


async def test_the_epoch_rises_above_what_a_node_has_seen(pool: Pool) -> None:
    renewed: list[int] = []
    pool.loop.on_new_epoch(lambda: renewed.append(pool.loop.state.epoch))
    await pool.loop.send(NodeEnrolled(NODE))
    await pool.loop.send(NodeRegistered(NODE, INVENTORY, HeartbeatReport(), seen_epoch=41))
    assert pool.loop.state.epoch == pool.loop.epoch > 41
    assert renewed == [pool.loop.epoch]
    await pool.submit(1)


async def test_an_epoch_of_which_nothing_was_heard_is_asked_for_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have risen in the store, and then nothing of the earlier one would be written any more."""
    monkeypatch.setattr(loop_module, "RETRY_SECONDS", 0.0)
    original = pool.store.lead

    async def once(above: int = 0) -> int:
        pool.store.lead = original  # type: ignore[method-assign]
        await original(above)
        raise TimedOut("the store did not answer in 15 s")

    pool.store.lead = once  # type: ignore[method-assign]
    await pool.loop.send(NodeEnrolled(NODE))
    await pool.loop.send(NodeRegistered(NODE, INVENTORY, HeartbeatReport(), seen_epoch=41))
    assert pool.loop.epoch > 42
    await pool.submit(1)


async def test_an_order_that_was_of_too_low_an_epoch_raises_it(pool: Pool) -> None:
    await pool.join()
    await pool.submit(1)
    order = await pool.until_placed(1)
    await pool.loop.send(AttemptReported(NODE, StaleEpoch(order.key, 99)))
    assert pool.loop.epoch > 99


async def test_a_node_that_saw_what_others_wrote_is_no_sign_of_lost_memory(pool: Pool) -> None:
    """Tokens and the like are in the store, too, and its revision is what nodes are told."""
    await pool.join()
    revision = await pool.loop.write({"token/api/x": b"1"})
    assert pool.loop.revision == revision
    await pool.loop.send(NodeRegistered(NODE, INVENTORY, HeartbeatReport(), seen_revision=revision))
    assert pool.loop.state.recovering_since is None
    await pool.loop.send(NodeRegistered(NODE, INVENTORY, HeartbeatReport(), seen_revision=revision + 1))
    assert pool.loop.state.recovering_since is not None
    assert pool.kept(RECOVERING) == [RECOVERING]


async def test_others_compare_what_they_write(pool: Pool) -> None:
    revision = await pool.loop.write({"token/a": b"1"}, compares={"token/a": 0})
    with pytest.raises(Conflict):
        await pool.loop.write({"token/a": b"2"}, compares={"token/a": 0})
    await pool.loop.write({}, ["token/a"], {"token/a": revision})
    assert pool.kept("token/") == []


# --- started again -------------------------------------------------------------------------------------


def report(
    order: Place, state: AttemptState, revision: int, ending: Ending | None = None, *, full: bool = False
) -> Report:
    return Report(
        order.key,
        state,
        revision,
        lease=LeaseId("l-1"),
        ending=ending,
        spec=order.spec if full else None,
        request=order.request if full else None,
    )


async def test_everything_is_there_after_a_restart() -> None:
    world = StoreWorld()
    async with coordinator(world) as pool:
        await pool.join()
        await pool.submit(1)
        order = await pool.until_placed(1)
        await pool.loop.send(AttemptReported(NODE, report(order, AttemptState.RUNNING, 1)))
        ended = await pool.submit(2)
        ended_job = await pool.loop.send(CancelAsked(ended.id, ADA))
        before = pool.loop.state
    async with coordinator(world) as pool:
        after = pool.loop.state
        assert after.epoch > before.epoch
        assert dict(after.jobs) == dict(before.jobs)
        assert isinstance(after.jobs[job_id(1)].state, Running)
        assert after.ended[ended.id] == ended_job
        assert after.next_sequence == before.next_sequence
        member = after.members[NODE]
        assert (member.inventory, member.connected, member.heard_at) == (INVENTORY, False, None)


async def test_killed_after_any_write_it_begins_with_what_was_written() -> None:
    """What was answered is there; attempts that nodes were told of are there."""
    world = StoreWorld()
    answered: list[tuple[int, Job]] = []
    placed: list[tuple[int, AttemptKey]] = []
    async with coordinator(world) as pool:
        pool.loop.subscribe(
            lambda said: (
                placed.append((len(world.transactions), said.order.key))
                if isinstance(said, Send) and isinstance(said.order, Place)
                else None
            )
        )
        await pool.join()
        for number in range(6):
            job = await pool.submit(number)
            answered.append((len(world.transactions), job))
        for number in range(6):
            order = await pool.until_placed(number)
            over = report(order, AttemptState.ENDED, 2, Ending(EndKind.EXITED, exit_code=0))
            await pool.loop.send(AttemptReported(NODE, over))
    writes = len(world.transactions)
    assert writes > 6
    for killed_after in range(writes + 1):
        async with coordinator(world.after(killed_after)) as pool:
            state = pool.loop.state
            known = {*state.jobs, *state.ended}
            assert {job.id for at, job in answered if at <= killed_after} <= known
            for at, key in placed:
                if at <= killed_after:
                    found = state.jobs.get(key.job) or state.ended[key.job]
                    assert found.attempts >= key.number


async def test_a_recovery_is_not_forgotten_over_a_restart() -> None:
    world = StoreWorld()
    async with coordinator(world) as pool:
        await pool.join()
        await pool.submit(1)
        await pool.loop.send(NodeEnrolled(NodeName("n2")))
        await pool.loop.send(
            NodeRegistered(NODE, INVENTORY, HeartbeatReport(), seen_epoch=7, seen_revision=10_000)
        )
        assert pool.loop.state.recovering_since is not None
    async with coordinator(world) as pool:
        assert pool.loop.state.recovering_since is not None
        assert not pool.loop.state.settled


async def test_members_that_the_store_does_not_know_mean_that_it_was_lost() -> None:
    world = StoreWorld()
    member = Member(NODE, 5.0, ("n1",))
    async with coordinator(world, enrolled=(member,)) as pool:
        assert pool.loop.state.recovering_since is not None
        assert pool.kept(MEMBER) == [MEMBER + NODE]
        await pool.submit(1)
        assert pool.loop.state.missing() == (NODE,)
    async with coordinator(world, enrolled=(member,)) as pool:
        assert pool.loop.state.recovering_since is not None


async def test_a_pool_that_has_nodes_and_no_jobs_yet_begins_anew_without_ado() -> None:
    world = StoreWorld()
    async with coordinator(world) as pool:
        await pool.join()
    async with coordinator(world, enrolled=(Member(NODE, 5.0, ("n1",)),)) as pool:
        assert pool.loop.state.recovering_since is None
        await pool.join()
        await pool.submit(1)
        await pool.until_placed(1)


@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_node_that_was_signed_just_before_a_crash_is_a_member_and_no_sign_of_lost_memory(
    is_behind: bool,
) -> None:
    """Where the store is as far as its mark says; else it is an old copy, and it was enrolled since."""
    world, second = StoreWorld(), Member(NodeName("n2"), 6.0, ("n2",))
    async with coordinator(world) as pool:
        await pool.join()
    async with coordinator(world, enrolled=(second,), is_behind=is_behind) as pool:
        assert (pool.loop.state.recovering_since is not None) == is_behind
        assert pool.kept(MEMBER) == [MEMBER + NODE, MEMBER + "n2"]


@pytest.mark.parametrize("came_back", [False, True])
async def test_a_recovery_waits_for_a_node_that_was_forgotten_only_if_it_has_joined_since(
    came_back: bool,
) -> None:
    """Without a certificate it cannot tell anything, ever."""
    world, second = StoreWorld(), Member(NodeName("n2"), 6.0, ("n2",))
    async with coordinator(world, enrolled=(Member(NODE, 5.0, ("n1",)), second)) as pool:
        await pool.join()
        await pool.submit(1)
        await pool.loop.send(NodeForgotten(second.name, ADA))
    signed = (Member(NODE, 5.0, ("n1",)), *((second,) if came_back else ()))
    async with coordinator(world, enrolled=signed, is_behind=True) as pool:
        assert pool.loop.state.recovering_since is not None
        assert pool.loop.state.missing() == (("n1", "n2") if came_back else ("n1",))


# --- long ago ------------------------------------------------------------------------------------------

FEW = PoolRules(ended_kept=1)


async def ended_jobs(pool: Pool, count: int) -> list[Place]:
    """So many that ran and are over; the orders for them."""
    await pool.join()
    orders = []
    for number in range(count):
        await pool.submit(number)
        order = await pool.until_placed(number)
        orders.append(order)
        over = report(order, AttemptState.ENDED, 2, Ending(EndKind.EXITED, exit_code=0))
        job = await pool.loop.send(AttemptReported(NODE, over))
        pool.clock.advance(1)
        assert job is None or isinstance(job.state, Ended)
    return orders


async def test_attempts_of_jobs_that_were_over_long_ago_are_not_taken_for_new_ones() -> None:
    async with coordinator(rules=FEW) as pool:
        orders = await ended_jobs(pool, 3)
        assert set(pool.loop.state.ended) == {job_id(2)}
        lost = [report(orders[0], AttemptState.ENDED, 9, Ending(EndKind.LOST, "rebooted"), full=True)]
        running = [report(orders[1], AttemptState.RUNNING, 9, full=True)]
        pool.told.clear()
        await pool.loop.send(NodeRegistered(NODE, INVENTORY, HeartbeatReport(), reports=(*lost, *running)))
        assert dict(pool.loop.state.jobs) == {}
        (said,) = pool.told
        assert isinstance(said, Send)
        assert isinstance(said.order, CancelPart)
        assert said.order.key == orders[1].key


async def test_a_job_that_was_over_long_ago_is_not_run_because_an_outbox_says_it_again() -> None:
    async with coordinator(rules=FEW) as pool:
        await ended_jobs(pool, 2)
        again = await pool.loop.send(JobSubmitted(job_id(0), spec(), old=True))
        assert again is not None
        assert isinstance(again.state, Ended)
        assert dict(pool.loop.state.jobs) == {}


@pytest.mark.parametrize(
    ("code", "kind", "runs"),
    [
        (0, AfterKind.OK, True),
        (1, AfterKind.OK, False),
        (1, AfterKind.ANY, True),
    ],
)
async def test_who_waits_for_a_job_that_was_over_long_ago_goes_by_how_it_ended(
    code: int, kind: AfterKind, runs: bool
) -> None:
    async with coordinator(rules=FEW) as pool:
        await pool.join()
        await pool.submit(1)
        order = await pool.until_placed(1)
        over = report(order, AttemptState.ENDED, 2, Ending(EndKind.EXITED, exit_code=code))
        await pool.loop.send(AttemptReported(NODE, over))
        await ended_jobs(pool, 1)
        assert job_id(1) not in pool.loop.state.ended
        later = await pool.submit(2, after=(After(job_id(1), kind),))
        assert isinstance(later.state, Ended) != runs
        assert bool(later.awaits) != runs


async def test_how_a_job_ended_counts_after_a_restart_too_however_long_ago_it_was() -> None:
    """The coordinator ended before it came to those who waited for it."""
    world = StoreWorld()
    async with coordinator(world) as pool:
        await pool.join()
        await pool.submit(1)
        order = await pool.until_placed(1)
        await pool.submit(2, after=(After(job_id(1), AfterKind.OK),))
        over = report(order, AttemptState.ENDED, 2, Ending(EndKind.EXITED, exit_code=1))
        before = len(world.transactions)
        await pool.loop.send(AttemptReported(NODE, over))
        world = world.after(before + 1)
    async with coordinator(world, rules=PoolRules(ended_kept=0)) as pool:
        await pool.loop.send(PoolTick())
        assert job_id(2) not in pool.loop.state.jobs


async def test_of_forgotten_jobs_it_stays_known_that_they_are_over() -> None:
    async with coordinator(rules=FEW) as pool:
        orders = await ended_jobs(pool, 4)
        archive, now = pool.loop.archive, pool.clock.now()
        assert await archive.prune(pool.loop.write, keep=2, ended_before=0.0, now=now) == 2
        assert await archive.get(job_id(0)) is None
        assert await archive.get(job_id(2)) is not None
        assert await archive.over([job_id(n) for n in range(6)]) == {job_id(n) for n in range(4)}
        with pytest.raises(StateConflict, match="so long ago"):
            await pool.loop.send(JobSubmitted(job_id(0), spec(), old=True))
        old = report(orders[0], AttemptState.ENDED, 9, Ending(EndKind.LOST, "rebooted"), full=True)
        await pool.loop.send(NodeRegistered(NODE, INVENTORY, HeartbeatReport(), reports=(old,)))
        assert dict(pool.loop.state.jobs) == {}
        later = now + GONE_KEPT_SECONDS + 10
        await archive.prune(pool.loop.write, keep=2, ended_before=0.0, now=later)
        assert await archive.over([job_id(0), job_id(1)]) == frozenset()
        assert await archive.get(job_id(3)) is not None


async def test_jobs_that_are_over_are_listed_newest_first_page_by_page() -> None:
    async with coordinator(rules=FEW) as pool:
        await ended_jobs(pool, 5)
        found, token = [], ""
        while True:
            page = await pool.loop.archive.page(2, token)
            found += [job.id for job in page.jobs]
            token = page.next_token
            if not token:
                break
        assert found == [job_id(n) for n in (4, 3, 2, 1, 0)]
        assert [job.id for job in (await pool.loop.archive.like("j00000000", 3)).jobs] == [
            job_id(n) for n in range(3)
        ]
        now = pool.clock.now()
        assert await pool.loop.archive.prune(pool.loop.write, keep=9, ended_before=now - 2.5, now=now) == 3


async def test_time_alone_lets_the_loop_look_again(pool: Pool) -> None:
    """Without any event a job that waits for a pass over the queue gets it."""
    await pool.join()
    await pool.submit(1)
    pool.clock.advance(1.0)
    while not isinstance(pool.loop.state.jobs[job_id(1)].state, Placing):
        assert await pool.loop.changed(SECONDS)


# --- what is larger than a store takes -----------------------------------------------------------------


async def test_a_node_s_words_are_kept_as_far_as_there_is_room_for_them(pool: Pool) -> None:
    """Docker quotes the command line in what it says of it; no user's long one may end the coordinator."""
    await pool.join()
    job = await pool.submit(1)
    await pool.until_placed(1)
    ending = Ending(EndKind.FAILED, "no such program: " + "x" * 300_000)
    await pool.loop.send(
        AttemptReported(NODE, Report(AttemptKey(job.id, 1), AttemptState.REFUSED, 1, None, ending))
    )
    state = pool.loop.state.ended[job.id].state
    assert isinstance(state, Ended)
    assert "no such program: xxx" in str(state.outcome)


async def test_a_job_that_is_too_large_to_keep_is_refused_and_others_are_taken(pool: Pool) -> None:
    with pytest.raises(RequestError, match="takes some"):
        await pool.submit(1, body='"' * 100_000)
    with pytest.raises(RequestError, match="a record is larger"):
        await pool.submit(2, array="x" * 300_000)
    assert (await pool.submit(3)).id in pool.loop.state.jobs


async def test_of_what_is_asked_together_only_what_is_too_large_is_refused(pool: Pool) -> None:
    """Those who were refused with it would take that for an answer to what they asked."""
    asked = [pool.submit(number, name="x" * 300_000 if number == 3 else "") for number in range(1, 6)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer).__name__ for answer in answers] == ["Job", "Job", "RequestError", "Job", "Job"]
    assert len(pool.loop.state.jobs) == 4


@pytest.mark.parametrize("ahead", [3600.0, 3600.5])
async def test_a_job_is_placed_when_the_clock_is_set_beyond_its_begin_though_nothing_else_happens(
    ahead: float,
) -> None:
    async with coordinator() as pool:
        await pool.join()
        later = replace(REQUEST, begin_at=pool.clock.now() + 3600.0)
        job = await pool.submit(1, request=later)
        assert isinstance(job.state, Queued)
        pool.clock.set_day(ahead)
        async with asyncio.timeout(SECONDS):
            while pool.loop.state.ahead_seconds != ahead:
                await pool.loop.changed(SECONDS)
        await pool.until_placed(1)
