"""Sites for browsers, without a daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.web.raw_browser import Play, Played


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Make a site whose files are this test's."""

    def make(**words: Any) -> Played:
        return Played(tmp_path, **words)

    return make
