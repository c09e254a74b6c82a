"""Writes a journal of the current version with a lease in every state, to be checked in.

``python tests/journal/make_journal.py tests/journal/journals/vN.db``; a released file is never made again.
"""

import asyncio
import sys
from pathlib import Path

from gpushared.domain.gpu import MIB, Drained, GpuId
from gpushared.domain.lease import (
    Active,
    ComputeCap,
    ContainerId,
    Draining,
    Ended,
    Expired,
    Failed,
    Finished,
    Grant,
    Lease,
    LeaseState,
    MemoryWall,
    NeverClaimed,
    Outcome,
    Paused,
    Queued,
    Reserved,
    Starting,
    Stopped,
    Walls,
)
from gpushared.domain.request import Isolation, LeaseClass, Request
from gpushared.journal import SqliteJournal
from gpushared.ports import JournalWrite
from gpushared.testing import fake_lease

GRANTS = (Grant(GpuId("GPU-aaaa"), 20_000 * MIB, 250), Grant(GpuId("GPU-bbbb"), 20_000 * MIB, 250))
CONTAINER = ContainerId("0123456789ab" * 5 + "0123")
OUTCOMES: tuple[Outcome, ...] = (Finished(137), Stopped("alice"), Expired(), NeverClaimed(), Failed("no MPS"))
DRAINED = {
    GpuId("GPU-aaaa"): Drained("fell off the bus (XID 79)", 16.5, "gpushared", sick=True),
    GpuId("GPU-bbbb"): Drained("ein neuer Lüfter", 17.0, "root"),
}
STATES: tuple[LeaseState, ...] = (
    Queued(since=10.0),
    Reserved(GRANTS, since=11.0, deadline=71.0, claimed=True),
    Starting(GRANTS, CONTAINER, since=12.0, deadline=None, held=True),
    Active(GRANTS, CONTAINER, since=13.5),
    Paused(GRANTS, CONTAINER, since=14.0),
    Draining(GRANTS, CONTAINER, since=15.0, outcome=Stopped("bob"), exited=False, retry_at=20.0),
    *(Ended(outcome, at=100.0 + number, grants=GRANTS) for number, outcome in enumerate(OUTCOMES)),
)


def full_lease(sequence: int, state: LeaseState) -> Lease:
    """A lease in which no field has its default."""
    request = Request(
        gpu_count=2,
        compute_permille=250,
        memory_bytes=20_000 * MIB,
        isolation=Isolation.SHARED,
        lease_class=LeaseClass.INFER,
        time_limit_seconds=3600,
        preset="small",
        gpus=(GpuId("GPU-aaaa"), GpuId("GPU-bbbb")),
    )
    bare = fake_lease(
        sequence, state, request=request, story=("asked for 2x0.25", "is now as it is: ünïcödé")
    )
    return Lease(
        **{
            name: getattr(bare, name)
            for name in ("id", "sequence", "request", "created_at", "state", "story")
        },
        owner_uid=1001,
        owner_name="alice",
        device_name=f"c-{sequence}",
        request_id=f"request-{sequence}",
        expires_at=9000.25,
        walls=Walls(MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE),
        container_name="trainer",
        image="registry/image:tag",
    )


async def make(path: Path) -> None:
    """One lease in each state and with each outcome, numbered from 1."""
    leases = tuple(full_lease(number, state) for number, state in enumerate(STATES, start=1))
    entries = tuple((lease.id, entry) for lease in leases for entry in lease.story)
    journal = SqliteJournal(path)
    await journal.commit([JournalWrite(leases, entries, next_sequence=50, drained=DRAINED)])
    await journal.close()


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
