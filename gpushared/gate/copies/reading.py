"""A tree of files as a tar archive, for ``docker cp`` out of a container. Standard library only.

The process that runs this is the container's user. It never opens a device, which no cgroup would keep from
it: a file is held by its name first, and read only where it is a regular one.
"""

import contextlib
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterator
from typing import IO, NamedTuple

from gpushared.gate.copies.order import BLOCK_BYTES, Told, first_of, refusal_of

ENTRIES_AT_ONCE = 1024
"""Between two signs of progress."""
END_OF_ARCHIVE = bytes(2 * tarfile.BLOCKSIZE)
KINDS = {
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}
"""Sockets are in no archive."""
_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeFile(NamedTuple):
    """One file of the tree: its path, its name in the archive, and an open handle that only names it."""

    path: str
    name: str
    handle: int
    stat: os.stat_result


class Tree:
    """The files at and below a path.

    ``barren``: directories whose content is left out, unless one of them is asked for itself. ``own_files``:
    a handle of ``/proc/self/fd``, by which a file that is held is opened.
    """

    def __init__(self, path: str, name: str, barren: frozenset[str], own_files: int) -> None:
        self._path = path
        self._name = name
        self._barren = barren
        self._own_files = own_files
        self._links: dict[tuple[int, int], str] = {}
        """The first names of files that have several, in this archive."""

    def check(self, told: Told) -> None:
        """Raise ``RefusedError`` for a file that cannot be read: in an archive nothing can be said of it."""
        for number, found in enumerate(self._walk()):
            if stat.S_ISREG(found.stat.st_mode):
                try:
                    self._open(found)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise refusal_of(error, "read", found.path) from None
            if number % ENTRIES_AT_ONCE == 0:
                told()

    def write(self, out: IO[bytes]) -> None:
        """The whole archive. Raises ``OSError`` for a file that cannot be read any more."""
        for found in self._walk():
            self._write(found, out)
        out.write(END_OF_ARCHIVE)

    def _walk(self) -> Iterator[TreeFile]:
        """Yield files in the engine's order.

        Leave out files that vanish meanwhile, except the path itself.
        """
        # Names alone, for a directory may have millions.
        waiting = [(self._path, self._name, [""])]
        while waiting:
            directory, prefix, left = waiting[-1]
            if not left:
                waiting.pop()
                continue
            each = left.pop()
            path, name = (posixpath.join(at, each) if each else at for at in (directory, prefix))
            try:
                handle = os.open(path, _HOLD)
            except (FileNotFoundError, NotADirectoryError):
                if path == self._path:
                    raise
                continue
            try:
                found = TreeFile(path, name, handle, os.fstat(handle))
                yield found
                below = self._below(found)
            finally:
                os.close(handle)
            waiting.append((path, name, below))

    def _below(self, found: TreeFile) -> list[str]:
        """The names in a directory, the first one last."""
        if not stat.S_ISDIR(found.stat.st_mode) or (found.path in self._barren and found.path != self._path):
            return []
        try:
            directory = os.open(found.path, _LIST)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise refusal_of(error, "read", first_of(error, found.path)) from None
        try:
            return sorted(os.listdir(directory), key=os.fsencode, reverse=True)  # noqa: PTH208 - by its handle
        finally:
            os.close(directory)

    def _open(self, found: TreeFile) -> None:
        os.close(self._opened(found))

    def _opened(self, found: TreeFile) -> int:
        return os.open(str(found.handle), os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._own_files)

    def _write(self, found: TreeFile, out: IO[bytes]) -> None:
        kind = KINDS.get(stat.S_IFMT(found.stat.st_mode))
        if kind is None:
            return
        entry = _entry(found, kind)
        if kind == tarfile.SYMTYPE:
            entry.linkname = os.readlink("", dir_fd=found.handle)
        if kind == tarfile.REGTYPE:
            self._write_file(found, entry, out)
        else:
            out.write(_head(entry))

    def _write_file(self, found: TreeFile, entry: tarfile.TarInfo, out: IO[bytes]) -> None:
        key = (found.stat.st_dev, found.stat.st_ino)
        if found.stat.st_nlink > 1 and (first := self._links.setdefault(key, found.name)) != found.name:
            entry.type, entry.linkname = tarfile.LNKTYPE, first
            out.write(_head(entry))
            return
        with contextlib.closing(os.fdopen(self._opened(found), "rb", buffering=0)) as file:
            _write_content(file, found, entry, out)


def _write_content(file: IO[bytes], found: TreeFile, entry: tarfile.TarInfo, out: IO[bytes]) -> None:
    """Write as many bytes as the head says, whatever a program adds or takes away meanwhile.

    The kernel's files do not tell their sizes: the bytes of the first reads are the size of a short file.
    """
    start = _read_full(file)
    if len(start) < BLOCK_BYTES:
        entry.size = len(start)
    elif not found.stat.st_size:
        raise OSError(f"{found.path} does not say how long it is")
    else:
        entry.size = max(found.stat.st_size, len(start))
    out.write(_head(entry))
    out.write(start)
    left = entry.size - len(start)
    while left:
        piece = file.read(min(left, BLOCK_BYTES)) or bytes(min(left, BLOCK_BYTES))
        out.write(piece)
        left -= len(piece)
    out.write(bytes(-entry.size % tarfile.BLOCKSIZE))


def _read_full(file: IO[bytes]) -> bytes:
    pieces: list[bytes] = []
    left = BLOCK_BYTES
    while left and (piece := file.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _entry(found: TreeFile, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(found.name)
    entry.type = kind
    entry.mode = stat.S_IMODE(found.stat.st_mode)
    entry.uid, entry.gid = found.stat.st_uid, found.stat.st_gid
    entry.mtime = int(found.stat.st_mtime)
    if kind in {tarfile.CHRTYPE, tarfile.BLKTYPE}:
        entry.devmajor, entry.devminor = os.major(found.stat.st_rdev), os.minor(found.stat.st_rdev)
    return entry


def _head(entry: tarfile.TarInfo) -> bytes:
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
