"""What the gate may ask of the node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from gpushared.domain.asking import Ask
from gpushared.domain.lease import ContainerId, Grant, LeaseId
from gpushared.domain.request import Caller
from gpushared.domain.stopping import AskedEnd
from gpushared.ports import Edits, EngineFacts


@dataclass(frozen=True, slots=True)
class Claim:
    """A reserved lease that is being put into a container, with the settings that make it real."""

    lease: LeaseId
    device_name: str
    edits: Edits
    grants: tuple[Grant, ...] = ()
    restart_on_fault: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    """What else the container is to bear: of which job it is."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What its program is told of the job, in place of the user's own of the same names."""
    env_defaults: Mapping[str, str] = field(default_factory=dict)
    """The same where the user said nothing."""


class Desk(Protocol):
    """The node as the gate sees it. Every call may raise any ``GpushareError``, which the client is told.

    Calls that wait in the queue are cancelled when the client goes away; they must then leave the queue.
    """

    def engine_facts(self) -> EngineFacts:
        """What was found when the engine was probed; raises ``EngineUnavailable`` before that."""
        ...

    async def gpu_count(self) -> int:
        """How many GPUs "all" means."""
        ...

    async def claim(self, lease: LeaseId, caller: Caller) -> Claim:
        """Take the caller's own reservation; comes back when its edits are in place.

        Raises ``NotFound`` (also for another's lease), ``PermissionRefused``, ``StateConflict``.
        """
        ...

    def in_gang(self, lease: LeaseId, caller: Caller) -> bool:
        """Whether it is the caller's own, for a part of a job on several nodes that all have theirs."""
        ...

    def has_gang(self, container: ContainerId) -> bool:
        """Whether its live lease is for such a part."""
        ...

    async def unclaim(self, lease: LeaseId) -> None:
        """No container came of the claim: the reservation stands again, with a fresh time to claim it."""
        ...

    async def acquire(self, wish: Ask, caller: Caller, name: str, image: str) -> Claim:
        """Ask for a lease of a container to be called so, wait in the queue for it, and claim it.

        Raises ``LimitReached`` when it has waited as long as the wish, or the site, lets it.
        """
        ...

    async def release(self, lease: LeaseId) -> None:
        """No container came of a claimed or acquired lease, and none will: give it back.

        One that is for a job stays: whoever sees to the job decides.
        """
        ...

    async def created(
        self, lease: LeaseId, container: ContainerId, name: str, image: str, *, stays: bool
    ) -> None:
        """The engine has made the container of a claimed lease.

        ``stays``: nobody is attached to it and it is not removed when it ends.
        """
        ...

    async def before_start(self, container: ContainerId, caller: Caller) -> None:
        """A start of a container with a device name was asked for: see that it has a live lease.

        Waits in the queue where it needs a new one; its wish is in the container's labels (``wish_of``), and
        how long it waits.
        """
        ...

    async def start_failed(self, container: ContainerId) -> None:
        """The engine refused the start that ``before_start`` prepared."""
        ...

    async def before_restart(self, container: ContainerId, caller: Caller) -> None:
        """A restart was asked for: keep the lease while the container is down, or get a new one."""
        ...

    async def after_restart(self, container: ContainerId) -> None:
        """The restart is over, with or without success; what inspect says now decides."""
        ...

    def ending(self, container: ContainerId, asked: AskedEnd) -> AbstractAsyncContextManager[None]:
        """Around a request that may end the container: what it shares with others is left in order.

        Raises nothing of its own: whoever wants an end gets it.
        """
        ...

    def last_words(self, container: str) -> Callable[[], str] | None:
        """How to learn, when its output is over, why a container's lease was ended; empty if it was not.

        None where no live lease has a container of this name or (beginning of an) id.
        """
        ...

    async def lease_env(self, container: ContainerId) -> Mapping[str, str]:
        """The variables of the container's live lease, for programs that join it; empty without a lease.

        CDI gives variables to a container's first process only; ``docker exec`` does not see them.
        """
        ...
