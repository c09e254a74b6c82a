"""Declare the daemon's needs of the world: five narrow ports.

Each has a real adapter and a public fake in ``gpushared.testing``; both pass the same contract tests. Methods
are coroutines that return within their adapter's time-out, with a result or with an error of
``gpushared.domain.model.errors``; none of them ever blocks the event loop.
"""

from gpushared.ports.clock import Clock
from gpushared.ports.edits import EditMount, Edits, Hook
from gpushared.ports.engine import (
    DEFAULT_STOP_SECONDS,
    LABEL_ATTEMPT,
    LABEL_DEVICE,
    LABEL_GATE,
    LABEL_JOB,
    LABEL_LEASE,
    LABEL_OWNER,
    CgroupDriver,
    ContainerFacts,
    ContainerStatus,
    DeviceMechanism,
    Engine,
    EngineFacts,
)
from gpushared.ports.gpus import (
    ComputeModes,
    Driver,
    DriverFacts,
    GpuProcess,
    GpuReading,
    Gpus,
    GpuSettings,
    MemoryLimiter,
)
from gpushared.ports.journal import Journal, JournalSnapshot, JournalWrite, PastLeases
from gpushared.ports.reality import DeviceNode, DeviceRule, Exposure, MachineDevices, Reality, Word
from gpushared.ports.sharing import Checkpoints, ServerFault, Sharing, SharingStatus
from gpushared.ports.user_walls import UserBounds, UserUse, UserWalls

__all__ = [
    "DEFAULT_STOP_SECONDS",
    "LABEL_ATTEMPT",
    "LABEL_DEVICE",
    "LABEL_GATE",
    "LABEL_JOB",
    "LABEL_LEASE",
    "LABEL_OWNER",
    "CgroupDriver",
    "Checkpoints",
    "Clock",
    "ComputeModes",
    "ContainerFacts",
    "ContainerStatus",
    "DeviceMechanism",
    "DeviceNode",
    "DeviceRule",
    "Driver",
    "DriverFacts",
    "EditMount",
    "Edits",
    "Engine",
    "EngineFacts",
    "Exposure",
    "GpuProcess",
    "GpuReading",
    "GpuSettings",
    "Gpus",
    "Hook",
    "Journal",
    "JournalSnapshot",
    "JournalWrite",
    "MachineDevices",
    "MemoryLimiter",
    "PastLeases",
    "Reality",
    "ServerFault",
    "Sharing",
    "SharingStatus",
    "UserBounds",
    "UserUse",
    "UserWalls",
    "Word",
]
