"""File systems that are soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A small file system below ``folder``; a test that cannot have one is skipped."""
    place = folder / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(place)]
    mounted = subprocess.run(words, check=False, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    with disk(tmp_path, 1) as place:
        yield place


def fill(folder: Path) -> Path:
    """Take all that is left of the file system; the file that has it."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            for _ in range(1024):
                file.write(bytes(1 << 16))
        except OSError:
            return ballast
    raise AssertionError("it never became full")


@contextmanager
def full(folder: Path) -> Iterator[Path]:
    """The file system is full as long as the block runs."""
    ballast = fill(folder)
    try:
        yield ballast
    finally:
        ballast.unlink()
