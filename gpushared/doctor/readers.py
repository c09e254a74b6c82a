"""Read the machine without waiting for it: a file system may be away, a program may hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from gpushared.daemon.threads import answer_with
from gpushared.doctor.facts import Unread
from gpushared.domain.model.errors import GpushareError

T = TypeVar("T")
READ_SECONDS = 8.0


class Readers:
    """Read each part on a daemon thread, so that a hanging part holds up neither others nor the exit.

    A part whose earlier reading still hangs is not read again until that is back, so that there is never more
    than one thread for a part.
    """

    def __init__(self, *, timeout_seconds: float = READ_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._threads: dict[str, threading.Thread] = {}

    async def read(self, part: str, work: Callable[[], T]) -> T | Unread:
        """Return the result of ``work``; errors of the machine become ``Unread``."""
        earlier = self._threads.get(part)
        if earlier is not None and earlier.is_alive():
            return Unread("an earlier look has not come back yet", "`dmesg` may tell what hangs")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        thread = threading.Thread(target=answer_with, args=(work, answer), name=f"doctor {part}", daemon=True)
        self._threads[part] = thread
        thread.start()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                found = await answer
        except TimeoutError:
            return Unread(f"no answer within {self._timeout_seconds:g} s", "`dmesg` may tell what hangs")
        except GpushareError as error:
            return Unread(error.message, error.hint)
        except OSError as error:
            return Unread(_said(error))
        except ValueError as error:
            return Unread(f"something is written in an unknown way: {error}")
        return found


def _said(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason
