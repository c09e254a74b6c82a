"""Versions as people write them, compared as numbers. Pure."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
Version = tuple[int, ...]


def numbers(text: str) -> Version:
    """``20.10.24+dfsg1`` is (20, 10, 24): the first numbers in the text, () where there are none."""
    found = _NUMBERS.search(text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def is_rebuilt(text: str) -> bool:
    """Whether a distribution built it: then fixes may be in it that its number does not tell."""
    return any(mark in text for mark in ("+", "-", "~"))
