"""Define the questions that a pass asks of the GPUs of one node or of a pool of hosts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import Grant, Lease, LeaseId
from gpushared.domain.model.request import Request
from gpushared.domain.scheduling.placement.free_capacity import FreeCapacity

NOTHING: frozenset[GpuId] = frozenset()


class CapacityPort(Protocol):
    """Tell where requests fit. A request is placed as a whole, on the GPUs of one host."""

    def place(
        self,
        request: Request,
        *,
        gone: Sequence[Lease] = (),
        closed: Collection[GpuId] = NOTHING,
        host: str | None = None,
    ) -> tuple[Grant, ...]:
        """Return the grants for a request, empty if it does not fit; nothing is booked.

        The answer holds as if the leases in ``gone`` had ended, without the GPUs in ``closed``, on ``host``
        only.
        """

    def take(self, lease: LeaseId, request: Request, grants: Sequence[Grant]) -> None:
        """Book grants."""

    def give(self, lease: LeaseId, request: Request, grants: Sequence[Grant], *, left_bytes: int = 0) -> None:
        """Undo ``take``; also for leases that were there before.

        So much of the host's memory stays taken: a paused container leaves ``left_bytes`` there.
        """

    def gpu(self, gpu: GpuId) -> Gpu:
        """Return a GPU by its id; KeyError if the GPU is unknown."""

    def host_of(self, gpu: GpuId) -> str:
        """Return the host of a GPU."""

    def gpus_of(self, host: str) -> Sequence[GpuId]:
        """Return the GPUs of a host, in order."""

    def capacities(self) -> Mapping[str, Sequence[FreeCapacity]]:
        """Return the free capacity of each GPU, by host."""

    def models(self) -> Mapping[str, Gpu]:
        """Return one GPU of each model; of GPUs of one name, the one that leases the least memory."""
