"""Declare the port that bounds all containers of one user together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpushared.ports.engine import EngineFacts


@dataclass(frozen=True, slots=True)
class UserBounds:
    """Bound a user; 0 is no limit.

    Memory is with swap and with files in ``/dev/shm`` and other memory file systems.
    """

    memory_bytes: int = 0
    cpus: float = 0.0
    pids: int = 0

    def __bool__(self) -> bool:
        return bool(self.memory_bytes or self.cpus or self.pids)


@dataclass(frozen=True, slots=True)
class UserUse:
    """Hold a user's use. Memory that the kernel can take back at once, such as read files, is left out."""

    memory_bytes: int = 0
    pids: int = 0


class UserWalls(Protocol):
    """Keep one cgroup for each user, in which the engine puts the user's containers."""

    def parent_of(self, uid: int, engine: EngineFacts) -> str:
        """Return Docker's ``CgroupParent`` for the user; this asks nobody."""
        ...

    async def hold(self, uid: int, limits: UserBounds, engine: EngineFacts) -> None:
        """Make sure that the user's cgroup exists, with these limits.

        Errors: ``LimitReached`` if the user's containers have more already and the kernel keeps the old
        limit, ``SharingUnavailable`` if there is no such wall.
        """
        ...

    async def joining(self, uid: int, engine: EngineFacts) -> Sequence[Path]:
        """Return the files by which a process of ours joins the user's cgroup.

        There are none without such a cgroup. Never raises.
        """
        ...

    async def use(self, uid: int, engine: EngineFacts) -> UserUse:
        """Return the use of the user's containers; nothing if there is no such cgroup. Never raises."""
        ...
