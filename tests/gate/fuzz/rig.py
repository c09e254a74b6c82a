"""What outlives the examples of a fuzzer: parts in an event loop of their own, and something made of them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import Self


class Rig(ABC):
    """A context manager: ``open`` puts the parts on ``stack``, ``runner`` runs what is asked of them."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()

    def __enter__(self) -> Self:
        self.runner.run(self.open())
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.run(self.stack.aclose())
        self.runner.close()

    @abstractmethod
    async def open(self) -> None:
        """Make what outlives the examples."""
