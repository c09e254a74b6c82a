"""Find processes that use a GPU outside of MPS although MPS should hold their lease.

A program without the right pipe directory becomes an ordinary CUDA program, without a word (NVIDIA's MPS
documentation). A wrong finding would end somebody's work, so two witnesses are needed: the driver lists the
process and not as an MPS client, and the control daemons, asked after the process was first seen, do not name
it either. A witness that does not answer counts for nothing, and a process that was once a client has not
left MPS.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import ComputeCap, Lease, LeaseId, MemoryWall
from gpushared.ports import GpuProcess, SharingStatus

_HELD_BY_MPS = (MemoryWall.MPS_CLIENT, MemoryWall.MPS_SERVER)


@dataclass(frozen=True, slots=True)
class Sighting:
    """A process of a lease on a GPU."""

    gpu: GpuId
    lease: LeaseId
    process: GpuProcess


@dataclass(frozen=True, slots=True)
class MpsEscapees:
    """``outside``: a process (host PID) for each lease that left MPS. ``undecided``: GPUs to ask about."""

    outside: Mapping[LeaseId, tuple[GpuId, int]] = field(default_factory=dict)
    undecided: frozenset[GpuId] = frozenset()


class _ProcessRecord:
    """Hold the facts about a process on a GPU since it was first seen there."""

    def __init__(self, seen_at: float) -> None:
        """``seen_at``: ``time.monotonic``."""
        self._seen_at = seen_at
        self._was_client = False
        self._outside = False

    def judge(self, process: GpuProcess, status: SharingStatus | None) -> bool | None:
        """Return True if the process uses the GPU outside MPS, None if nobody knows yet: worth asking."""
        named = status is not None and process.pid in status.clients
        self._was_client = self._was_client or named or process.mps_client is True
        if self._was_client or process.mps_client is None:
            self._outside = False
            return False
        asked_at = None if status is None else status.clients_at
        # A control daemon that does not answer any more does not change the finding.
        self._outside = self._outside or (asked_at is not None and asked_at > self._seen_at)
        return self._outside or None


def held_by_mps(lease: Lease) -> bool:
    """Return True if the lease's processes must be clients of MPS so that its walls hold."""
    walls = lease.walls
    return walls is not None and (
        walls.memory_wall in _HELD_BY_MPS or walls.compute_cap is ComputeCap.MPS_PERCENTAGE
    )


class Leavers:
    """Remember the processes of the last samples."""

    def __init__(self) -> None:
        self._known: dict[tuple[GpuId, LeaseId, int], _ProcessRecord] = {}

    def judge(
        self,
        sightings: Iterable[Sighting],
        readable: Collection[GpuId],
        status: Mapping[GpuId, SharingStatus],
    ) -> MpsEscapees:
        """Judge the processes in a sample that was taken just now, of the leases that MPS must hold.

        ``readable``: the GPUs that answered; on others nobody knows which processes are gone.
        """
        now = time.monotonic()
        known = {key: one for key, one in self._known.items() if key[0] not in readable}
        outside: dict[LeaseId, tuple[GpuId, int]] = {}
        undecided = set()
        for one in sorted(sightings, key=lambda one: (one.gpu, one.process.pid)):
            key = (one.gpu, one.lease, one.process.pid)
            record = known[key] = self._known.get(key) or _ProcessRecord(now)
            verdict = record.judge(one.process, status.get(one.gpu))
            if verdict:
                outside.setdefault(one.lease, (one.gpu, one.process.pid))
            elif verdict is None:
                undecided.add(one.gpu)
        self._known = known
        return MpsEscapees(outside, frozenset(undecided))
