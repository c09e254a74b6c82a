"""Read sizes that may be ranges, from the least that will do to the most, as people type them.

``0.25..1``, ``2x0.25..0.5`` and ``1..4`` are ranges of GPUs, ``8g..24g`` of memory, ``25%..100%`` of compute.
A range whose ends are equal is a size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.gpu import WHOLE_PERMILLE
from gpushared.domain.model.units import (
    GpuSize,
    parse_gpu,
    parse_memory,
    parse_percent,
    shown,
)

TO = ".."


@dataclass(frozen=True, slots=True)
class Range:
    """Span the numbers from ``low`` to ``high``, both included."""

    low: int
    high: int

    @property
    def most(self) -> int | None:
        """Return ``high``, or None if there is no choice."""
        return self.high if self.high > self.low else None


@dataclass(frozen=True, slots=True)
class GpuRange:
    """Hold a number of GPUs and a permille of each; at most one of the two is a true range."""

    count: Range
    permille: Range


def parse_memory_range(text: str) -> Range:
    """Return bytes; ``parse_memory`` reads each end."""
    return _parse(text, parse_memory)


def parse_percent_range(text: str) -> Range:
    """Return permille; ``parse_percent`` reads each end."""
    return _parse(text, parse_percent)


def parse_gpu_range(text: str) -> GpuRange:
    """Read each end with ``parse_gpu``. A range of shares is one of each GPU: ``2x0.25..0.5``."""
    low_text, to, high_text = text.partition(TO)
    if not to:
        size = parse_gpu(text)
        return GpuRange(Range(size.count, size.count), Range(size.permille, size.permille))
    low, high = parse_gpu(low_text), _high_end(low_text, high_text, text)
    if _counts(low_text, low):
        if not _counts(high_text, high):
            raise _mixed(text)
        return GpuRange(_ordered(low.count, high.count, text), Range(WHOLE_PERMILLE, WHOLE_PERMILLE))
    if high.count > 1:
        raise _mixed(text)
    return GpuRange(Range(low.count, low.count), _ordered(low.permille, high.permille, text))


def _high_end(low: str, high: str, text: str) -> GpuSize:
    """Read the high end; raises RequestError.

    A number of GPUs before the shares is written once, at the beginning.
    """
    if "x" in high.lower():
        raise RequestError(
            f"{shown(text)} says the number of GPUs at its end",
            hint="say it once: 2x0.25..0.5 is a quarter to a half of each of two",
        )
    try:
        return parse_gpu(high)
    except RequestError:
        if "." in low:
            raise RequestError(
                f"{shown(text)} does not end with a part of one GPU", hint="write 0.25..1, or 2x0.25..0.5"
            ) from None
        raise


def _counts(text: str, size: GpuSize) -> bool:
    """Return True if the text is a number of whole GPUs, and not a share of each."""
    return size.permille == WHOLE_PERMILLE and "x" not in text.lower()


def _mixed(text: str) -> RequestError:
    return RequestError(
        f"{shown(text)} is a range of shares at one end and of whole GPUs at the other",
        hint="write 0.25..1 for a part of one GPU, 2x0.25..1 for parts of two, 1..4 for whole GPUs",
    )


def _parse(text: str, parse: Callable[[str], int]) -> Range:
    low, to, high = text.partition(TO)
    return _ordered(parse(low), parse(high) if to else parse(low), text)


def _ordered(low: int, high: int, text: str) -> Range:
    if low > high:
        least, _, most = text.partition(TO)
        raise RequestError(
            f"{shown(text)} is upside down", hint=f"the least comes first: {most.strip()}{TO}{least.strip()}"
        )
    return Range(low, high)
