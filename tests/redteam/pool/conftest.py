from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.redteam.pool.lab import Lab, eves_lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with eves_lab() as made:
        yield made
