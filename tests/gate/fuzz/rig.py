"""What outlives the examples of a fuzzer, how many examples there are, and which."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Self, TypeVar

from hypothesis import HealthCheck, settings

_Test = TypeVar("_Test", bound=Callable[..., Any])


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


def fuzzed(examples: int) -> Callable[[_Test], _Test]:
    """The same ``examples`` each time; ``GPUSHARED_FUZZ_EXAMPLES`` asks for that many new ones instead."""
    wanted = os.environ.get("GPUSHARED_FUZZ_EXAMPLES")
    return settings(
        max_examples=int(wanted) if wanted else examples,
        derandomize=not wanted,
        deadline=None,
        print_blob=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
