"""Find the leases that use their GPUs, as far as a look at the GPUs shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from gpushared.domain.model.lease import Active, Lease, LeaseId, Paused
from gpushared.ports import GpuProcess, GpuReading


class Sign(Enum):
    """Classify one lease's activity on one GPU."""

    WORKS = auto()
    """The lease works, or may work: it cannot be told apart from other leases on the GPU."""
    RESTS = auto()
    UNKNOWN = auto()


def activity(
    readings: Iterable[GpuReading], lease_of: Mapping[int, LeaseId], leases: Iterable[Lease]
) -> tuple[frozenset[LeaseId], frozenset[LeaseId]]:
    """Return the running leases that work and the ones that rest; the look shows nothing about other leases.

    ``lease_of``: the lease of each process, by host PID. A lease on several GPUs works when one of them shows
    that, and rests when all of them do.
    """
    by_gpu = {reading.gpu: reading for reading in readings}
    working, resting = set(), set()
    for lease in leases:
        if isinstance(lease.state, Active | Paused):
            signs = {_sign(by_gpu.get(grant.gpu), lease.id, lease_of) for grant in lease.grants}
            if Sign.WORKS in signs:
                working.add(lease.id)
            elif signs == {Sign.RESTS}:
                resting.add(lease.id)
    return frozenset(working), frozenset(resting)


def _sign(reading: GpuReading | None, lease: LeaseId, lease_of: Mapping[int, LeaseId]) -> Sign:
    if reading is None or reading.lost:
        return Sign.UNKNOWN
    own = [process for process in reading.processes if lease_of.get(process.pid) == lease]
    if any(process.utilization_ratio for process in own):
        return Sign.WORKS
    whole = reading.utilization_ratio
    # An idle GPU needs no attribution of its use to processes.
    if whole == 0 or _is_known_to_rest(own, reading, lease_of):
        return Sign.RESTS
    return Sign.UNKNOWN if whole is None else Sign.WORKS


def _is_known_to_rest(own: list[GpuProcess], reading: GpuReading, lease_of: Mapping[int, LeaseId]) -> bool:
    """Return True if each of the lease's processes rests, or if it has none and all processes are listed."""
    if own:
        return all(process.utilization_ratio == 0 for process in own)
    lists_clients = any(process.mps_client is not None for process in reading.processes)
    others = all(process.pid in lease_of for process in reading.processes)
    return bool(reading.processes) and (lists_clients or others)
