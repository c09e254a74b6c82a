"""The cases of a folder, as pytest's parameters."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest


def cases_in(folder: Path) -> list[Any]:
    """Each named by its file and its own sentence."""
    return [
        pytest.param(case, id=f"{path.stem}: {case['name']}")
        for path in sorted(folder.glob("*.toml"))
        for case in tomllib.loads(path.read_text())["case"]
    ]
