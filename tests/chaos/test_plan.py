"""A seed makes one plan, of which faults overlap within bounds."""

from __future__ import annotations

import pytest

from tests.chaos.plan import LONG_SECONDS, FaultKind, WorkKind, make_plan

SEEDS = range(20)


def test_the_same_seed_makes_the_same_plan_and_another_one_another() -> None:
    assert make_plan(1, 3, 40) == make_plan(1, 3, 40)
    assert make_plan(1, 3, 40) != make_plan(2, 3, 40)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_target_has_two_faults_at_once_and_few_are_under_way(seed: int) -> None:
    faults = make_plan(seed, 20, 160).faults
    assert len(faults) == 160
    for fault in faults:
        under_way = [one for one in faults if one.at_seconds <= fault.at_seconds < one.until_seconds]
        assert len(under_way) <= 4
        assert sum(one.seconds >= LONG_SECONDS[0] for one in under_way) <= 1
        assert [one.target for one in under_way].count(fault.target) == 1


def test_an_hour_has_every_kind_of_fault_and_of_work() -> None:
    plan = make_plan(1, 60)
    assert {fault.kind for fault in plan.faults} == set(FaultKind) - {FaultKind.SLOW}
    assert {fault.target.partition("-")[0] for fault in plan.faults} == {
        "daemon",
        "engine",
        "cable",
        "disk",
        "coordinator",
    }
    assert {work.kind for work in plan.work} == set(WorkKind)
    assert any(fault.seconds >= LONG_SECONDS[0] for fault in plan.faults)
    assert any(work.stop_after_seconds for work in plan.work)


def test_before_each_long_fault_jobs_begin_that_it_may_move_elsewhere() -> None:
    plan = make_plan(3, 20)
    long = [fault for fault in plan.faults if fault.seconds >= LONG_SECONDS[0]]
    assert long
    for fault in long:
        caught = [
            work
            for work in plan.work
            if work.stop_after_seconds and 0 < fault.at_seconds - work.at_seconds <= 6.5 and work.gpu == "1"
        ]
        assert len(caught) >= 4
