"""Write figures and names as a person reads them in a cell.

``gpushared.domain.model.units`` has the exact forms; the forms here are short, and cost a listing no import.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

MISSING = "-"
_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20))
_SPANS = (("d", 86400), ("h", 3600), ("m", 60))


def printable(text: str) -> str:
    """Return the text without characters that could move a terminal's cursor: other users choose names."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def memory(size: int | None) -> str:
    """Return ``19.8 GiB``."""
    if size is None:
        return MISSING
    unit, unit_bytes = _unit(size)
    return f"{_figure(size, unit_bytes)} {unit}"


def memory_pair(used: int | None, total: int) -> str:
    """Return ``3.2/19.8 GiB``, both in the unit of the total."""
    unit, unit_bytes = _unit(total)
    return f"{MISSING if used is None else _figure(used, unit_bytes)}/{_figure(total, unit_bytes)} {unit}"


def _unit(size: int) -> tuple[str, int]:
    return next((unit for unit in _UNITS if size >= unit[1]), _UNITS[-1])


def _figure(size: int, unit_bytes: int) -> str:
    return str(size // unit_bytes) if size % unit_bytes == 0 else f"{size / unit_bytes:.1f}"


def share(permille: int) -> str:
    """Return ``0.25``; 1000 is ``1``."""
    return f"{permille / 1000:g}"


def compute(permille: int, limit_permille: int) -> str:
    """Return the share, or ``25..100%`` if a lease may use more of what is free."""
    if limit_permille <= permille:
        return share(permille)
    return f"{permille / 10:g}..{limit_permille / 10:g}%"


def span(seconds: float | None) -> str:
    """Return ``42s``, ``5m``, ``1h30m``, ``2d4h``; a past moment is ``0s``."""
    if seconds is None:
        return MISSING
    whole = max(0, int(seconds))
    for index, (unit, size) in enumerate(_SPANS):
        if whole >= size:
            rest = whole % size
            below, below_size = _SPANS[index + 1] if index + 1 < len(_SPANS) else ("", 1)
            more = rest // below_size if below else 0
            return f"{whole // size}{unit}" + (f"{more}{below}" if more else "")
    return f"{whole}s"


def gpu(label: str, index: int) -> str:
    """Return the name of a GPU in listings, and ``?`` for one that the daemon does not see."""
    return label or (str(index) if index >= 0 else "?")


def clock(moment: float, now: float, today_format: str = "%H:%M", other_day_format: str = "%a %H:%M") -> str:
    """Return ``14:05`` today, ``Tue 14:05`` on another day; local time."""
    then, today = time.localtime(moment), time.localtime(now)
    same_day = (then.tm_year, then.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime(today_format if same_day else other_day_format, then)


def day_and_clock(moment: float, now: float) -> str:
    """Return ``14:05`` today, ``11-22 14:05`` in this year, ``2025-11-22`` in another one; local time."""
    then, today = time.localtime(moment), time.localtime(now)
    if then.tm_year != today.tm_year:
        return time.strftime("%Y-%m-%d", then)
    return time.strftime("%H:%M" if then.tm_yday == today.tm_yday else "%m-%d %H:%M", then)


def start(start_from: float | None, start_to: float | None, now: float) -> str:
    """Return ``about 14:05 (12-25 min)``, ``by 14:30 (25 min)``, ``not before 14:05 (12 min)`` or ``unknown``."""
    first, last = _minutes(start_from, now), _minutes(start_to, now)
    if start_from is None or first is None:
        return "unknown" if start_to is None else f"by {clock(start_to, now)} ({last} min)"
    if last is None:
        return f"not before {clock(start_from, now)} ({first} min)"
    minutes = f"{first} min" if last <= first else f"{first}-{last} min"
    return f"about {clock(start_from, now)} ({minutes})"


def _minutes(moment: float | None, now: float) -> int | None:
    return None if moment is None else max(0, round((moment - now) / 60))


def of_gpus(troubles: Iterable[tuple[str, str]]) -> list[str]:
    """Word the troubles of GPUs by their names, each trouble once with all its GPUs; "" is no trouble."""
    names: dict[str, list[str]] = {}
    for name, trouble in troubles:
        if trouble:
            names.setdefault(trouble, []).append(name)
    return [f"GPU{'s' if gpus[1:] else ''} {', '.join(gpus)}: {trouble}" for trouble, gpus in names.items()]
