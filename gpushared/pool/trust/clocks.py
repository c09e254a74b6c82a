"""Two machines' clocks: how far they may be apart, and how that is said."""

from __future__ import annotations

from gpushared.domain.model.errors import PermissionRefused

TOLERANCE_SECONDS = 120
"""Clocks that are further apart than this make certificates and signed words of one invalid for the other."""


def offset_words(seconds: float) -> str:
    """``3600 s ahead of``, ``90 s behind``."""
    if seconds != seconds:  # noqa: PLR0124 - NaN, which is no offset
        return "no time beside"
    return f"{abs(seconds):.0f} s {'ahead of' if seconds >= 0 else 'behind'}"


def check_clock(whose: str, theirs: float, ours: float) -> None:
    """Raises PermissionRefused, with the measured offset, where two clocks are too far apart."""
    if not abs(theirs - ours) <= TOLERANCE_SECONDS:
        raise PermissionRefused(
            f"the clock of {whose} is {offset_words(theirs - ours)} the coordinator's; at most "
            f"{TOLERANCE_SECONDS} s are tolerated",
            hint="set the clock that is wrong, best on both machines by NTP: `timedatectl set-ntp true`",
        )
