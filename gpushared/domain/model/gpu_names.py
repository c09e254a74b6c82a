"""Match the names of GPU models with the parts of names that people type."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpushared.domain.model.errors import NeverFits
from gpushared.domain.model.gpu import Gpu
from gpushared.domain.model.units import shown


def models_named(parts: Collection[str], gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Return the names of the GPUs that hold one of the parts, in small or capital letters.

    A whole name counts as no part of another name. Raises NeverFits for a part that is in no name.
    """
    names = tuple(dict.fromkeys(gpu.name for gpu in gpus))
    for part in parts:
        if not any(is_called(name, part) for name in names):
            raise NeverFits(
                f"no GPU of this node is a {shown(part)}", hint=f"its models: {', '.join(names) or 'none'}"
            )
    return tuple(name for name in names if any(_means(part, name, names) for part in parts))


def _means(part: str, name: str, names: Collection[str]) -> bool:
    return part == name if part in names else is_called(name, part)


def is_called(name: str, part: str) -> bool:
    """Return True if a GPU's name holds the part, spaces and dashes aside (``rtx4090``, ``RTX-4090``)."""
    return _plain(part) in _plain(name)


def _plain(text: str) -> str:
    return "".join(c for c in text.casefold() if c.isalnum())
