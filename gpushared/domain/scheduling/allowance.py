"""Bound what one node of a pool may give by itself, out of the limits of the pool's projects.

A project's limit holds for the whole pool, and a node gives leases to its own users without asking anybody.
So each node has a share of every limit that somebody there counts to. The node's own leases of that project
never hold more together than the share, and the coordinator counts the whole share as held. Users in no
project with a limit are not bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Share:
    """Let a node's own leases of a project hold so many permille of GPUs.

    ``model`` names the GPUs that the limit is of; empty for those of all models together.
    """

    project: str
    model: str
    permille: int


@dataclass(frozen=True, slots=True)
class ShareNeed:
    """Report leases that wait on a node for a larger share, in permille: the smallest, and all together."""

    project: str
    model: str
    least_permille: int
    all_permille: int


@dataclass(frozen=True, slots=True)
class Allowance:
    """Hold the pool's last word to a node, with the node's own users' names.

    Attributes:
        shares: One for every limit that holds for somebody here, of 0 too.
        users: The pool's projects of each user; the first counts for a user who names none.
        told_at: The time of the word, in seconds since the epoch; for people.
        away: The coordinator does not answer, so the node gets no more for the time being.
        ended: The coordinator has not answered for longer than the pool lets its nodes go on without it.
    """

    pool: str
    revision: int = 0
    shares: tuple[Share, ...] = ()
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    told_at: float = 0.0
    away: bool = False
    ended: bool = False

    def draws_on(self, user: str, asked: str) -> str:
        """Return the project whose share a lease of a user counts to; empty if no share bounds the lease."""
        project = self.project_of(user, asked)
        return project if any(share.project == project for share in self.shares) else ""

    def project_of(self, user: str, asked: str) -> str:
        """Return the pool's project that a lease counts to; empty if the pool did not tell of one."""
        mine = self.users.get(user, ())
        return asked if asked in mine else next(iter(mine), "")

    def most(self, project: str, model: str) -> int | None:
        """Return the share of one limit; None if there is no such limit."""
        found = (one for one in self.shares if (one.project, one.model) == (project, model))
        share = next(found, None)
        return None if share is None else 0 if self.ended else share.permille
