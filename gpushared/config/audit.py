"""Define the settings of the audit, such as how long its lines stay."""

from __future__ import annotations

from dataclasses import dataclass

from gpushared.config.fields import setting
from gpushared.config.kinds import Whole


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """The audit records who changed what, and who was refused what: `gpushare audit`."""

    keep_days: int = setting(90, Whole(1, 3650), "Lines that are older are forgotten.")
    max_rows: int = setting(
        500_000,
        Whole(1000, 50_000_000),
        "Of more lines, the oldest of whoever has the most are forgotten; 500000 are about 250 MB.",
    )
