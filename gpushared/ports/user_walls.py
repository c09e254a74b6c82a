"""What all containers of one user may take of the machine together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpushared.ports.engine import EngineFacts


@dataclass(frozen=True, slots=True)
class UserBounds:
    """0 is no limit. Memory is with swap and with what lies in ``/dev/shm`` and other memory file systems."""

    memory_bytes: int = 0
    cpus: float = 0.0
    pids: int = 0

    def __bool__(self) -> bool:
        return bool(self.memory_bytes or self.cpus or self.pids)


@dataclass(frozen=True, slots=True)
class UserUse:
    """What they hold. What the kernel can take back at once, such as files that were read, is not in it."""

    memory_bytes: int = 0
    pids: int = 0


class UserWalls(Protocol):
    """One cgroup a user, in which the engine puts the user's containers."""

    def parent_of(self, uid: int, engine: EngineFacts) -> str:
        """Docker's ``CgroupParent`` for the user; asks nobody."""
        ...

    async def hold(self, uid: int, limits: UserBounds, engine: EngineFacts) -> None:
        """See that the user's cgroup is there, with these limits.

        Errors: ``LimitReached`` where the user's containers have more already and the kernel keeps the old
        limit, ``SharingUnavailable`` where there is no such wall.
        """
        ...

    async def joining(self, uid: int, engine: EngineFacts) -> Sequence[Path]:
        """The files by which a process of ours joins what the user's containers have together.

        None where there is no such cgroup. Never raises.
        """
        ...

    async def use(self, uid: int, engine: EngineFacts) -> UserUse:
        """What the user's containers hold; nothing where there is no such cgroup. Never raises."""
        ...
