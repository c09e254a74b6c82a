"""Define the calls that the gate makes on the node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from gpushared.domain.leases.stop_order import AskedEnd
from gpushared.domain.model.lease import ContainerId, Grant, LeaseId
from gpushared.domain.model.request import Caller
from gpushared.domain.model.request_spec import RequestSpec
from gpushared.ports import Edits, EngineFacts


@dataclass(frozen=True, slots=True)
class Claim:
    """Hold a reserved lease that is being put into a container, with the settings that make it effective."""

    lease: LeaseId
    device_name: str
    edits: Edits
    grants: tuple[Grant, ...] = ()
    restart_on_fault: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels of the container, which name its job."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables about the job for its program, in place of the user's own with the same names."""
    env_defaults: Mapping[str, str] = field(default_factory=dict)
    """Variables about the job; the user's own variables with the same names win."""


class LeasePort(Protocol):
    """Show the node to the gate. Every call may raise any ``GpushareError``, which goes to the client.

    Calls that wait in the queue are cancelled when the client goes away; they must then leave the queue.
    """

    def engine_facts(self) -> EngineFacts:
        """Return the facts from the engine's probe; raises ``EngineUnavailable`` before the first probe."""
        ...

    async def gpu_count(self) -> int:
        """Return the number of GPUs that "all" means."""
        ...

    async def claim(self, lease: LeaseId, caller: Caller) -> Claim:
        """Claim the caller's own reservation; returns when its edits are in place.

        Raises ``NotFound`` (also for another user's lease), ``PermissionRefused``, ``StateConflict``.
        """
        ...

    def in_gang(self, lease: LeaseId, caller: Caller) -> bool:
        """Return True if the lease is the caller's own, for a part of a gang whose parts all have leases."""
        ...

    def has_gang(self, container: ContainerId) -> bool:
        """Return True if the container's live lease is for a part of a gang."""
        ...

    async def unclaim(self, lease: LeaseId) -> None:
        """Give back a claim without a container.

        The reservation is claimable again, with new time for a claim.
        """
        ...

    async def acquire(self, gpu_request: RequestSpec, caller: Caller, name: str, image: str) -> Claim:
        """Ask for a lease for a container of this name, wait in the queue for it, and claim it.

        Raises ``LimitReached`` after the longest wait that the request, or the site, allows.
        """
        ...

    async def release(self, lease: LeaseId) -> None:
        """Give back a claimed or acquired lease that has no container and will get none.

        A job's lease stays: the node's launcher of jobs decides about that lease.
        """
        ...

    async def created(
        self, lease: LeaseId, container: ContainerId, name: str, image: str, *, stays: bool
    ) -> None:
        """Record that the engine has made the container of a claimed lease.

        ``stays``: nobody is attached to the container and it is not removed when it ends.
        """
        ...

    async def before_start(self, container: ContainerId, caller: Caller) -> None:
        """Make sure that a container with a device name has a live lease before it starts.

        Waits in the queue if the container needs a new lease. The container's labels hold the GPU request
        (``gpu_request_of``) and the longest wait.
        """
        ...

    async def start_failed(self, container: ContainerId) -> None:
        """Record that the engine refused the start that ``before_start`` prepared."""
        ...

    async def before_restart(self, container: ContainerId, caller: Caller) -> None:
        """Keep the lease while the container is down for a restart, or get a new one."""
        ...

    async def after_restart(self, container: ContainerId) -> None:
        """Record that the restart is over, with or without success; the next inspect decides on the lease."""
        ...

    def before_unpause(self, container: ContainerId) -> None:
        """Raise StateConflict if the container is frozen because its lease is off its GPUs."""
        ...

    def ending(self, container: ContainerId, requested_end: AskedEnd) -> AbstractAsyncContextManager[None]:
        """Leave the container's shared parts in order while the block may end the container.

        Raises nothing of its own, so that it never prevents an end.
        """
        ...

    def last_words(self, container: str) -> Callable[[], str] | None:
        """Return a function that explains, when the output is over, why the container's lease was ended.

        The function returns an empty text if the lease was not ended. Return None if no live lease has a
        container of this name or (beginning of an) id.
        """
        ...

    async def lease_env(self, container: ContainerId) -> Mapping[str, str]:
        """Return the variables of the container's live lease for programs that join the container.

        Return an empty mapping without a live lease. CDI gives variables to a container's first process only;
        ``docker exec`` does not see them.
        """
        ...
