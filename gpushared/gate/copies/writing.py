"""Unpack a tar archive into a directory, for ``docker cp`` into a container. Standard library only.

The process that runs this code is the container's user: an entry that leads elsewhere, by its own name or by
links of other entries, leads only where that user may write anyway.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import shutil
import stat
import tarfile
from pathlib import Path
from typing import IO, NamedTuple

from gpushared.gate.copies.order import (
    BLOCK_BYTES,
    CopyRefusedError,
    RefusalKind,
    check_uncovered,
    first_of,
    refusal_of,
)

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
IMPLIED_MASK = 0o022
"""Directories without an entry of their own are made with this mask."""
PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700
"""Files and directories have these modes until their content is there."""


class ArchiveEntry(tarfile.TarInfo):
    """Read a tar entry; a broken head ends the archive with an error, wherever the head stands."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> ArchiveEntry:
        try:
            return super().fromtarfile(archive)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise CopyRefusedError(RefusalKind.BROKEN, f"the archive is broken: {error}") from None


class _Directory(NamedTuple):
    """Hold a directory whose mode and time are set when it is full; ``is_own`` says that it was made here."""

    path: Path
    entry: tarfile.TarInfo
    is_own: bool


class Unpacking:
    """Unpack one archive into the directory ``root``.

    ``keeps_kinds``: no directory is replaced by another kind of file, or the other way round.
    ``keeps_owners``: the files belong to the entries' owners, and not to the caller. ``mounts`` holds the
    places that the running container mounts over; nothing is mounted there now, and nothing is written there.
    """

    def __init__(
        self, root: str, groups: frozenset[int], mounts: list[str], *, keeps_kinds: bool, keeps_owners: bool
    ) -> None:
        self._root = Path(root)
        self._groups = groups
        self._mounts = mounts
        self._keeps_kinds = keeps_kinds
        self._keeps_owners = keeps_owners
        self._directories: list[_Directory] = []

    def take(self, stream: io.BufferedReader[io.FileIO]) -> None:
        """Unpack the stream. Raises ``CopyRefusedError``; entries before the error stay unpacked."""
        os.umask(IMPLIED_MASK)
        try:
            # The engine does not treat an empty stream as a broken archive.
            if stream.peek():
                self._take(stream)
        except tarfile.TarError as error:
            raise CopyRefusedError(RefusalKind.BROKEN, f"the archive is broken: {error}") from None
        except (ValueError, OverflowError) as error:
            raise CopyRefusedError(
                RefusalKind.BROKEN, f"the archive has an entry that cannot be: {error}"
            ) from None

    def _take(self, stream: io.BufferedReader[io.FileIO]) -> None:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK_BYTES, tarinfo=ArchiveEntry) as archive:
            while (entry := archive.next()) is not None:
                # ``tarfile`` keeps the entries, of which there may be millions, for random access; typeshed
                # lacks the list.
                archive.members.clear()  # type: ignore[attr-defined]
                self._put(entry, archive)
        for directory in reversed(self._directories):
            self._finish(directory)

    # --- one entry ---

    def _put(self, entry: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        name = self._inside(entry.name, entry.name)
        if not name:
            return
        self._check(entry)
        path = self._root / name
        if self._mounts:
            real_path = posixpath.join(os.path.realpath(path.parent), path.name)
            check_uncovered(real_path, self._mounts, "written")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_there = self._make_way(path, entry)
            self._make(path, entry, archive, is_there=is_there)
        except OSError as error:
            raise refusal_of(error, "written", first_of(error, str(path))) from None

    def _inside(self, path: str, name: str) -> str:
        """Return the path from the root, empty for the root itself.

        Raises ``CopyRefusedError`` for a path outside.
        """
        plain = posixpath.normpath(path)
        if plain == ".." or plain.startswith("../"):
            raise CopyRefusedError(RefusalKind.BROKEN, f"{name} in the archive leads out of {self._root}")
        plain = plain.lstrip("/")
        return "" if plain == "." else plain

    def _check(self, entry: tarfile.TarInfo) -> None:
        if entry.ischr() or entry.isblk():
            raise CopyRefusedError(
                RefusalKind.FORBIDDEN,
                f"{entry.name} in the archive is a device, which only root could make",
                "leave it out",
            )
        is_known = entry.isreg() or entry.isdir() or entry.issym() or entry.islnk() or entry.isfifo()
        if not is_known:
            raise CopyRefusedError(RefusalKind.BROKEN, f"{entry.name} in the archive is of an unknown kind")
        if self._keeps_owners and (entry.uid != os.geteuid() or entry.gid not in self._groups):
            raise CopyRefusedError(
                RefusalKind.FORBIDDEN,
                f"{entry.name} in the archive belongs to {entry.uid}:{entry.gid}, which you are not",
                "without -a it becomes yours",
            )

    def _make_way(self, path: Path, entry: tarfile.TarInfo) -> bool:
        """Remove the file that the entry replaces; return True if the entry's directory exists already."""
        try:
            is_directory = stat.S_ISDIR(path.lstat().st_mode)
        except FileNotFoundError:
            return False
        if is_directory and entry.isdir():
            return True
        if self._keeps_kinds and is_directory:
            raise CopyRefusedError(
                RefusalKind.FAILED, f"cannot overwrite directory {path} with non-directory {entry.name}"
            )
        if self._keeps_kinds and entry.isdir():
            raise CopyRefusedError(
                RefusalKind.FAILED, f"cannot overwrite non-directory {path} with directory {entry.name}"
            )
        if is_directory:
            shutil.rmtree(path)
        else:
            path.unlink()
        return False

    def _make(self, path: Path, entry: tarfile.TarInfo, archive: tarfile.TarFile, *, is_there: bool) -> None:
        if entry.isdir():
            if not is_there:
                path.mkdir(PRIVATE_DIRECTORY)
            self._directories.append(_Directory(path, entry, is_own=not is_there))
        elif entry.islnk():
            target = self._inside(entry.linkname, f"{entry.name} -> {entry.linkname}")
            os.link(self._root / target, path, follow_symlinks=False)
        elif entry.issym():
            path.symlink_to(entry.linkname)
            self._set_owner(path, entry)
            os.utime(path, (entry.mtime, entry.mtime), follow_symlinks=False)
        else:
            self._make_file(path, entry, archive)
            self._set_all(path, entry)

    def _make_file(self, path: Path, entry: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        if entry.isfifo():
            os.mkfifo(path, PRIVATE_FILE)
            return
        content = archive.extractfile(entry)
        assert content is not None
        with os.fdopen(os.open(path, NEW_FILE, PRIVATE_FILE), "wb", buffering=0) as file:
            while piece := content.read(BLOCK_BYTES):
                if piece.count(0) == len(piece):
                    file.seek(len(piece), os.SEEK_CUR)  # a hole takes no room on the disk
                else:
                    _write_all(file, piece)
            file.truncate(file.tell())

    # --- owners, times and modes ---

    def _finish(self, directory: _Directory) -> None:
        if directory.is_own:
            try:
                self._set_all(directory.path, directory.entry)
            except OSError as error:
                raise refusal_of(error, "written", str(directory.path)) from None
            return
        # An existing directory may belong to another user, and then stays as it is.
        with contextlib.suppress(OSError):
            self._set_all(directory.path, directory.entry)

    def _set_all(self, path: Path, entry: tarfile.TarInfo) -> None:
        self._set_owner(path, entry)
        # A file that somebody put into the place of ours belongs to the caller too, as do links.
        path.chmod(stat.S_IMODE(entry.mode))
        os.utime(path, (entry.mtime, entry.mtime), follow_symlinks=False)

    def _set_owner(self, path: Path, entry: tarfile.TarInfo) -> None:
        """Set the owner. This comes before the mode, because a change of owners clears the set-uid bit."""
        if self._keeps_owners:
            os.chown(path, -1, entry.gid, follow_symlinks=False)


def _write_all(file: IO[bytes], piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[file.write(rest) :]
