"""Queue messages for a link, so that a slow other side blocks nobody and fills no memory."""

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
        self._words: OrderedDict[Hashable, Callable[[], _Message | None]] = OrderedDict()
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()

    def put(self, subject: Hashable, word: Callable[[], _Message | None]) -> bool:
        """Queue a message; return False if there is no room for one more subject.

        A ``word`` that returns None sends nothing.
        """
        if subject not in self._words and len(self._words) >= self._max:
            return False
        self._words[subject] = word
        self._filled.set()
        return True

    async def take(self) -> _Message:
        """Wait for the next message, and return it."""
        while True:
            while self._words:
                _, word = self._words.popitem(last=False)
                self._taken.set()
                if (message := word()) is not None:
                    return message
            self._filled.clear()
            await self._filled.wait()

    async def room(self, subjects: int) -> None:
        """Wait until fewer than this many subjects wait."""
        while len(self._words) >= subjects:
            self._taken.clear()
            await self._taken.wait()

    def __len__(self) -> int:
        return len(self._words)
