"""Offer public fakes for the ports, for tests of programs that build on gpushared and for its own.

None of them touches a GPU, an engine or a disk. They pass the same contract tests as the real adapters.
"""

from gpushared.testing.checkpoints import FakeCheckpoints
from gpushared.testing.clock import ManualClock
from gpushared.testing.engine import FAKE_FACTS, FakeEngine
from gpushared.testing.gpus import GIB, FakeGpus, fake_gpu
from gpushared.testing.journal import MemoryJournal
from gpushared.testing.leases import fake_lease
from gpushared.testing.modes import FakeComputeModes
from gpushared.testing.sharing import FakeSharing
from gpushared.testing.store import MemoryStore, StoreWorld

__all__ = [
    "FAKE_FACTS",
    "GIB",
    "FakeCheckpoints",
    "FakeComputeModes",
    "FakeEngine",
    "FakeGpus",
    "FakeSharing",
    "ManualClock",
    "MemoryJournal",
    "MemoryStore",
    "StoreWorld",
    "fake_gpu",
    "fake_lease",
]
