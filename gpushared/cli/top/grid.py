"""Draw the last hour: a row for each GPU, and in each ten minutes who held most of it, and its use."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gpushared.cli.table import Segment, shortened, text_width
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from gpushared.api.v1.history_messages import RecentGpu, RecentUse

CELL_SECONDS = 600
CELLS = 7
"""The last one has just begun, so that there is always a full hour."""
LEAST_WIDTH, MAX_WIDTH = 11, 20
LABEL_WIDTH = 5
UNHELD = "."
UNSEEN = "-"
LEGEND = (
    "the user who held most of the GPU, +N other users, and the GPU's mean use; "
    f"{UNHELD} nobody held it, {UNSEEN} its use is not known"
)
_BUSY, _IDLE = 0.5, 0.05
_BUSY_LOOK, _IDLE_LOOK, _TITLE_LOOK, _QUIET_LOOK = "32", "33", "1", "2"


def grid(recent: RecentUse, width: int) -> list[list[Segment]]:
    """Return the lines; the newest ten minutes are at the right."""
    count = max(1, min(CELLS, (width - LABEL_WIDTH) // LEAST_WIDTH))
    cell_width = min(MAX_WIDTH, (width - LABEL_WIDTH) // count)
    last = int(recent.until // CELL_SECONDS) * CELL_SECONDS
    begins = [last - CELL_SECONDS * back for back in range(count - 1, -1, -1)]
    clock = "".join(time.strftime("%H:%M", time.localtime(begin)).ljust(cell_width) for begin in begins)
    lines = [[Segment("GPU".ljust(LABEL_WIDTH) + clock.rstrip(), _TITLE_LOOK)]]
    for gpu in recent.gpus:
        cells = [_cell(gpu, begin, cell_width - 1) for begin in begins]
        lines.append([Segment(gpu.label.ljust(LABEL_WIDTH)), *(part for cell in cells for part in cell)])
    return lines


def _cell(gpu: RecentGpu, begin: float, width: int) -> list[Segment]:
    """Return the name, the number of others and the use, as wide as ``width`` and a space."""
    users, use = holders(gpu, begin), mean_use(gpu, begin)
    used = UNSEEN if use is None else f"{use:.0%}"
    if not users:
        shown = UNHELD if not use else f"{UNHELD} {used}"
        return [Segment(shown.ljust(width + 1), _QUIET_LOOK)]
    more_users = f"+{len(users) - 1}" if users[1:] else ""
    tail = f"{more_users} {used}"
    shown = shortened(users[0], max(1, width - len(tail))) + tail
    return [Segment(shown, _look(use)), Segment(" " * max(1, width + 1 - text_width(shown)))]


def _look(use: float | None) -> str:
    if use is None:
        return ""
    return _BUSY_LOOK if use >= _BUSY else _IDLE_LOOK if use < _IDLE else ""


def holders(gpu: RecentGpu, begin: float) -> Sequence[str]:
    """Return the users who held the GPU in the ten minutes, who held most first: share times time."""
    amounts: dict[str, float] = {}
    for holding in gpu.holdings:
        seconds = min(holding.until, begin + CELL_SECONDS) - max(holding.since, begin)
        if seconds > 0:
            amounts[holding.owner] = amounts.get(holding.owner, 0.0) + seconds * holding.share_permille
    return sorted(amounts, key=lambda owner: (-amounts[owner], owner))


def mean_use(gpu: RecentGpu, begin: float) -> float | None:
    seen = [
        step.use_ratio
        for step in gpu.steps
        if step.use_ratio is not None and begin <= step.at < begin + CELL_SECONDS
    ]
    return sum(seen) / len(seen) if seen else None
