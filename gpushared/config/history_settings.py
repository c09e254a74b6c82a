"""Define the settings of the history, and of what users see of others in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpushared.config.kinds import Choice, Whole, setting


class Others(StrEnum):
    """Say what ordinary users see of other users in the history; administrators see all."""

    NOTHING = "nothing"
    TOTALS = "totals"
    LEASES = "leases"


@dataclass(frozen=True, slots=True)
class HistoryConfig:
    """What leases held and used: `gpushare history`, `usage`, `waste`, `waits`, `report`."""

    recent_hours: int = setting(
        24, Whole(1, 168), "How long each ten seconds of a running lease stay, in memory."
    )
    keep_minutes_days: int = setting(30, Whole(1, 3650), "How long each minute of a lease and a GPU stays.")
    keep_hours_days: int = setting(
        730, Whole(1, 36500), "How long each hour stays. The summary of a lease stays for ever."
    )


@dataclass(frozen=True, slots=True)
class PoolHistoryConfig:
    """What the leases of all nodes held and used, and the jobs of the pool: the same commands with `--pool`."""

    keep_hours_days: int = setting(
        730, Whole(1, 36500), "How long each hour stays. The summaries of leases and jobs stay for ever."
    )


@dataclass(frozen=True, slots=True)
class PrivacyConfig:
    """What ordinary users see of others in the history. Administrators see all."""

    others: Others = setting(
        Others.LEASES,
        Choice(Others),
        "`leases`: each lease with its owner, size and outcome, as `gpushare ps` shows running ones, never its "
        "image or its container's name; `totals`: sums by user and project; `nothing`: only their own.",
    )
