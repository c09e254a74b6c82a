"""Write the week of a project, or of a machine, in a few sentences, each with the command that tells more.

The sentences have sums only: whose leases they are is for the commands, which know who asks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpushared.domain.accounting.account import percentile
from gpushared.domain.accounting.grouping import Accounted, Waited, summed
from gpushared.domain.model.units import format_duration

LEAST_HOURS = 1.0
"""Less waste than this in a week is not worth a sentence."""
LEAST_WAIT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Week:
    """Name a week by its first day, and give its days as the commands read them."""

    first_day: str
    next_day: str


def digest(
    project: str, week: Week, accounted: Collection[Accounted], waited: Collection[Waited]
) -> tuple[str, ...]:
    """Return the sentences, the first one on what was used; ``project`` is empty for the whole machine."""
    options = f"--since {week.first_day} --until {week.next_day}"
    options = f"--project {project} {options}" if project else options
    subject = project or "this machine"
    total = summed(accounted)
    account, leases = total.account, len(total.leases)
    ratio = account.use_of_held_ratio
    used = "" if ratio is None else f"; kernels ran in {ratio:.0%} of the time that was seen"
    noun = "lease" if leases == 1 else "leases"
    held_text = f"{leases} {noun} of {subject} held {account.gpu_hours:.1f} GPU hours{used}"
    lines = [f"in the week from {week.first_day} {held_text}: `gpushare usage {options}`"]
    if account.idle_hours >= LEAST_HOURS:
        lines.append(
            f"{account.idle_hours:.1f} GPU hours lay idle: `gpushare waste {options}` tells whose, and "
            "`gpushare idle` what is idle now"
        )
    if account.too_big_hours >= LEAST_HOURS:
        lines.append(
            f"{account.too_big_hours:.1f} GPU hours were of memory that was never used: "
            f"`gpushare waste {options}` tells where, and `gpushare report LEASE` what would have been enough"
        )
    return (*lines, *_waits(waited, options))


def _waits(waited: Collection[Waited], options: str) -> tuple[str, ...]:
    lengths = sorted(float(row.waited_ms) for row in waited if row.waited_ms >= LEAST_WAIT_MS)
    if not lengths:
        return ()
    total, half, most = (
        format_duration(ms / 1000)
        for ms in (sum(lengths), percentile(lengths, 0.5), percentile(lengths, 0.9))
    )
    noun = "request" if len(lengths) == 1 else "requests"
    text = f"{len(lengths)} {noun} waited {total} together, half of them up to {half} and nine of ten up to {most}"
    return (f"{text}: `gpushare waits {options}`",)
