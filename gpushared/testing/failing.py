"""The one way in which all fakes fail: on request, for the next calls."""

from __future__ import annotations

from gpushared.domain.errors import GpushareError


class Failing:
    """Base of the fakes: the next calls fail with the error that a test chose."""

    def __init__(self) -> None:
        self._failures: list[GpushareError] = []

    def fail_next(self, error: GpushareError, *, times: int = 1) -> None:
        """Let the next ``times`` calls of the port fail with ``error``; nothing of them happens then."""
        self._failures.extend([error] * times)

    def _may_fail(self) -> None:
        if self._failures:
            raise self._failures.pop(0)
