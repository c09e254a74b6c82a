"""Public fakes for the ports, for tests of programs that build on gpushared and for its own.

None of them touches a GPU, an engine or a disk. They pass the same contract tests as the real adapters.
"""

from gpushared.testing.engine import FAKE_FACTS, FakeEngine

__all__ = ["FAKE_FACTS", "FakeEngine"]
