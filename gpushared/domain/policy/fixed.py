"""Fixed quotas: parts of GPUs that are kept free for a project's build work and never lent.

What of a fixed quota is not in use is booked as if somebody held it. Where there is no room to book, because
others were there before the quota was, GPUs are kept as for a request that waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpushared.domain.gpu import WHOLE_PERMILLE
from gpushared.domain.lease import Grant, LeaseId
from gpushared.domain.policy.ledger import Ledger
from gpushared.domain.policy.places import Places
from gpushared.domain.policy.projects import Project
from gpushared.domain.request import Request


@dataclass(frozen=True, slots=True)
class FixedPart:
    """A part of GPUs that is booked for a project's build work."""

    id: LeaseId
    request: Request
    grants: tuple[Grant, ...]


def book(project: Project, ledger: Ledger, places: Places) -> tuple[list[FixedPart], list[Request]]:
    """Book what is left of a project's fixed quotas; and what found no room."""
    booked: list[FixedPart] = []
    owed: list[Request] = []
    for pool, quota in project.quotas():
        if not quota.fixed:
            continue
        for request in _parts(pool, ledger.fixed_left(project.name, pool)):
            grants = places.place(request)
            if not grants:
                owed.append(request)
                continue
            part = FixedPart(LeaseId(f"fixed-{project.name}-{len(booked)}"), request, grants)
            places.take(part.id, request, grants)
            booked.append(part)
    return booked, owed


def lift(parts: Iterable[FixedPart], places: Places) -> None:
    """Undo the booking."""
    for part in parts:
        places.give(part.id, part.request, part.grants)


def _parts(pool: str, permille: int) -> Iterable[Request]:
    """Whole GPUs, each on its own, and the rest."""
    models = (pool,) if pool else ()
    whole, rest = divmod(permille, WHOLE_PERMILLE)
    for _ in range(whole):
        yield Request(compute_permille=WHOLE_PERMILLE, memory_permille=WHOLE_PERMILLE, models=models)
    if rest:
        yield Request(compute_permille=rest, memory_permille=rest, models=models)
