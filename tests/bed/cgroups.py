"""Cgroups that tests leave behind, in whatever trees this machine has."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gpushared.node.runtime.container_verifier import gate_name
from gpushared.sharing.cgroups import CgroupPlace
from gpushared.sharing.user_cgroups import HOME

ROOT = Path("/sys/fs/cgroup")


def users_of(state_dir: Path) -> CgroupPlace:
    """Around the cgroups of a daemon's users."""
    return CgroupPlace((HOME, gate_name(str(state_dir))))


def remove_users(home: CgroupPlace) -> None:
    """The places of users in ``home``, and what the engine made beside them in trees without limits."""
    names = Path(*home.names)
    for found in (*ROOT.glob(str(names)), *ROOT.glob(f"*/{names}")):
        # The engine takes some away at the same time, which this walk does not mind.
        for path, _, _ in os.walk(found, topdown=False):
            with contextlib.suppress(OSError):
                Path(path).rmdir()
