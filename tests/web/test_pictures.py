"""The pictures of README and docs are there, small, and can be made again."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.bed import parts

IMAGES = parts.ROOT / "docs/images"
PAGES = ("page-light.png", "page-dark.png")
MAX_BYTES = 600_000


def size_of(picture: Path) -> tuple[int, int]:
    """The width and height in the header of a PNG (its specification, 11.2.1)."""
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def check_pictures(folder: Path) -> None:
    assert [size_of(folder / name) for name in PAGES] == [(1280, 800)] * len(PAGES)
    assert ET.parse(folder / "top.svg").getroot().tag.endswith("svg")
    assert sum(one.stat().st_size for one in folder.iterdir()) <= MAX_BYTES


def test_the_pictures_are_there_and_small() -> None:
    check_pictures(IMAGES)


def test_readme_shows_the_page_on_its_first_screen_in_the_readers_theme() -> None:
    first = "\n".join((parts.ROOT / "README.md").read_text().splitlines()[:20])
    assert all(f"docs/images/{name}" in first for name in PAGES)


@pytest.mark.slow
def test_the_pictures_can_be_made_again(docker_engine: str, chromium: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["scripts/pictures", tmp_path],
        cwd=parts.ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check_pictures(tmp_path)
