"""Cgroups that tests leave behind, in whatever trees this machine has."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpushared.node.verifier import gate_name
from gpushared.sharing.slices import Place
from gpushared.sharing.user_cgroups import HOME

ROOT = Path("/sys/fs/cgroup")


def users_of(state_dir: Path) -> Place:
    """Around the cgroups of a daemon's users."""
    return Place((HOME, gate_name(str(state_dir))))


def remove_users(home: Place) -> None:
    """The places of users in ``home``, and what the engine made beside them in trees without limits."""
    names = Path(*home.names)
    for found in (*ROOT.glob(str(names)), *ROOT.glob(f"*/{names}")):
        for path in sorted(found.rglob("*/"), reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir()
        with contextlib.suppress(OSError):
            found.rmdir()
