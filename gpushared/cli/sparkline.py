"""Draw a curve of ratios in one line."""

from __future__ import annotations

import os
from collections.abc import Iterable

from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

LEVELS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.:-=+*#"
UNSEEN, ASCII_UNSEEN = "·", " "


def sparkline(ratios: Iterable[float | None], *, plain: bool) -> str:
    """Return a character for each ratio; one that was not seen is a dot, or a space in ASCII (``plain``)."""
    levels, unseen = (ASCII_LEVELS, ASCII_UNSEEN) if plain else (LEVELS, UNSEEN)
    return "".join(unseen if ratio is None else levels[_level(ratio)] for ratio in ratios)


def _level(ratio: float) -> int:
    """Return a level; only what is not used at all has the lowest."""
    if ratio <= 0:
        return 0
    return min(len(LEVELS) - 1, 1 + int(ratio * (len(LEVELS) - 1)))


def is_plain(stream: TextIO) -> bool:
    """Return True if the terminal may not draw more than ASCII."""
    return os.environ.get("TERM") == "dumb" or "utf" not in (stream.encoding or "").lower()
