"""The page stays small: it is loaded over slow tunnels, and read by people who must trust it."""

from __future__ import annotations

from gpushared.web.assets import Assets

# The aim for the second is 45 kB, and bench/README.md says what is in the way.
MAX_BYTES = 130_000
MAX_GZIPPED_BYTES = 50_000


def test_all_assets_together_are_small() -> None:
    files = Assets().files.values()
    assert sum(len(one.body) for one in files) <= MAX_BYTES
    assert sum(len(one.gzipped) for one in files) <= MAX_GZIPPED_BYTES
