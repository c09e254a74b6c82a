"""What is counted since the daemon's start follows the steps of the state machine, to the second."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.daemon.measures import SHORT_SECONDS, Distribution, Totals
from gpushared.domain.leases import events as m
from gpushared.domain.leases.node_state import NodeState, Step
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import Lease
from gpushared.domain.model.request import LeaseClass
from gpushared.domain.scheduling.gpu_amounts import permille_of
from gpushared.net.exposition import Format, write
from gpushared.node.runtime.sampler import LeaseUse, Sample
from gpushared.node.services.node_counters import MAX_XIDS_OF_GPU, NodeCounters
from gpushared.node.services.node_metrics import NodeFigures, Viewer, node_families
from gpushared.ports import GpuReading
from gpushared.storage.audit.line import line_now
from tests.domain.test_requeue import ALICE, BOB, CHECKPOINTS, HALF, WHOLE, Node
from tests.node.test_metrics import of, read

TRAIN = LeaseClass.TRAIN
FIRST = GpuId("GPU-0")


class CountedNode(Node):
    """A node whose steps are counted."""

    def __init__(self, gpus: int = 1, means: m.Means | None = None) -> None:
        self.now = 1000.0
        self.counters = NodeCounters(NodeState(), lambda: self.now)
        super().__init__(gpus, means)

    def send(self, event: m.Event) -> Step:
        before = self.state
        step = super().send(event)
        self.counters.observe(before, step)
        return step

    def gpu_seconds(self) -> dict[str, float]:
        self.counters.add_gpu_time()
        return dict(self.counters.gpu_seconds_by_user.items())

    def idles(self, *leases: Lease) -> None:
        ids = frozenset(lease.id for lease in leases)
        self.send(m.GpusSampled(self.now, ids, {}, frozenset(self.state.gpus), idle=ids))


@pytest.mark.parametrize(
    ("means", "stays", "step"),
    [(CHECKPOINTS, True, "suspend"), (None, True, "requeue"), (None, False, "stop")],
)
def test_a_lease_that_gives_way_is_counted_by_its_step(
    means: m.Means | None, step: str, *, stays: bool
) -> None:
    node = CountedNode(means=means)
    node.gives_way(node.run(stays=stays))
    assert {one.value: count for one, count in node.counters.preemptions.items() if count} == {step: 1}


def test_a_wait_is_counted_when_it_is_over() -> None:
    node = CountedNode()
    first = node.run(WHOLE)
    node.ask(WHOLE, BOB)
    assert node.counters.waits[TRAIN].counts[0] == 1, "the first did not wait"
    node.passes(100)
    node.see(first, m.Condition.EXITED, 0)
    node.passes(1)
    node.sample()
    waits = node.counters.waits[TRAIN]
    assert (sum(waits.counts), waits.total) == (2, 101.0)
    assert node.counters.grants[TRAIN] == 2
    assert node.counters.durations[TRAIN, "finished"].total == 101.0


def test_time_without_work_is_counted_apart() -> None:
    node = CountedNode()
    lease = node.run(HALF)
    node.passes(10)
    node.idles(lease)
    node.passes(60)
    node.counters.add_gpu_time()
    assert node.gpu_seconds() == {"alice": 35.0}
    assert dict(node.counters.idle_gpu_seconds_by_user.items()) == {"alice": 30.0}
    node.see(lease, m.Condition.EXITED, 0)
    node.passes(1)
    node.sample()
    node.passes(60)
    assert node.gpu_seconds() == {"alice": 35.5}
    assert dict(node.counters.idle_gpu_seconds_by_user.items()) == {"alice": 30.5}


def test_a_lease_that_uses_too_much_is_counted_once() -> None:
    node = CountedNode()
    lease = node.run(HALF)
    for _ in range(5):
        node.passes(1)
        node.uses(lease, 70 * 2**30)
    assert node.counters.over_limit == 1


@given(st.lists(st.tuples(st.sampled_from(["ask", "end", "wait"]), st.integers(1, 500)), max_size=25))
def test_gpu_time_is_what_was_held_whatever_happens(acts: list[tuple[str, int]]) -> None:
    node, expected, leases = CountedNode(2), Counter[str](), list[Lease]()
    for act, number in acts:
        if act == "ask":
            leases.append(node.ask(HALF if number % 2 else WHOLE, ALICE if number % 3 else BOB))
        elif act == "end" and leases:
            lease = leases.pop(number % len(leases))
            node.send(m.ReleaseAsked(lease.id, ALICE if lease.owner_uid == ALICE.uid else BOB))
        else:
            for lease in node.state.holders():
                expected[lease.owner_name] += permille_of(lease.grants, node.state.gpus) * min(number, 50)
            node.now += min(number, 50)
    found = {name: round(seconds * 1000) for name, seconds in node.gpu_seconds().items() if seconds}
    assert found == {name: seconds for name, seconds in expected.items() if seconds}


def test_a_broken_gpu_that_reports_everything_has_a_bounded_number_of_series() -> None:
    counters = NodeCounters(NodeState(), lambda: 0.0)
    for number in range(1, 500):
        counters.observe_sample(Sample(1.0, {FIRST: GpuReading(FIRST, xids=(number, 1))}))
    assert len(counters.xids) == MAX_XIDS_OF_GPU
    assert counters.xids[FIRST, 1] == 500


def test_refusals_of_the_gate_are_counted_and_calls_are_not() -> None:
    counters = NodeCounters(NodeState(), lambda: 0.0)
    counters.observe_audit(
        line_now(1, "a", "POST", "/containers/create", status=403, code="permission_denied")
    )
    counters.observe_audit(line_now(1, "a", "POST", "/containers/create"))
    counters.observe_audit(line_now(1, "a", "CALL", "Leases/Stop", status=403, code="permission_denied"))
    assert dict(counters.gate_refusals.items()) == {"permission_denied": 1}


def figures_of(node: CountedNode, sample: Sample, troubles: dict[str, str]) -> NodeFigures:
    return NodeFigures(
        now=node.now,
        state=node.state,
        sample=sample,
        reasons={},
        counters=node.counters,
        refusals=Totals(1),
        pass_seconds=Distribution(SHORT_SECONDS),
        commit_seconds=Distribution(SHORT_SECONDS),
        loop_lag=Distribution(SHORT_SECONDS),
        troubles=troubles,
        engine_up=True,
        audit_lost=0,
    )


def test_while_the_driver_does_not_answer_its_figures_are_absent() -> None:
    node = CountedNode()
    lease = node.run(HALF)
    use = {(lease.id, FIRST): LeaseUse(1, 0.5)}
    sample = Sample(990.0, {FIRST: GpuReading(FIRST, 1, 0.5, 40, 100.0, 5.0)}, uses=use)
    figures = figures_of(node, sample, {})
    whole = read(write(node_families(figures, Viewer()), Format.TEXT).decode())
    dead = replace(figures, troubles={"gpus": "no answer"})
    rest = read(write(node_families(dead, Viewer()), Format.TEXT).decode())
    assert of(rest, "gpushare_nvml_up") == [0.0]
    assert of(rest, "gpushare_sample_age_seconds") == [10.0]
    assert {name for name, _ in whole} - {name for name, _ in rest} == {
        *("gpushare_gpu_up", "gpushare_gpu_memory_used_bytes", "gpushare_gpu_utilization_ratio"),
        *("gpushare_gpu_power_watts", "gpushare_gpu_energy_joules_total", "gpushare_gpu_temperature_celsius"),
        *("gpushare_lease_memory_used_bytes", "gpushare_lease_utilization_ratio"),
        "gpushare_unmanaged_gpu_processes",
    }
