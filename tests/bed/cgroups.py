"""Cgroups that tests leave behind, in whatever trees this machine has."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpushared.sharing.slices import Place

ROOT = Path("/sys/fs/cgroup")


def remove_users(home: Place) -> None:
    """The places of users in ``home``, and what the engine made beside them in trees without limits."""
    names = Path(*home.names)
    for found in (*ROOT.glob(str(names)), *ROOT.glob(f"*/{names}")):
        for path in sorted(found.rglob("*/"), reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir()
        with contextlib.suppress(OSError):
            found.rmdir()
