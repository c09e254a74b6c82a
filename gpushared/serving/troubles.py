"""What is wrong now with the parts the daemon needs: said once in the log, shown as long as it lasts."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Troubles:
    """One sentence a part; a part that is well is not in it."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def raised(self, part: str, text: str) -> None:
        """The part is in trouble; repeating the same trouble is not logged again."""
        if self._texts.get(part) != text:
            log.warning("trouble part=%s text=%r", part, text)
        self._texts[part] = text

    def cleared(self, part: str) -> None:
        if self._texts.pop(part, None) is not None:
            log.info("recovered part=%s", part)

    def of(self, part: str) -> str:
        """The part's sentence, or an empty text."""
        return self._texts.get(part, "")

    def by_part(self) -> dict[str, str]:
        return dict(self._texts)

    def all(self) -> tuple[str, ...]:
        return tuple(self._texts[part] for part in sorted(self._texts))
