"""Who counts as having left MPS: two witnesses that tell are needed, and nobody is punished for a doubt."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import ComputeCap, LeaseId, MemoryWall, Walls
from gpushared.node.runtime.mps_detach import MpsEscapeDetector, Sighting, held_by_mps
from gpushared.ports import GpuProcess, SharingStatus
from gpushared.testing.leases import fake_lease

GPU = GpuId("GPU-a")
LEASE = LeaseId("l-1")
PID = 100
OTHER = 200
LATER = float("inf")
LONG_AGO = 0.0

# One sample: what the driver says of the process (a client? None = it does not tell), what the daemons
# said: their clients, and when they were asked (None = they did not answer).
Seen = tuple[bool | None, tuple[int, ...], float | None]
OUTSIDE, UNDECIDED, INSIDE = "outside", "undecided", "inside"

CASES: dict[str, tuple[list[Seen], str]] = {
    "both say so": ([(False, (), LATER)], OUTSIDE),
    "the daemons were asked before the process was there": ([(False, (), LONG_AGO)], UNDECIDED),
    "the daemons do not answer": ([(False, (), None)], UNDECIDED),
    "the daemons never answer": ([(False, (), None)] * 20, UNDECIDED),
    "the daemons answer later": ([(False, (), LONG_AGO), (False, (OTHER,), LATER)], OUTSIDE),
    "it was just connecting": ([(False, (), LONG_AGO), (False, (PID,), LATER)], INSIDE),
    "the driver was late to list it": ([(False, (), LONG_AGO), (True, (), LATER)], INSIDE),
    "the driver names it": ([(True, (), LATER)], INSIDE),
    "the daemons name it": ([(False, (PID,), LATER)], INSIDE),
    "the driver does not tell": ([(None, (), LATER)], INSIDE),
    "the driver stopped telling": ([(False, (), LATER), (None, (), LATER)], INSIDE),
    "its daemon ended under it": ([(True, (PID,), LATER), (False, (), LATER)], INSIDE),
    "its daemon forgot it": ([(False, (PID,), LATER), (False, (), LATER)], INSIDE),
    "it left, and the daemons fell silent": ([(False, (), LATER), (False, (), None)], OUTSIDE),
}


def sample(detector: MpsEscapeDetector, seen: Seen, *, readable: bool = True) -> str:
    client, clients, asked_at = seen
    status = SharingStatus(GPU, "mps", clients=clients, clients_at=asked_at)
    sightings = [Sighting(GPU, LEASE, GpuProcess(PID, 1, client))]
    found = detector.judge(sightings, {GPU} if readable else set(), {GPU: status})
    if found.outside:
        assert found.outside == {LEASE: (GPU, PID)}
        return OUTSIDE
    return UNDECIDED if found.undecided == {GPU} else INSIDE


@pytest.mark.parametrize("case", CASES)
def test_a_process_has_left_mps_only_where_driver_and_daemons_both_say_so(case: str) -> None:
    samples, verdict = CASES[case]
    detector = MpsEscapeDetector()
    assert [sample(detector, seen) for seen in samples][-1] == verdict


def test_without_any_word_from_the_sharing_nobody_has_left() -> None:
    found = MpsEscapeDetector().judge([Sighting(GPU, LEASE, GpuProcess(PID, 1, mps_client=False))], {GPU}, {})
    assert not found.outside
    assert found.undecided == frozenset({GPU})


def test_a_process_that_went_and_another_of_its_number_are_two() -> None:
    detector = MpsEscapeDetector()
    assert sample(detector, (True, (), LATER)) == INSIDE
    detector.judge([], {GPU}, {})
    assert sample(detector, (False, (), LATER)) == OUTSIDE


def test_a_client_stays_known_while_its_gpu_is_not_seen() -> None:
    detector = MpsEscapeDetector()
    assert sample(detector, (True, (), LATER)) == INSIDE
    detector.judge([], set(), {})
    assert sample(detector, (False, (), LATER)) == INSIDE


def test_one_process_is_named_for_each_lease_always_the_same() -> None:
    sightings = [Sighting(GPU, LEASE, GpuProcess(pid, 1, mps_client=False)) for pid in (OTHER, PID)]
    sightings.append(Sighting(GPU, LeaseId("l-2"), GpuProcess(300, 1, mps_client=False)))
    status = {GPU: SharingStatus(GPU, "mps", clients_at=time.monotonic() + 60)}
    for order in (sightings, sightings[::-1]):
        assert MpsEscapeDetector().judge(order, {GPU}, status).outside == {
            LEASE: (GPU, PID),
            "l-2": (GPU, 300),
        }


@pytest.mark.parametrize(
    ("wall", "cap", "held"),
    [
        (MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE, True),
        (MemoryWall.MPS_SERVER, ComputeCap.MPS_PERCENTAGE, True),
        (MemoryWall.DRIVER, ComputeCap.MPS_PERCENTAGE, True),
        (MemoryWall.DRIVER, ComputeCap.NONE, False),
        (MemoryWall.WATCHDOG, ComputeCap.NONE, False),
        (MemoryWall.NONE, ComputeCap.NONE, False),
        (MemoryWall.MIG, ComputeCap.MIG, False),
        (MemoryWall.WHOLE_GPU, ComputeCap.WHOLE_GPU, False),
    ],
)
def test_only_leases_whose_walls_are_of_mps_must_be_its_clients(
    wall: MemoryWall, cap: ComputeCap, held: bool
) -> None:
    lease = fake_lease(1)
    assert not held_by_mps(lease)
    assert held_by_mps(replace(lease, walls=Walls(wall, cap))) is held
