"""Garbage collection in a process that keeps hundreds of thousands of records alive.

Python looks for cycles through everything that lives: with 100 000 queued jobs for more than a second, in
which no node is answered. The records have no cycles, so they are set aside soon after they were made. What
does have some, such as calls that failed, is found while it is young, or when all is looked at once in a
while.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

ASIDE_SECONDS = 5.0
ALL_AFTER_SECONDS = 6 * 3600.0
"""All is looked at so often, for the cycles that were set aside unseen."""


@contextmanager
def no_collection() -> Iterator[None]:
    """While very much is made of which nothing is garbage; it is set aside then."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


async def keep_aside() -> None:
    """For ever: set aside what was made since, having looked through what is young."""
    aside = 0.0
    while True:
        await asyncio.sleep(ASIDE_SECONDS)
        aside += ASIDE_SECONDS
        if aside >= ALL_AFTER_SECONDS:
            aside = 0.0
            gc.unfreeze()
            gc.collect()
        else:
            gc.collect(1)
        gc.freeze()
