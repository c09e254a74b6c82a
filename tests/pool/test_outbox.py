"""The outbox: durable before anybody is answered, and kept until the pool says that a job is over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpushared.api.v1 import jobs_pb2, link_pb2
from gpushared.domain.model.errors import LimitReached, NotFound, StateConflict
from gpushared.domain.model.lease import JobId
from gpushared.pool.member import outbox as module
from gpushared.pool.member.outbox import OUTBOX, Outbox, refusal_of
from gpushared.pool.trust.assertions import Asserter
from gpushared.ports.job_store import StoreUnavailable
from tests.pool.pools import Pool, coordinator, job_id, spec

ADA = "ada@ws3"
ONE, TWO, THREE = job_id(1), job_id(2), job_id(3)


class FakeLink:
    """A link that notes what it is told."""

    def __init__(self) -> None:
        self.words: list[tuple[str, JobId]] = []

    def submit(self, job: JobId) -> None:
        self.words.append(("submit", job))

    def cancel(self, job: JobId) -> None:
        self.words.append(("cancel", job))


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with coordinator() as made:
        yield made


@pytest.fixture
def reopened(pool: Pool) -> Callable[[], Outbox]:
    """The outbox as the next life of the daemon finds it."""
    key = Ed25519PrivateKey.generate()

    def load() -> Outbox:
        kept = {name: one.value for name, one in pool.store.world.records.items() if name.startswith(OUTBOX)}
        return Outbox(kept, pool.loop.write, lambda: Asserter(key, "lab"), pool.clock.now)

    return load


def update(job: JobId, state: str, *, over: bool = False) -> link_pb2.JobUpdate:
    view = jobs_pb2.Job(id=job, state=state, pool=True)
    return link_pb2.JobUpdate(job=view.SerializeToString(), over=over)


async def test_what_was_put_in_is_there_after_a_restart_in_its_order(
    pool: Pool, reopened: Callable[[], Outbox]
) -> None:
    outbox = reopened()
    outbox.sender = link = FakeLink()
    await outbox.put([(TWO, spec()), (ONE, spec())], principal=ADA, held=True, priority=7)
    assert link.words == [("submit", TWO), ("submit", ONE)]
    again = reopened()
    assert again.jobs() == (TWO, ONE)
    pool.clock.advance(90.0)
    kept = again.job(ONE)
    assert kept is not None
    assert (kept.spec, kept.held, kept.priority, kept.kept_seconds) == (spec(), True, 7, 90.0)


async def test_a_name_is_given_once_also_while_the_pool_is_away(reopened: Callable[[], Outbox]) -> None:
    """The refusal is heard at once, and not when the second job runs."""
    outbox = reopened()
    await outbox.put([(ONE, spec(name="x"))], principal=ADA)
    with pytest.raises(StateConflict, match=f"job {ONE},"):
        await outbox.put([(TWO, spec(name="x"))], principal=ADA)
    await outbox.put([(ONE, spec(name="x"))], principal=ADA)
    assert outbox.jobs() == (ONE,)
    await outbox.put([(THREE, spec(name="x", interactive=True))], principal=ADA)
    await outbox.updated(update(ONE, "succeeded", over=True))
    await outbox.updated(update(THREE, "succeeded", over=True))
    await outbox.put([(TWO, spec(name="x"))], principal=ADA)


async def test_a_job_is_given_up_only_when_the_pool_says_that_it_is_over(
    reopened: Callable[[], Outbox],
) -> None:
    outbox = reopened()
    await outbox.put([(ONE, spec())], principal=ADA)
    await outbox.taken(ONE, None)
    await outbox.updated(update(ONE, "running"))
    assert reopened().jobs() == (ONE,)
    await outbox.updated(update(ONE, "succeeded", over=True))
    assert reopened().jobs() == ()
    await outbox.updated(update(ONE, "running"))
    record = reopened().record(ONE)
    assert record is not None
    mirrored = record.mirrored()
    assert mirrored is not None
    assert mirrored.state == "succeeded"


async def test_a_refusal_is_kept_for_whoever_asks_but_not_of_a_job_that_was_taken_once(
    reopened: Callable[[], Outbox],
) -> None:
    """A pool that lost its memory may refuse what runs."""
    outbox = reopened()
    await outbox.put([(ONE, spec()), (TWO, spec())], principal=ADA)
    await outbox.taken(TWO, None)
    for job in (ONE, TWO):
        await outbox.taken(job, StateConflict("no such node", hint="which?"))
    outbox = reopened()
    assert outbox.jobs() == (TWO,)
    record = outbox.record(ONE)
    assert record is not None
    refusal = refusal_of(record)
    assert isinstance(refusal, StateConflict)
    assert (refusal.message, refusal.hint) == ("no such node", "which?")
    await outbox.forget(ONE)
    assert reopened().record(ONE) is None


async def test_a_cancellation_is_told_until_the_pool_has_it(reopened: Callable[[], Outbox]) -> None:
    outbox = reopened()
    outbox.sender = link = FakeLink()
    await outbox.put([(ONE, spec())], principal=ADA)
    await outbox.withdraw(ONE, 3, principal="root@ws3")
    assert ("cancel", ONE) in link.words
    assert reopened().cancels() == {ONE: 3}
    await outbox.cancelled(ONE, None)
    assert reopened().cancels() == {}
    assert reopened().jobs() == (ONE,)
    await outbox.withdraw(TWO, 3, principal=ADA)
    assert outbox.cancels() == {}


async def test_a_job_that_its_owner_cancelled_is_not_begun_before_the_pool_hears_of_that(
    reopened: Callable[[], Outbox],
) -> None:
    """The pool was away meanwhile, and is told of the job first."""
    outbox = reopened()
    await outbox.put([(ONE, spec()), (TWO, spec())], principal=ADA)
    await outbox.withdraw(ONE, 3, principal=ADA)
    await outbox.withdraw(TWO, 3, principal="root@ws3")
    assert [kept is not None and kept.held for kept in map(outbox.job, (ONE, TWO))] == [True, False]
    await outbox.cancelled(ONE, None)
    assert (kept := outbox.job(ONE)) is not None
    assert not kept.held


async def test_a_cancellation_that_overtakes_its_job_is_told_again(reopened: Callable[[], Outbox]) -> None:
    outbox = reopened()
    outbox.sender = link = FakeLink()
    await outbox.put([(ONE, spec())], principal=ADA)
    await outbox.withdraw(ONE, 3, principal=ADA)
    await outbox.cancelled(ONE, NotFound("there is no job"))
    assert outbox.cancels() == {ONE: 3}
    link.words.clear()
    await outbox.taken(ONE, None)
    assert link.words == [("cancel", ONE)]
    await outbox.cancelled(ONE, NotFound("the pool has forgotten the job"))
    assert outbox.cancels() == {}


async def test_the_node_vouches_for_whoever_asked_for_each(reopened: Callable[[], Outbox]) -> None:
    outbox = reopened()
    await outbox.put([(ONE, spec())], principal=ADA, groups=("vision",))
    await outbox.withdraw(ONE, 3, principal="root@ws3")
    outbox = reopened()
    assert b'"principal":"ada@ws3","groups":["vision"]' in outbox.vouch(ONE, b"digest")
    assert b'"principal":"root@ws3"' in outbox.vouch_cancel(ONE, b"digest")


async def test_one_user_leaves_room_for_the_others(
    reopened: Callable[[], Outbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_OF_ONE", 1)
    outbox = reopened()
    await outbox.put([(ONE, spec())], principal=ADA)
    with pytest.raises(LimitReached, match="jobs of ada@ws3"):
        await outbox.put([(TWO, spec())], principal=ADA)
    await outbox.put([(TWO, spec())], principal="bob@ws3")


async def test_an_owner_s_cancellation_is_not_lost_by_another_s(reopened: Callable[[], Outbox]) -> None:
    """Root of the node may be nobody in the pool, which then refuses it."""
    outbox = reopened()
    await outbox.put([(ONE, spec())], principal=ADA)
    await outbox.withdraw(ONE, 10, principal=ADA)
    await outbox.withdraw(ONE, 0, principal="root@ws3")
    assert b'"principal":"ada@ws3"' in outbox.vouch_cancel(ONE, b"digest")
    assert outbox.cancels() == {ONE: 0}


async def test_what_cannot_be_written_is_not_kept_nor_half_of_it(
    pool: Pool, reopened: Callable[[], Outbox]
) -> None:
    outbox = reopened()
    outbox.sender = link = FakeLink()
    many = [(job_id(number), spec()) for number in range(300)]
    writes = 0
    write = pool.loop.write

    async def failing(puts: dict[str, bytes], deletes: tuple[str, ...]) -> int:
        nonlocal writes
        writes += 1
        if writes == 2:
            raise StoreUnavailable("the disk is full")
        return await write(puts, deletes)

    outbox._write = failing  # type: ignore[assignment]
    with pytest.raises(StoreUnavailable):
        await outbox.put(many, principal=ADA)
    assert (outbox.jobs(), reopened().jobs(), link.words) == ((), (), [])
    await outbox.put(many, principal=ADA)
    assert len(reopened().jobs()) == 300


async def test_asked_twice_it_is_kept_once(reopened: Callable[[], Outbox]) -> None:
    outbox = reopened()
    await outbox.put([(ONE, spec())], principal=ADA)
    await outbox.taken(ONE, None)
    await outbox.put([(ONE, spec(image="other")), (TWO, spec())], principal=ADA)
    assert outbox.jobs() == (ONE, TWO)
    kept = outbox.job(ONE)
    assert kept is not None
    assert kept.spec.image == "busybox"


async def test_of_those_that_are_over_the_newest_are_shown_for_a_while(
    pool: Pool, reopened: Callable[[], Outbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OVER", 2)
    outbox = reopened()
    names = [job_id(number) for number in range(4)]
    await outbox.put([(name, spec()) for name in names], principal=ADA)
    for name in names:
        pool.clock.advance(1)
        await outbox.updated(update(name, "succeeded", over=True))
    assert [record.job for record in reopened().records()] == names[2:]


async def test_what_is_said_of_an_unknown_job_changes_nothing(reopened: Callable[[], Outbox]) -> None:
    outbox = reopened()
    await outbox.taken(ONE, NotFound("?"))
    await outbox.cancelled(ONE, None)
    await outbox.updated(update(ONE, "running"))
    await outbox.updated(link_pb2.JobUpdate(job=b"\xff\xff"))
    assert outbox.records() == []
