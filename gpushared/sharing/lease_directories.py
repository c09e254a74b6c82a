"""Keep the directories in which containers find their lease: its file, and its MPS socket."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from gpushared.domain.model.errors import RequestError, SharingUnavailable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_PRIVATE = 0o700
"""The directory is closed to users of the host; the engine, as root, mounts the content."""
_READABLE = 0o755
_PUBLIC_FILE = 0o644

LEASE_FILE = "lease.json"
MPS_DIRECTORY = "mps"
NOTICE_FILE = "notice.json"
_STAGED_FILE = "lease.json.new"
_STAGED_NOTICE = "notice.json.new"
_STAGED_SOCKET = "control.new"


class LeaseDirectories:
    """Keep one directory for each lease, ``<root>/<device_name>``, which its container can read.

    ``lease.json`` describes the lease; ``mps/``, if there is MPS, is the container's pipe directory and holds
    a hard link of a daemon's ``control``.

    The link is a hard link and not the daemon's own directory, because privilege follows the socket that is
    used: through ``control_privileged`` even a confined root could change every limit. The container gets a
    directory and not the socket alone, because a daemon that is started again makes a new socket, which a
    mounted file would never show. The same holds for ``lease.json``, which is replaced.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, device_name: str) -> Path:
        """Return a lease's directory. Raises RequestError for a name that could lead elsewhere."""
        if _NAME.fullmatch(device_name) is None:
            raise RequestError(f"{device_name!r} is not a device name")
        return self._root / device_name

    def write(self, device_name: str, text: str) -> None:
        """Write the lease's file atomically."""
        directory = self.path(device_name)
        try:
            self._make(directory)
            _replace(directory / LEASE_FILE, directory / _STAGED_FILE, text)
        except OSError as error:
            raise _not_writable("lease's file", directory, error) from error

    def write_notice(self, device_name: str, text: str | None) -> None:
        """Write the notice of the lease's end, or remove it; a lease without a directory stays unchanged."""
        directory = self.path(device_name)
        if not directory.is_dir():
            return
        try:
            if text is None:
                (directory / NOTICE_FILE).unlink(missing_ok=True)
            else:
                _replace(directory / NOTICE_FILE, directory / _STAGED_NOTICE, text)
        except OSError as error:
            raise _not_writable("notice", directory, error) from error

    def link(self, device_name: str, socket: Path) -> None:
        """Put this socket in place of the old one; the directory itself stays, because it may be mounted."""
        directory = self.path(device_name) / MPS_DIRECTORY
        target, staged = directory / "control", directory.parent / _STAGED_SOCKET
        try:
            self._make(directory.parent)
            self._make(directory)
            # Renaming one link of a file over another does nothing and leaves both.
            if target.exists() and target.samefile(socket):
                return
            staged.unlink(missing_ok=True)
            os.link(socket, staged)
            staged.replace(target)
        except OSError as error:
            raise _not_writable("MPS socket", directory, error) from error

    def unlink(self, device_name: str) -> None:
        """Remove the socket; the directory stays, because a running container may have it mounted."""
        directory = self.path(device_name)
        for path in (directory / MPS_DIRECTORY / "control", directory / _STAGED_SOCKET):
            path.unlink(missing_ok=True)

    def remove(self, device_name: str) -> None:
        self.unlink(device_name)
        directory = self.path(device_name)
        for name in (LEASE_FILE, _STAGED_FILE, NOTICE_FILE, _STAGED_NOTICE):
            (directory / name).unlink(missing_ok=True)
        # Other files there are not ours.
        with suppress(OSError):
            (directory / MPS_DIRECTORY).rmdir()
        with suppress(OSError):
            directory.rmdir()

    def remove_others(self, keep: Collection[str]) -> None:
        """Remove the directories of leases that are not among these."""
        if not self._root.is_dir():
            return
        for entry in sorted(self._root.iterdir()):
            if entry.name not in keep and _NAME.fullmatch(entry.name) and _is_ours(entry):
                self.remove(entry.name)

    def _make(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(_READABLE)
        self._root.chmod(_PRIVATE)


def _replace(path: Path, staged: Path, text: str) -> None:
    """Replace a file that containers read, so that no reader sees a part of it."""
    staged.write_text(text)
    staged.chmod(_PUBLIC_FILE)
    staged.replace(path)


def _not_writable(item: str, directory: Path, error: OSError) -> SharingUnavailable:
    return SharingUnavailable(
        f"the {item} cannot be put into {directory}: {error.strerror}",
        hint="the daemon must be able to write there; is the file system full or read-only?",
    )


def _is_ours(entry: Path) -> bool:
    return (entry / MPS_DIRECTORY).is_dir() or (entry / LEASE_FILE).is_file()
