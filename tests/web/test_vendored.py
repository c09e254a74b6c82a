"""Check that other projects' files are as their authors released them, each with its licence."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

VENDOR = Path(__file__).parents[2] / "gpushared" / "web" / "assets" / "vendor"
SUMS = VENDOR / "SHA256SUMS"


def listed() -> dict[str, str]:
    lines = (line for line in SUMS.read_text().splitlines() if not line.startswith("#"))
    return {name: digest for digest, name in (line.split() for line in lines)}


def test_each_file_is_as_it_was_released() -> None:
    digests = {one.name: sha256(one.read_bytes()).hexdigest() for one in VENDOR.iterdir() if one != SUMS}
    assert digests == listed()


def test_the_version_that_is_listed_is_the_one_that_is_there() -> None:
    first = (VENDOR / "uPlot.iife.min.js").read_text().splitlines()[0]
    version = SUMS.read_text().split()[2]
    assert f"(v{version})" in first


def test_the_licence_comes_along() -> None:
    assert (VENDOR / "uPlot.LICENSE").read_text().startswith("The MIT License")
