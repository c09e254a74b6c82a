"""The link's small parts, each by itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from gpushared.domain.jobs.member import Holding
from gpushared.domain.jobs.protocol import Report
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.errors import StateConflict
from gpushared.domain.model.gpu import MIB, Drained
from gpushared.domain.model.lease import Active, AttemptKey, ContainerId, Grant, JobId, Lease, LeaseId, Queued
from gpushared.domain.model.request import Isolation, Request
from gpushared.jobs.mailbox import Mailbox
from gpushared.pool.link import codec
from gpushared.pool.member.dial import Backoff, Retry
from gpushared.pool.member.node_ports import free_of, inventory_of
from gpushared.testing.fake_gpus import fake_gpu

GIB = 1 << 30


# --- coming back ---------------------------------------------------------------------------------------


def test_nodes_that_lost_their_links_together_come_back_over_a_whole_beat() -> None:
    """Of 1000 first tries within 20 s no second has more than twice its share."""
    waits = [Backoff(Retry(), Random(number)).seconds(20.0) for number in range(1000)]
    per_second = Counter(int(seconds) for seconds in waits)
    assert len(per_second) == 20
    assert max(per_second.values()) <= 100


def test_waits_double_up_to_a_bound_and_begin_anew_after_success() -> None:
    backoff = Backoff(Retry(first=1.0, last=8.0), _Highest())
    assert [backoff.seconds(0.5) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert backoff.seconds(20.0) == 20.0
    backoff.after_success()
    assert backoff.seconds(0.5) == 1.0


def test_what_only_people_can_change_is_tried_seldom() -> None:
    waits = [Backoff(Retry(patient=60.0), Random(number)).patient_seconds() for number in range(100)]
    assert min(waits) >= 30.0
    assert max(waits) <= 60.0


class _Highest(Random):
    """Always draws the most."""

    def uniform(self, a: float, b: float) -> float:
        return b


# --- what waits to be sent -----------------------------------------------------------------------------


async def test_a_mailbox_keeps_the_newest_word_of_each_subject_in_the_order_of_subjects() -> None:
    box: Mailbox[str] = Mailbox(10)
    for subject, word in (("a", "a1"), ("b", "b1"), ("a", "a2")):
        box.put(subject, lambda word=word: word)  # type: ignore[misc]
    assert [await box.take(), await box.take()] == ["a2", "b1"]
    assert len(box) == 0


async def test_a_word_is_made_when_it_is_its_turn_and_left_out_where_there_is_none_by_then() -> None:
    box: Mailbox[str] = Mailbox(10)
    answer = "early"
    box.put("gone", lambda: None)
    box.put("said", lambda: answer)
    answer = "late"
    assert await box.take() == "late"


async def test_a_full_mailbox_takes_no_new_subject_but_newer_words() -> None:
    box: Mailbox[str] = Mailbox(1)
    assert box.put("a", lambda: "a1")
    assert not box.put("b", lambda: "b1")
    assert box.put("a", lambda: "a2")
    assert await box.take() == "a2"


async def test_whoever_waits_for_room_goes_on_when_there_is_some() -> None:
    box: Mailbox[str] = Mailbox(10)
    box.put("a", lambda: "a")
    waiting = asyncio.create_task(box.wait_until_below(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    await box.take()
    async with asyncio.timeout(20):
        await waiting


# --- what is said --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capabilities", "hint"),
    [
        ([], ""),
        (["tunnel"], ""),
        (["link-1", "link-2"], ""),
        (["link-0"], "update node n1"),
        (["link-2"], "update this side"),
    ],
)
def test_two_sides_need_one_generation_in_common(capabilities: list[str], hint: str) -> None:
    """Who names none is of the first."""
    if not hint:
        codec.check_generation("node n1", capabilities, "0.1.0")
        return
    with pytest.raises(StateConflict, match=hint):
        codec.check_generation("node n1", capabilities, "0.1.0")


def test_errors_cross_the_link_as_what_they_are() -> None:
    refuse = codec.refusal(StateConflict("no", hint="later"))
    again = codec.refused(refuse.code, refuse.message, refuse.hint)
    assert (type(again), str(again)) == (StateConflict, "no (later)")
    assert str(codec.refused("not_yet_known", "no", "")) == "no"


def test_a_report_is_read_with_fields_too_many_and_too_few() -> None:
    """By one version of the one of the next, either way."""
    key = AttemptKey(JobId("0123456789"), 1)
    data = b'{"key":{"job":"0123456789","number":1},"state":"running","revision":3,"mood":"good"}'
    report = codec.read_report(data)
    assert (report.key, report.revision) == (key, 3)
    assert codec.read_report(codec.report_bytes(report)) == report
    assert isinstance(report, Report)


# --- what a node tells of itself -----------------------------------------------------------------------

GPU = fake_gpu()
ACTIVE = Active((Grant(GPU.id, GIB, 250),), ContainerId("c"), 5.0)
LEASE = Lease(LeaseId("l-1"), 1, Request(), 1000, "ada", 1.0, ACTIVE, "l-1", project="vision")


def test_all_leases_count_whoever_has_them_and_only_the_pools_attempts_are_named() -> None:
    key = AttemptKey(JobId("0123456789"), 1)
    leases = (
        LEASE,
        replace(LEASE, id=LeaseId("l-2"), attempt=key, coordinator="lab"),
        replace(LEASE, id=LeaseId("l-3"), attempt=key, coordinator=""),
        replace(LEASE, id=LeaseId("l-4"), request=Request(isolation=Isolation.EXCLUSIVE)),
        replace(LEASE, id=LeaseId("l-5"), state=Queued(3.0)),
    )
    free = free_of(NodeState(gpus={GPU.id: GPU}, leases={lease.id: lease for lease in leases}), "lab")
    plain = Holding(LEASE.id, ACTIVE.grants, "ada", "vision")
    assert free.holdings == (
        plain,
        replace(plain, lease=LeaseId("l-2"), attempt=key),
        replace(plain, lease=LeaseId("l-3")),
        replace(plain, lease=LeaseId("l-4"), exclusive=True),
    )
    assert free.waiting == 1


def test_stray_memory_is_told_in_steps_and_troubles_as_the_node_judges_them() -> None:
    """A GPU that is drained here is one that nothing is placed on there."""
    drained = {GPU.id: Drained("a new fan", 1.0, "root")}
    state = NodeState(gpus={GPU.id: GPU}, stray_bytes={GPU.id: 1}, drained=drained)
    free = free_of(state, "lab")
    assert free.stray_bytes == ((GPU.id, 16 * MIB),)
    assert free.troubles == ((GPU.id, "is drained by root: a new fan"),)


def test_an_inventory_stays_the_same_while_a_gpu_is_in_trouble() -> None:
    """What changes often is told apart from what hardly ever does."""
    inventories = [
        inventory_of(NodeState(gpus={GPU.id: gpu}), address="a", version="1", simulated=False)
        for gpu in (GPU, replace(GPU, trouble="is hot"))
    ]
    assert inventories[0] == inventories[1]
