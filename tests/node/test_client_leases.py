"""Whose processes were on MPS servers that met a fault."""

from __future__ import annotations

from gpushared.domain.leases.events import ServerFaulted
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.node.runtime.sampler import ClientLeases
from gpushared.ports import ServerFault, SharingStatus

FIRST, SECOND = GpuId("GPU-1"), GpuId("GPU-2")
ALICES, BOBS = LeaseId("l-a"), LeaseId("l-b")


def status(gpu: GpuId = FIRST, clients: tuple[int, ...] = (), *faults: ServerFault) -> SharingStatus:
    return SharingStatus(gpu, "mps", clients=clients, faults=faults)


def test_clients_that_the_fault_ended_are_known_from_before_it() -> None:
    known = ClientLeases()
    assert known.faulted([status(FIRST, (10, 20))], {10: ALICES, 20: BOBS}) == ()
    faulted = known.faulted([status(FIRST, (20,), ServerFault(7, (10, 20), 10))], {20: BOBS})
    assert faulted == (ServerFaulted((FIRST,), frozenset({ALICES, BOBS}), ALICES),)


def test_who_has_left_the_server_is_no_victim_any_more() -> None:
    known = ClientLeases()
    known.faulted([status(FIRST, (20,), ServerFault(7, (10, 20)))], {10: ALICES, 20: BOBS})
    (faulted,) = known.faulted([status(FIRST, (20,), ServerFault(7, (20,)))], {20: BOBS})
    assert faulted.victims == {BOBS}


def test_a_server_over_two_gpus_is_one_fault() -> None:
    fault = ServerFault(7, (10,))
    faulted = ClientLeases().faulted([status(FIRST, (), fault), status(SECOND, (), fault)], {10: ALICES})
    assert faulted == (ServerFaulted((FIRST, SECOND), frozenset({ALICES})),)


def test_a_process_of_no_lease_makes_no_victim_and_no_culprit() -> None:
    faulted = ClientLeases().faulted([status(FIRST, (), ServerFault(7, (99,), 99))], {})
    assert faulted == (ServerFaulted((FIRST,), frozenset()),)
