"""Sites for browsers, without a daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.web.raw_browser import EchoSite, NewSite


@pytest.fixture
def new_site(tmp_path: Path) -> NewSite:
    """Make a site whose files are this test's."""

    def make(**words: Any) -> EchoSite:
        return EchoSite(tmp_path, **words)

    return make
