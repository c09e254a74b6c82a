"""The gates that are fuzzed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gate.fuzz.bench import Bench


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench() as bench:
        yield bench
