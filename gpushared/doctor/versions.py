"""Compare versions as people write them, as numbers. Pure."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
Version = tuple[int, ...]


def numbers(text: str) -> Version:
    """Return the first numbers in a text, () without any: ``20.10.24+dfsg1`` is (20, 10, 24)."""
    found = _NUMBERS.search(text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def is_rebuilt(text: str) -> bool:
    """Return True if a distribution built it: then it may have fixes that its number does not tell."""
    return any(mark in text for mark in ("+", "-", "~"))
