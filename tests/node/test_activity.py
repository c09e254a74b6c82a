"""What a look at the GPUs says of each lease: it works, it rests, or nobody knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import Active, ContainerId, Grant, Lease, LeaseId, Paused, Starting
from gpushared.node.runtime.sampler import activity
from gpushared.ports import GpuProcess, GpuReading
from gpushared.testing import fake_lease

A, B = GpuId("GPU-a"), GpuId("GPU-b")
MINE, OTHERS, SERVER = 1, 2, 3
LEASE, NEIGHBOUR = LeaseId("l-mine"), LeaseId("l-near")
OF = {MINE: LEASE, OTHERS: NEIGHBOUR}
WORKS, RESTS, UNKNOWN = "works", "rests", "unknown"


def lease(*gpus: GpuId) -> Lease:
    grants = tuple(Grant(gpu, 1, 500) for gpu in gpus or (A,))
    return replace(fake_lease(), id=LEASE, state=Active(grants, ContainerId("box"), 0.0))


def process(pid: int, ratio: float | None = None, *, client: bool | None = None, gib: int = 1) -> GpuProcess:
    return GpuProcess(pid, gib * 2**30, client, ratio)


def look(whole: float | None, *processes: GpuProcess, gpu: GpuId = A) -> GpuReading:
    return GpuReading(gpu, 0, whole, processes=processes)


def judged(one: Lease, *readings: GpuReading) -> str:
    working, resting = activity(readings, OF, [one])
    return WORKS if one.id in working else RESTS if one.id in resting else UNKNOWN


CASES: dict[str, tuple[GpuReading, str]] = {
    "a GPU that does nothing rests for everybody": (look(0.0, process(MINE), process(OTHERS)), RESTS),
    "the only lease on a GPU that works, works": (look(0.5, process(MINE)), WORKS),
    "one whose own process works, works": (look(0.5, process(MINE, 0.3)), WORKS),
    "so it does when the whole was read a moment later": (look(0.0, process(MINE, 0.3)), WORKS),
    "one whose own processes rest, rests beside a neighbour that works": (
        look(0.9, process(MINE, 0.0), process(OTHERS, 0.9)),
        RESTS,
    ),
    "where the driver tells nobody apart, both are taken for working": (
        look(0.9, process(MINE), process(OTHERS)),
        WORKS,
    ),
    "a client that only its server is named for is taken for working": (
        look(0.9, process(SERVER, 0.9), process(MINE, None, client=True)),
        WORKS,
    ),
    "one without processes rests beside a neighbour that works": (look(0.9, process(OTHERS)), RESTS),
    "so it does beside an MPS server, where the driver lists clients": (
        look(0.9, process(SERVER, client=False), process(OTHERS, client=True)),
        RESTS,
    ),
    "where it lists none, nobody knows whose work it is": (look(0.9, process(SERVER)), WORKS),
    "so it is where the driver lists no processes at all": (look(0.9), WORKS),
    "a GPU that tells nothing says nothing": (look(None, process(MINE)), UNKNOWN),
    "an instance that tells nothing as a whole, but its process": (look(None, process(MINE, 0.0)), RESTS),
    "a lost GPU says nothing": (GpuReading(A, trouble="is lost", lost=True), UNKNOWN),
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    reading, wanted = CASES[case]
    assert judged(lease(), reading) == wanted


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [(0.0, 0.0, RESTS), (0.0, 0.7, WORKS), (0.0, None, UNKNOWN), (None, 0.7, WORKS)],
)
def test_a_lease_on_two_gpus_works_on_either_and_rests_on_both(
    first: float | None, second: float | None, wanted: str
) -> None:
    there = process(MINE)
    assert judged(lease(A, B), look(first, there), look(second, there, gpu=B)) == wanted


def test_a_gpu_that_gave_no_reading_says_nothing() -> None:
    assert judged(lease(A, B), look(0.0)) == UNKNOWN


def test_containers_that_are_paused_are_judged_and_those_that_start_are_not() -> None:
    one = lease()
    paused = replace(one, state=Paused(one.grants, ContainerId("box"), 0.0))
    starting = replace(one, state=Starting(one.grants, ContainerId("box"), 0.0, None))
    assert (judged(paused, look(0.0)), judged(starting, look(0.0))) == (RESTS, UNKNOWN)
