"""Hand the result of a thread of our own to a future in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any


def answer_with(work: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
    """Do the work here, and set its result or its error on the future's own loop, if still wanted."""
    result, error = None, None
    try:
        result = work()
    except BaseException as raised:  # noqa: BLE001 - whatever it is belongs to the caller, who gets it
        error = raised
    # The loop may be over when work that hung comes back.
    with contextlib.suppress(RuntimeError):
        answer.get_loop().call_soon_threadsafe(_settle, answer, result, error)


def _settle(answer: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)
