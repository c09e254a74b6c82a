"""Hold the troubles of the daemon's parts, and pass results of threads to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


class Troubles:
    """Hold one sentence for each part with a trouble."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """This function is called when a trouble came, changed or went."""
        self._texts: dict[str, str] = {}

    def raised(self, part: str, text: str) -> None:
        """Note a part's trouble; the same trouble again is not logged."""
        if self._texts.get(part) != text:
            log.warning("trouble part=%s text=%r", part, text)
            self._texts[part] = text
            self.on_change()

    def cleared(self, part: str) -> None:
        if self._texts.pop(part, None) is not None:
            log.info("recovered part=%s", part)
            self.on_change()

    def of(self, part: str) -> str:
        """Return the part's sentence, or an empty text."""
        return self._texts.get(part, "")

    def by_part(self) -> dict[str, str]:
        return dict(self._texts)

    def all(self) -> tuple[str, ...]:
        return tuple(self._texts[part] for part in sorted(self._texts))


def answer_with(work: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
    """Do the work here, and set its result or its error on the future's own loop, if still needed."""
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
