"""Queue messages for a link, so that a slow reader blocks no sender and fills no memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Message = TypeVar("_Message")


class Mailbox(Generic[_Message]):
    """Keep only the newest message on each subject, in the order in which the subjects came up.

    The mailbox makes a message only when its turn comes, so that the message has the state of that moment.
    """

    def __init__(self, max_subjects: int) -> None:
        self._max = max_subjects
        self._makers: OrderedDict[Hashable, Callable[[], _Message | None]] = OrderedDict()
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()

    def put(self, subject: Hashable, make: Callable[[], _Message | None]) -> bool:
        """Queue a message; return False if there is no room for one more subject.

        ``make`` returns the message when its turn comes, or None to send nothing.
        """
        if subject not in self._makers and len(self._makers) >= self._max:
            return False
        self._makers[subject] = make
        self._filled.set()
        return True

    async def take(self) -> _Message:
        """Wait for the next message, and return it."""
        while True:
            while self._makers:
                _, make = self._makers.popitem(last=False)
                self._taken.set()
                if (message := make()) is not None:
                    return message
            self._filled.clear()
            await self._filled.wait()

    async def wait_until_below(self, subjects: int) -> None:
        """Wait until fewer than this many subjects wait."""
        while len(self._makers) >= subjects:
            self._taken.clear()
            await self._taken.wait()

    def __len__(self) -> int:
        return len(self._makers)
