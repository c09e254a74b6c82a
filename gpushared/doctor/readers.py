"""Reading the machine without waiting for it: a file system may be away, a program may hang."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from gpushared.doctor.facts import Unread
from gpushared.domain.errors import GpushareError

T = TypeVar("T")
READ_SECONDS = 8.0


@dataclass(eq=False, slots=True)
class _Job:
    work: Callable[[], Any]
    answer: asyncio.Future[Any]


class Readers:
    """A daemon thread for each part that is read, so that what hangs holds up neither others nor the exit.

    A part whose earlier reading still hangs is not read again until that is back, so that there is never more
    than one thread a part.
    """

    def __init__(self, *, timeout_seconds: float = READ_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._threads: dict[str, threading.Thread] = {}

    async def read(self, part: str, work: Callable[[], T]) -> T | Unread:
        """What ``work`` returns; what its world does wrong becomes ``Unread``."""
        earlier = self._threads.get(part)
        if earlier is not None and earlier.is_alive():
            return Unread("an earlier look has not come back yet", "`dmesg` may tell what hangs")
        job = _Job(work, asyncio.get_running_loop().create_future())
        thread = threading.Thread(target=_do, args=(job,), name=f"doctor {part}", daemon=True)
        self._threads[part] = thread
        thread.start()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                found: T = await job.answer
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


def _do(job: _Job) -> None:
    result, error = None, None
    try:
        result = job.work()
    except BaseException as raised:  # noqa: BLE001 - whatever it is belongs to the caller, who gets it
        error = raised
    # The loop may be over when a reading that hung comes back.
    with contextlib.suppress(RuntimeError):
        job.answer.get_loop().call_soon_threadsafe(_settle, job.answer, result, error)


def _settle(answer: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)
