"""What a pool lets one of its nodes give by itself, out of the limits of the pool's projects.

A project's limit holds for the whole pool, and a node gives leases to its own users without asking anybody.
So each node has a share of every limit that somebody there counts to: its own leases of that project never
hold more together than the share, and the coordinator counts the whole share as held. Who is in no project
with a limit is not bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Share:
    """So many permille of GPUs may a node's own leases of a project hold.

    ``model`` names the GPUs that the limit is of; empty for those of all models together.
    """

    project: str
    model: str
    permille: int


@dataclass(frozen=True, slots=True)
class Want:
    """What waits on a node for a larger share, in permille: the smallest lease, and all together."""

    project: str
    model: str
    least_permille: int
    all_permille: int


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a node was told last, with its own users' names.

    Attributes:
        shares: One for every limit that holds for somebody here, of 0 too.
        users: By user the pool's projects that they are in; the first is theirs where they name none.
        told_at: When it was told, in seconds since the epoch; for people.
        away: The coordinator does not answer, so that there is no more for the time being.
        ended: It has not answered for longer than the pool lets its nodes go on without it.
    """

    pool: str
    revision: int = 0
    shares: tuple[Share, ...] = ()
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    told_at: float = 0.0
    away: bool = False
    ended: bool = False

    def draws_on(self, user: str, asked: str) -> str:
        """The project whose share a lease of a user counts to; empty where none bounds it."""
        project = self.project_of(user, asked)
        return project if any(share.project == project for share in self.shares) else ""

    def project_of(self, user: str, asked: str) -> str:
        """The pool's project that a lease counts to; empty where the pool did not tell of one."""
        mine = self.users.get(user, ())
        return asked if asked in mine else next(iter(mine), "")

    def most(self, project: str, model: str) -> int | None:
        """The share of one limit; None where there is no such limit."""
        found = (one for one in self.shares if (one.project, one.model) == (project, model))
        share = next(found, None)
        return None if share is None else 0 if self.ended else share.permille
