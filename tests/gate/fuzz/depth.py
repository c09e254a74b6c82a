"""How many examples, and which."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings

_Test = TypeVar("_Test", bound=Callable[..., Any])


def fuzzed(examples: int) -> Callable[[_Test], _Test]:
    """The same ``examples`` each time; ``GPUSHARED_FUZZ_EXAMPLES`` asks for that many new ones instead."""
    wanted = os.environ.get("GPUSHARED_FUZZ_EXAMPLES")
    return settings(
        max_examples=int(wanted) if wanted else examples,
        derandomize=not wanted,
        deadline=None,
        print_blob=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
