"""Let all fakes fail in one way: on request, for the next calls."""

from __future__ import annotations

from gpushared.domain.model.errors import GpushareError


class Failing:
    """Fail the next calls with the error that a test chose; the fakes build on this class."""

    def __init__(self) -> None:
        self._failures: list[GpushareError] = []

    def fail_next(self, error: GpushareError, *, times: int = 1) -> None:
        """Let the next ``times`` calls of the port fail with ``error``; such a call changes nothing."""
        self._failures.extend([error] * times)

    def _may_fail(self) -> None:
        if self._failures:
            raise self._failures.pop(0)
