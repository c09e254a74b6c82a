from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpushared.config.queue_rules import UserConfig
from tests.pool.trust.coordinator import Coordinator, coordinator


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Coordinator]:
    """Ada is an admin, and called otherwise on ws4; everybody of the realm cluster is themselves."""
    users = {
        "ada": UserConfig(("ada@ws3", "adal@ws4"), admin=True),
        "bob": UserConfig(("bob@ws3",)),
        "*": UserConfig(("*@cluster",)),
    }
    async with coordinator(tmp_path / "coordinator", users=users) as made:
        yield made
