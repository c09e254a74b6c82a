"""The directories that containers get as their MPS pipe directory."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from gpushared.domain.errors import RequestError, SharingUnavailable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_PRIVATE = 0o700
"""Users of the host have no business there; the engine, as root, mounts what lies inside."""
_READABLE = 0o755


class LeaseDirectories:
    """One directory a lease, ``<root>/<device_name>/mps``, holding a hard link of a daemon's ``control``.

    A hard link and not the daemon's own directory, because privilege follows the socket that is used: through
    ``control_privileged`` even a confined root could change every limit. A directory and not the socket
    alone, because a daemon that is started again makes a new socket, which a mounted file would never show.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, device_name: str) -> Path:
        """Where a lease's directory is. Raises RequestError for a name that could lead elsewhere."""
        if _NAME.fullmatch(device_name) is None:
            raise RequestError(f"{device_name!r} is not a device name")
        return self._root / device_name / "mps"

    def link(self, device_name: str, socket: Path) -> None:
        """Put this socket in place of what is there; the directory itself stays, it may be mounted."""
        directory = self.path(device_name)
        target, staged = directory / "control", directory.parent / "control.new"
        try:
            self._make(directory)
            # Renaming one link of a file over another does nothing and leaves both.
            if target.exists() and target.samefile(socket):
                return
            staged.unlink(missing_ok=True)
            os.link(socket, staged)
            staged.replace(target)
        except OSError as error:
            raise SharingUnavailable(
                f"the MPS socket cannot be put into {directory}: {error.strerror}"
            ) from error

    def remove(self, device_name: str) -> None:
        directory = self.path(device_name)
        with suppress(FileNotFoundError):
            (directory / "control").unlink(missing_ok=True)
            (directory.parent / "control.new").unlink(missing_ok=True)
            directory.rmdir()
        # What else lies there belongs to somebody else.
        with suppress(OSError):
            directory.parent.rmdir()

    def remove_others(self, keep: Collection[str]) -> None:
        """Remove the directories of leases that are not among these."""
        if not self._root.is_dir():
            return
        for entry in sorted(self._root.iterdir()):
            if entry.name not in keep and _NAME.fullmatch(entry.name) and (entry / "mps").is_dir():
                self.remove(entry.name)

    def _make(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(_READABLE)
        self._root.chmod(_PRIVATE)
