"""A daemon whose history takes a second for a minute, and a minute for an hour."""

from __future__ import annotations

import sys

from gpushared.domain.accounting import advice
from gpushared.node.main import main
from gpushared.node.runtime import history_recorder
from gpushared.storage.history import history_writer

SECOND_MS = 1000
LENGTHS = {"MINUTE_MS": SECOND_MS, "HOUR_MS": 60 * SECOND_MS}


def hurry() -> None:
    """Shorten what modules of the history have read already."""
    for name, module in list(sys.modules.items()):
        if name.startswith("gpushared."):
            for constant, length in LENGTHS.items():
                if hasattr(module, constant):
                    setattr(module, constant, length)
    advice.LEAST_RUN_MS = advice.IDLE_AT_END_MS = SECOND_MS
    history_recorder.SAMPLE_SECONDS = history_writer.FRESH_SECONDS = 0.1
    history_recorder.WAIT_SECONDS = 1


if __name__ == "__main__":
    hurry()
    main()
