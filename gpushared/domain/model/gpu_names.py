"""Match the names of GPU models with the words that people type for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpushared.domain.model.errors import NeverFits
from gpushared.domain.model.gpu import Gpu
from gpushared.domain.model.units import shown


def models_named(words: Collection[str], gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Return the names of the GPUs that hold one of the words, in small or capital letters.

    A whole name counts as no part of another name. Raises NeverFits for a word that is in no name.
    """
    names = tuple(dict.fromkeys(gpu.name for gpu in gpus))
    for word in words:
        if not any(is_called(name, word) for name in names):
            raise NeverFits(
                f"no GPU of this node is a {shown(word)}", hint=f"its models: {', '.join(names) or 'none'}"
            )
    return tuple(name for name in names if any(_means(word, name, names) for word in words))


def _means(word: str, name: str, names: Collection[str]) -> bool:
    return word == name if word in names else is_called(name, word)


def is_called(name: str, word: str) -> bool:
    """Return True if a GPU's name holds the word, spaces and dashes aside (``rtx4090``, ``RTX-4090``)."""
    return _plain(word) in _plain(name)


def _plain(text: str) -> str:
    return "".join(c for c in text.casefold() if c.isalnum())
