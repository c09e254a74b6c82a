"""A coordinator with one node's credentials, for each test anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.pool.link.coordinator import Coordinator


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[Coordinator]:
    async with Coordinator(tmp_path / "pool").serving() as serving:
        yield serving
