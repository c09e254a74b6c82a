"""Reach a node's daemon from Python: synchronous, standard library only, a few milliseconds to import.

    from gpushared.client import Client

    client = Client()                     # GPUSHARE_HOST, or the system's socket
    for lease in client.leases().leases:
        print(lease.id, lease.state, lease.memory_wall)

Errors are those of ``gpushared.domain.model.errors``.
"""

from gpushared.api.v1.messages import (
    CheckResult,
    DoctorReport,
    Drained,
    EngineStatus,
    Explanation,
    GivesWay,
    Gpu,
    GpuList,
    Grant,
    IdlePolicy,
    Kept,
    Lease,
    LeaseList,
    NodeStatus,
    OfferAnswer,
    Outcome,
    Preset,
    Project,
    ProjectList,
    Quota,
    Refusal,
    Setting,
    StoryEntry,
    UnmanagedProcess,
    Waiting,
)
from gpushared.client.api import Client, socket_path
from gpushared.client.http import ConnectionLost

__all__ = [
    "CheckResult",
    "Client",
    "ConnectionLost",
    "DoctorReport",
    "Drained",
    "EngineStatus",
    "Explanation",
    "GivesWay",
    "Gpu",
    "GpuList",
    "Grant",
    "IdlePolicy",
    "Kept",
    "Lease",
    "LeaseList",
    "NodeStatus",
    "OfferAnswer",
    "Outcome",
    "Preset",
    "Project",
    "ProjectList",
    "Quota",
    "Refusal",
    "Setting",
    "StoryEntry",
    "UnmanagedProcess",
    "Waiting",
    "socket_path",
]
