"""Offer public fakes for the ports, for tests of programs that build on gpushared and for its own.

None of them touches a GPU, an engine or a disk. They pass the same contract tests as the real adapters.
"""

from gpushared.testing.fake_clock import ManualClock
from gpushared.testing.fake_engine import FAKE_FACTS, FakeEngine
from gpushared.testing.fake_gpus import GIB, FakeComputeModes, FakeGpus, fake_gpu
from gpushared.testing.fake_job_store import MemoryStore, SharedMemoryStore, StoreWorld
from gpushared.testing.fake_journal import MemoryJournal
from gpushared.testing.fake_sharing import FakeCheckpoints, FakeSharing
from gpushared.testing.leases import fake_lease

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
    "SharedMemoryStore",
    "StoreWorld",
    "fake_gpu",
    "fake_lease",
]
