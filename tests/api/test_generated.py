"""The committed gRPC code is what the proto files say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "gpushared" / "api" / "v1"


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    """A proto file that was changed without scripts/proto fails here."""
    subprocess.run(
        [ROOT / "scripts" / "proto", tmp_path],
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHON": sys.executable},
    )
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in COMMITTED.iterdir() if path.is_file()}
    assert made.keys() == kept.keys()
    assert [name for name in made if made[name] != kept[name]] == []
