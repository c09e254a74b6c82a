"""The page's JavaScript agrees with the types that its comments declare."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.bed import parts


def test_the_pages_modules_agree_with_their_types(tsc: Path) -> None:
    done = subprocess.run(
        [tsc, "--project", "jsconfig.json"],
        cwd=parts.ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
