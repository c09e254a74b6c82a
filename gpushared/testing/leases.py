"""Make leases without the fields that a test does not care for."""

from __future__ import annotations

from gpushared.domain.model.lease import (
    Lease,
    LeaseId,
    LeaseState,
    Queued,
    StoryEntry,
    state_name,
)
from gpushared.domain.model.request import Request

SOME_TIME = 1_800_000_000.0


def fake_lease(
    sequence: int = 1,
    state: LeaseState | None = None,
    *,
    request: Request | None = None,
    owner_uid: int = 1000,
    story: tuple[str, ...] = (),
) -> Lease:
    """Return a lease, queued unless said otherwise; its id ``l-<sequence>`` is also its device's name."""
    state = state or Queued(since=SOME_TIME)
    return Lease(
        id=LeaseId(f"l-{sequence}"),
        sequence=sequence,
        request=request or Request(compute_permille=250, memory_permille=250),
        owner_uid=owner_uid,
        owner_name=f"user{owner_uid}",
        created_at=SOME_TIME,
        state=state,
        device_name=f"l-{sequence}",
        story=tuple(StoryEntry(SOME_TIME, state_name(state), text) for text in story),
    )
