"""Find the leases whose processes were on an MPS server that met a fault. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpushared.domain.leases.events import ServerFaulted
from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.ports import ServerFault, SharingStatus


class ClientLeases:
    """The leases of MPS clients, also of those that have just ended: a fault ends many at once."""

    def __init__(self) -> None:
        self._known: dict[int, LeaseId] = {}

    def faulted(
        self, status: Iterable[SharingStatus], leases: Mapping[int, LeaseId]
    ) -> tuple[ServerFaulted, ...]:
        """Return an event for each fault in ``status``; ``leases``: the leases of the living processes."""
        status = tuple(status)
        pids = client_pids(status)
        self._known = {
            pid: lease for pid in pids if (lease := leases.get(pid) or self._known.get(pid)) is not None
        }
        faults: dict[int, ServerFault] = {}
        gpus: dict[int, list[GpuId]] = {}
        for one in status:
            for fault in one.faults:
                faults[fault.server] = fault
                gpus.setdefault(fault.server, []).append(one.gpu)
        return tuple(self._event(fault, tuple(gpus[server])) for server, fault in sorted(faults.items()))

    def _event(self, fault: ServerFault, gpus: tuple[GpuId, ...]) -> ServerFaulted:
        victims = frozenset(self._known[pid] for pid in fault.clients if pid in self._known)
        return ServerFaulted(gpus, victims, self._known.get(fault.culprit or 0))


def client_pids(status: Iterable[SharingStatus]) -> frozenset[int]:
    """Return the pids of all clients of MPS servers, including the clients that a fault ended."""
    found: set[int] = set()
    for one in status:
        found.update(one.clients)
        for fault in one.faults:
            found.update(fault.clients, () if fault.culprit is None else (fault.culprit,))
    return frozenset(found)
