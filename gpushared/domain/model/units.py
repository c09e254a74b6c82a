"""Read sizes, shares and times as people type them, and write them back.

Memory follows docker's habit: ``8g``, ``8gb`` and ``8GiB`` all mean 8 * 1024**3 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.gpu import MIB, WHOLE_PERMILLE

MAX_TEXT = 32
"""Longer words are not sizes, and messages do not repeat them."""
MAX_GPUS = 1024
SMALLEST_PERMILLE = 10
MAX_MEMORY_BYTES = 1 << 50
MAX_DURATION_SECONDS = 366 * 24 * 3600
LATEST_SECONDS = 2.0**35
"""The year 3058; a later time is a mistake, and from 10000 on no calendar can write it."""

_MEMORY = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s?([kmgt])(?:i?b)?", re.ASCII | re.IGNORECASE)
_SHARE = re.compile(r"0*\.\d+", re.ASCII)
_FRACTION = re.compile(r"(\d{1,4})/(\d{1,4})", re.ASCII)
_SLICES = re.compile(r"(\d{1,4})x(\d*\.?\d+|\d{1,4}/\d{1,4})", re.ASCII | re.IGNORECASE)
_WHOLE = re.compile(r"(\d{1,9})(?:\.0+)?", re.ASCII)
_GPUS = re.compile(r"\d{1,4}(?:\.\d{1,3}0*)?|\.\d{1,3}", re.ASCII)
_NUMBER = re.compile(r"\d+\.\d+", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d)?)\s?%?", re.ASCII)
_DURATION = re.compile(
    r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.ASCII | re.IGNORECASE
)
_CLOCK = re.compile(r"(?:(\d{1,3})-)?(\d{1,4}):([0-5]\d):([0-5]\d)", re.ASCII)

_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class GpuSize:
    """Hold a number of GPUs, ``count``, and the thousandths of each, ``permille``."""

    count: int
    permille: int


def shown(text: str) -> str:
    """Return the text in a form for messages: printable and short."""
    clean = "".join(c if c.isprintable() else "?" for c in text[:MAX_TEXT])
    return f"'{clean}'" + (f"... ({len(text)} characters)" if len(text) > MAX_TEXT else "")


def first_few(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def parse_memory(text: str) -> int:
    """Return bytes, rounded up to whole MiB; at least 1 MiB."""
    match = _MEMORY.fullmatch(text.strip()) if len(text) <= MAX_TEXT else None
    if match is None:
        raise RequestError(f"{shown(text)} is not a memory size", hint="write it like 8g, 512m or 8GiB")
    exact = Decimal(match[1]) * 1024 ** _POWERS[match[2].lower()]
    size = int((exact / MIB).to_integral_value(rounding=ROUND_CEILING)) * MIB
    if not 0 < size <= MAX_MEMORY_BYTES:
        raise RequestError(f"{shown(text)} of memory is not possible", hint="ask for 1m or more")
    return size


def parse_gpu(text: str) -> GpuSize:
    """Read ``0.25`` or ``1/4`` (a quarter of one GPU), ``2`` (two GPUs), ``2x0.5`` (half of each of two)."""
    text = text.strip()
    if len(text) <= MAX_TEXT:
        if match := _WHOLE.fullmatch(text):
            return GpuSize(_count(match[1]), WHOLE_PERMILLE)
        if match := _SLICES.fullmatch(text):
            return GpuSize(_count(match[1]), _permille(match[2], text))
        if _SHARE.fullmatch(text) or _FRACTION.fullmatch(text):
            return GpuSize(1, _permille(text, text))
        if _NUMBER.fullmatch(text):
            raise RequestError(
                f"{shown(text)} is more than one GPU but not a whole number of them",
                hint="write 2x0.75 for three quarters of each of two GPUs",
            )
    raise RequestError(
        f"{shown(text)} is not a part of a GPU", hint="write 0.25, 2 or 2x0.5 (half of each of two)"
    )


def parse_gpus(text: str) -> int:
    """Read an amount of GPUs, whole and parts together, in permille: ``2``, ``1.5``, ``0``."""
    text = text.strip()
    permille = Decimal(text) * WHOLE_PERMILLE if _GPUS.fullmatch(text) and len(text) <= MAX_TEXT else None
    if permille is None or permille > MAX_GPUS * WHOLE_PERMILLE:
        raise RequestError(f"{shown(text)} is not an amount of GPUs", hint="write 2, 1.5 or 0.25")
    return int(permille)


def _count(text: str) -> int:
    if not 1 <= int(text) <= MAX_GPUS:
        raise RequestError(
            f"{int(text)} GPUs cannot be asked for",
            hint=f"ask for a part, such as 0.25, or for 1 to {MAX_GPUS}",
        )
    return int(text)


def _permille(number: str, text: str) -> int:
    """Return the permille of a share; a third is 333, rounded down, so that three thirds fit on one GPU."""
    if match := _FRACTION.fullmatch(number):
        part, whole = int(match[1]), int(match[2])
        permille = Decimal(part * WHOLE_PERMILLE // whole if whole else 0)
    else:
        permille = Decimal(number) * WHOLE_PERMILLE
    if permille != int(permille) or not SMALLEST_PERMILLE <= permille <= WHOLE_PERMILLE:
        raise RequestError(
            f"{shown(text)} is not a share that can be leased",
            hint="a share goes from 0.01 to 1 in steps of 0.001, or is a fraction such as 1/4",
        )
    return int(permille)


def parse_percent(text: str) -> int:
    """Read ``30%`` as permille of one GPU's compute."""
    match = _PERCENT.fullmatch(text.strip()) if len(text) <= MAX_TEXT else None
    permille = int(Decimal(match[1]) * 10) if match else 0
    if not SMALLEST_PERMILLE <= permille <= WHOLE_PERMILLE:
        raise RequestError(f"{shown(text)} is not a compute share", hint="write 1% to 100%")
    return permille


def parse_duration(text: str, *, least: int = 1) -> int:
    """Return whole seconds: ``90s``, ``30m``, ``1h30m``, ``2d``, and ``01:30:00`` as Slurm writes it.

    A number alone is refused, and so is ``10:00``: the unit would be a guess.
    """
    short = text.strip() if len(text) <= MAX_TEXT else ""
    match = (_CLOCK.fullmatch(short) or _DURATION.fullmatch(short)) if short else None
    parts = [int(part or 0) for part in match.groups()] if match else []
    seconds = sum(part * unit for part, unit in zip(parts, (86400, 3600, 60, 1), strict=False))
    if not match or not least <= seconds <= MAX_DURATION_SECONDS:
        hint = "write 90s, 30m, 1h30m, 2d or 01:30:00, up to 366d"
        raise RequestError(f"{shown(text)} is not a duration", hint=hint)
    return seconds


def format_memory(size: int) -> str:
    """Write ``20.0 GiB``; the text is exact if it is short, else it has one decimal."""
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if size >= 1024**power:
            whole, rest = divmod(size, 1024**power)
            return f"{whole} {unit}" if rest == 0 else f"{size / 1024**power:.1f} {unit}"
    return f"{size} B"


def format_share(permille: int) -> str:
    """Write ``0.25``; 1000 is ``1``."""
    return f"{Decimal(permille) / WHOLE_PERMILLE:f}"


def format_percent(permille: int) -> str:
    """Write ``25`` or ``12.5``, without the sign."""
    return f"{Decimal(permille) / 10:f}"


def format_cores(milli: int) -> str:
    """Write ``2``, ``1.5``: CPUs as docker's ``--cpus`` counts them."""
    return f"{(Decimal(milli) / 1000).normalize():f}"


def format_wait(seconds: float) -> str:
    """Write a time that is still to pass, like ``format_duration``: rounded, and at least ``1s``."""
    return format_duration(max(1, round(seconds)))


def format_duration(seconds: float) -> str:
    """Write ``42s``, ``5m``, ``1h30m``, ``2d4h``: at most two units; nothing is shorter than ``0s``."""
    rest = max(0, int(seconds))
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        amount, rest = divmod(rest, size)
        if amount:
            parts.append(f"{amount}{unit}")
        elif parts:
            break
    return "".join(parts[:2]) or "0s"
