"""The committed gRPC code is what the proto files say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "gpushared" / "api"


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    """A proto file that was changed without scripts/proto fails here."""
    subprocess.run(
        [ROOT / "scripts" / "proto", tmp_path],
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHON": sys.executable},
    )
    made, kept = texts(tmp_path), {name: text for name, text in texts(COMMITTED).items() if "/" in name}
    assert made.keys() == kept.keys()
    assert [name for name in made if made[name] != kept[name]] == []


def texts(folder: Path) -> dict[str, str]:
    """The generated files by their paths below the folder, without byte code."""
    files = (path for path in folder.glob("*/*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)): path.read_text() for path in files}
