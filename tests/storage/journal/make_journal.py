"""Writes a journal of the current version with a lease in every state, to be checked in.

``python tests/storage/journal/make_journal.py tests/storage/journal/journals/vN.db``. A released file is never
made again.
"""

import asyncio
import sys
from pathlib import Path

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.job import After, AfterKind, AttemptState, Ending, EndKind, JobSpec, Owner, Pull
from gpushared.domain.jobs.node_messages import Contact
from gpushared.domain.jobs.protocol import Gang
from gpushared.domain.model.gpu import MIB, Drained, GpuId
from gpushared.domain.model.lease import (
    Active,
    AttemptKey,
    ComputeCap,
    ContainerId,
    Draining,
    Ended,
    Expired,
    Failed,
    Finished,
    Grant,
    Idle,
    Idleness,
    JobId,
    Lease,
    LeaseId,
    LeasePreemption,
    LeaseState,
    MemoryWall,
    NeverClaimed,
    Notice,
    NoticeKind,
    Outcome,
    OutsideMps,
    OverLimit,
    Paused,
    Preempted,
    Promised,
    Queued,
    Requeued,
    Reserved,
    Resuming,
    Starting,
    Stopped,
    Suspended,
    Suspending,
    Walls,
)
from gpushared.domain.model.request import Caller, Isolation, LeaseClass, Request
from gpushared.domain.model.span import Span
from gpushared.domain.scheduling.project_accounts import AccountsChange, ProjectAccounts
from gpushared.domain.scheduling.projects import Project, Quota
from gpushared.ports import JournalWrite
from gpushared.storage.journal import SqliteJournal
from gpushared.testing import fake_lease

GRANTS = (Grant(GpuId("GPU-aaaa"), 20_000 * MIB, 250), Grant(GpuId("GPU-bbbb"), 20_000 * MIB, 250))
CONTAINER = ContainerId("0123456789ab" * 5 + "0123")
OUTCOMES: tuple[Outcome, ...] = (Finished(137), Stopped("alice"), Expired(), NeverClaimed(), Failed("no MPS"))
NEWER_OUTCOMES: tuple[Outcome, ...] = (
    OverLimit(GpuId("GPU-aaaa"), 21_000 * MIB, 20_000 * MIB),
    OutsideMps(GpuId("GPU-bbbb"), 4711),
    Preempted("l-2 of bob, because it is guaranteed", requeue=True),
    Idle(7200.5),
)
ACCOUNTS = ProjectAccounts(
    usage=(("bob", 472_224, 1), ("vision", 472_222, 3_600_000_000), ("vision", 472_223, 9_000_000_000_000)),
    turns={"bob": 1.25, "vision": 1_700_000_000.5},
    projects={
        "vision": Project(
            "vision",
            2.5,
            frozenset({"alice", "bob"}),
            Quota(2000, 4500, 500),
            {"NVIDIA H100 80GB HBM3": Quota(1000, None, 250)},
        )
    },
)
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
NEWER_STATES: tuple[LeaseState, ...] = (
    Suspending(GRANTS, CONTAINER, since=16.0, deadline=76.0, wanted=True),
    Suspended(CONTAINER, since=17.0, place=3, held=GRANTS, left_seconds=59.5, wanted=True),
    Resuming(GRANTS, CONTAINER, since=18.0, deadline=78.0),
    Requeued(CONTAINER, since=19.0, place=4, held=GRANTS),
    *(Ended(outcome, at=200.0 + number, grants=GRANTS) for number, outcome in enumerate(NEWER_OUTCOMES)),
)
"""Those that version 3 came with, behind the others, so that numbers stay what they were."""


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
        project="vision",
        priority=-7,
        after=("l-1",),
        notice_signal="SIGUSR1",
        requeue=True,
        max_memory_bytes=30_000 * MIB,
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
        held_by="root",
        held_by_admin=True,
        project="vision",
        held_since=12.25,
        preemption=LeasePreemption(
            count=2,
            served_seconds=3600.5,
            requeues=True,
            behind=(LeaseId("l-1"),),
            promised=Promised(GRANTS, (LeaseId("l-4"),), "it is guaranteed"),
        ),
        notice=Notice(NoticeKind.PREEMPTED, 60.0, "it gives way"),
        idleness=Idleness(since=8.0, is_preemptible=True),
        attempt=AttemptKey(JobId("k7f3k2m9qa_7"), 2),
        coordinator="lab",
    )


SPEC = JobSpec(
    Request(gpu_count=2, project="vision"),
    Owner("ada@lab", "ada"),
    image="registry/image:tag",
    body='{"Image":"registry/image:tag"}',
    pull=Pull.ALWAYS,
    stop_after_seconds=600,
    after=(After(JobId("k7f3k2m9qb"), AfterKind.OK),),
    array=JobId("k7f3k2m9qa"),
    index=7,
)
ATTEMPTS = (
    Attempt(
        AttemptKey(JobId("k7f3k2m9qa_7"), 2),
        AttemptState.RUNNING,
        5,
        40.5,
        spec=SPEC,
        request=SPEC.request,
        account=Caller(1001, 1001, "alice"),
        lease=LeaseId("l-4"),
        gang=True,
        facts=Gang(("10.0.0.1", "10.0.0.2"), 1, 29500, (2, 2)),
        coordinator="lab",
        started_at=41.0,
        boot_id="b1",
    ),
    Attempt(
        AttemptKey(JobId("k7f3k2m9qc"), 1),
        AttemptState.REFUSED,
        6,
        50.0,
        ending=Ending(EndKind.LOST, "the node never saw the order to run it"),
        coordinator="lab",
    ),
)
"""In the order in which they are loaded."""
CONTACTS = {"lab": Contact(epoch=3, revision=99, boot_id="b1", at=1234.5)}
"""These came with version 4."""
SPANS = (
    Span(LeaseId("l-3"), "vision", 1000, 61_000),
    Span(LeaseId("l-3"), "vision", 61_000, 99_000, GpuId("GPU-1"), 250, 20 * 1024 * MIB),
)
"""These came with version 5."""


async def make(path: Path) -> None:
    """One lease in each state and with each outcome, numbered from 1."""
    states = (*STATES, *NEWER_STATES)
    leases = tuple(full_lease(number, state) for number, state in enumerate(states, start=1))
    entries = tuple((lease.id, entry) for lease in leases for entry in lease.story)
    journal = SqliteJournal(path)
    change = AccountsChange(ACCOUNTS.usage, ACCOUNTS.turns, ACCOUNTS.projects)
    write = JournalWrite(leases, entries, 50, DRAINED, change, ATTEMPTS, CONTACTS, spans=SPANS)
    await journal.commit([write])
    await journal.close()


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
