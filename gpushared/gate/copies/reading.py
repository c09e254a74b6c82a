"""Read a tree of files as a tar archive, or pick one file out of a whole container's archive. Standard library only.

The process that runs this code is the container's user. It never opens a device, because no cgroup would keep
the process from the device: the process first holds a file by its name, and reads only regular files.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from gpushared.gate.copies.order import (
    BLOCK_BYTES,
    NANOSECONDS,
    CopyRefusedError,
    Order,
    RefusalKind,
    ReportProgress,
    cleaned,
    covered,
    first_of,
    go_mode,
    go_time,
    means_directory,
    missing,
    name_of,
    refusal_of,
)
from gpushared.mountinfo import is_under

ENTRIES_AT_ONCE = 1024
"""This many entries lie between two signs of progress."""
END_OF_ARCHIVE = bytes(2 * tarfile.BLOCKSIZE)
KINDS = {
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}
"""An archive has no entry for sockets."""
_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_LINKS = 40
"""The path of one file may have this many links, as in the kernel."""
ENTRY_KINDS = {
    tarfile.DIRTYPE: 0o040000,
    tarfile.SYMTYPE: 0o120000,
    tarfile.FIFOTYPE: 0o010000,
    tarfile.CHRTYPE: 0o020000,
    tarfile.BLKTYPE: 0o060000,
}
REGULAR = 0o100000


class TreeFile(NamedTuple):
    """Hold one file of the tree: its path, its name in the archive, and an open handle that only names it."""

    path: str
    name: str
    handle: int
    stat: os.stat_result


class Tree:
    """Archive the files at and below a path.

    ``no_content`` holds directories whose content is left out, unless such a directory is the path itself.
    ``own_files`` is a handle of ``/proc/self/fd``, through which a held file is opened.
    """

    def __init__(self, path: str, name: str, no_content: frozenset[str], own_files: int) -> None:
        self._path = path
        self._name = name
        self._no_content = no_content
        self._own_files = own_files
        self._links: dict[tuple[int, int], str] = {}
        """The first names of files with several names, in this archive."""

    def check(self, report: ReportProgress) -> None:
        """Raise ``CopyRefusedError`` for a file that cannot be read.

        An archive that has begun cannot report an error.
        """
        for number, file in enumerate(self._walk()):
            if stat.S_ISREG(file.stat.st_mode):
                try:
                    os.close(self._open(file))
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise refusal_of(error, "read", file.path) from None
            if number % ENTRIES_AT_ONCE == 0:
                report()

    def write(self, out: IO[bytes]) -> None:
        """Write the whole archive. Raises ``OSError`` for a file that cannot be read any more."""
        for file in self._walk():
            self._write(file, out)
        out.write(END_OF_ARCHIVE)

    def _walk(self) -> Iterator[TreeFile]:
        """Yield files in the engine's order.

        Leave out files that vanish during the walk, except the path itself.
        """
        # The list holds names alone, because a directory may have millions of them.
        waiting = [(self._path, self._name, [""])]
        while waiting:
            directory, prefix, names = waiting[-1]
            if not names:
                waiting.pop()
                continue
            each = names.pop()
            path, name = (posixpath.join(at, each) if each else at for at in (directory, prefix))
            try:
                handle = os.open(path, _HOLD)
            except (FileNotFoundError, NotADirectoryError):
                if path == self._path:
                    raise
                continue
            try:
                file = TreeFile(path, name, handle, os.fstat(handle))
                yield file
                below = self._below(file)
            finally:
                os.close(handle)
            waiting.append((path, name, below))

    def _below(self, file: TreeFile) -> list[str]:
        """Return the names in a directory, the first one last."""
        if not stat.S_ISDIR(file.stat.st_mode) or (file.path in self._no_content and file.path != self._path):
            return []
        try:
            directory = os.open(file.path, _LIST)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise refusal_of(error, "read", first_of(error, file.path)) from None
        try:
            return sorted(os.listdir(directory), key=os.fsencode, reverse=True)  # noqa: PTH208 - by its handle
        finally:
            os.close(directory)

    def _open(self, file: TreeFile) -> int:
        return os.open(str(file.handle), os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._own_files)

    def _write(self, file: TreeFile, out: IO[bytes]) -> None:
        kind = KINDS.get(stat.S_IFMT(file.stat.st_mode))
        if kind is None:
            return
        entry = _entry(file, kind)
        if kind == tarfile.SYMTYPE:
            entry.linkname = os.readlink("", dir_fd=file.handle)
        if kind == tarfile.REGTYPE:
            self._write_file(file, entry, out)
        else:
            out.write(_head(entry))

    def _write_file(self, file: TreeFile, entry: tarfile.TarInfo, out: IO[bytes]) -> None:
        key = (file.stat.st_dev, file.stat.st_ino)
        if file.stat.st_nlink > 1 and (first := self._links.setdefault(key, file.name)) != file.name:
            entry.type, entry.linkname = tarfile.LNKTYPE, first
            out.write(_head(entry))
            return
        with contextlib.closing(os.fdopen(self._open(file), "rb", buffering=0)) as content:
            _write_content(content, file, entry, out)


def _write_content(content: IO[bytes], file: TreeFile, entry: tarfile.TarInfo, out: IO[bytes]) -> None:
    """Write as many bytes as the head says, even if a program changes the file's length meanwhile.

    The kernel's files do not show their sizes: the bytes of the first reads are the size of a short file.
    """
    start = _read_full(content)
    if len(start) < BLOCK_BYTES:
        entry.size = len(start)
    elif not file.stat.st_size:
        raise OSError(f"{file.path} does not say how long it is")
    else:
        entry.size = max(file.stat.st_size, len(start))
    out.write(_head(entry))
    out.write(start)
    remaining = entry.size - len(start)
    while remaining:
        piece = content.read(min(remaining, BLOCK_BYTES)) or bytes(min(remaining, BLOCK_BYTES))
        out.write(piece)
        remaining -= len(piece)
    out.write(bytes(-entry.size % tarfile.BLOCKSIZE))


def _read_full(file: IO[bytes]) -> bytes:
    pieces: list[bytes] = []
    remaining = BLOCK_BYTES
    while remaining and (piece := file.read(remaining)):
        pieces.append(piece)
        remaining -= len(piece)
    return b"".join(pieces)


def _entry(file: TreeFile, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(file.name)
    entry.type = kind
    entry.mode = stat.S_IMODE(file.stat.st_mode)
    entry.uid, entry.gid = file.stat.st_uid, file.stat.st_gid
    entry.mtime = int(file.stat.st_mtime)
    if kind in {tarfile.CHRTYPE, tarfile.BLKTYPE}:
        entry.devmajor, entry.devminor = os.major(file.stat.st_rdev), os.minor(file.stat.st_rdev)
    return entry


def _head(entry: tarfile.TarInfo) -> bytes:
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


class AlreadyPassedError(Exception):
    """Report that the file lies in a part that was read: the export must come once more, for this path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Picking:
    """Pick the file that the client asked for out of one export. Paths begin at the container's root.

    An export follows no link and mounts nothing, so no link can lead the engine astray. The export comes in
    the order of names and is read once; if a link leads back to a part that was read already, the export has
    to come once more.
    """

    def __init__(self, order: Order) -> None:
        self._path: str = order["path"]
        self._follows = means_directory(self._path)
        self._target = cleaned(order["now"] or self._path).strip("/")
        self._mounts = [cleaned(each).strip("/") for each in order["mounts"]]
        self._links: dict[str, str] = {}
        self._archive: tarfile.TarFile

    def find(self, stream: io.BufferedReader[io.FileIO]) -> tuple[dict[str, Any], tarfile.TarInfo]:
        """Return the file's status in the engine's format, and the file's entry.

        Raise ``CopyRefusedError``, or ``AlreadyPassedError`` if this export is the wrong one.
        """
        self._archive = tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK_BYTES)  # noqa: SIM115 - lives on
        self._check_mounts(is_whole=False)
        entry = self._find_entry()
        self._check_mounts(is_whole=entry.isdir())
        if self._follows and not entry.isdir():
            raise CopyRefusedError(RefusalKind.FAILED, f"{self._path} cannot be read: not a directory")
        if entry.islnk():
            raise AlreadyPassedError(entry.linkname)
        return self._stat(entry), entry

    def write(self, entry: tarfile.TarInfo, out: IO[bytes]) -> None:
        """Write the archive that begins with the found entry."""
        top, name = self._target, name_of(self._path)
        self._copy(entry, name, out)
        for each in self._entries() if entry.isdir() else ():
            path = each.name.strip("/")
            if top and not is_under(path, top):
                break
            if each.islnk():
                each.linkname = _renamed(each.linkname.strip("/"), top, name)
            self._copy(each, _renamed(path, top, name), out)
        out.write(END_OF_ARCHIVE)

    # --- parts ---

    def _entries(self) -> Iterator[tarfile.TarInfo]:
        while (entry := self._archive.next()) is not None:
            # ``tarfile`` keeps the entries, of which there may be millions, for random access; typeshed lacks
            # the list.
            self._archive.members.clear()  # type: ignore[attr-defined]
            yield entry

    def _find_entry(self) -> tarfile.TarInfo:
        if not self._target:
            return _root()
        for entry in self._entries():
            path = entry.name.strip("/")
            if entry.issym():
                self._links[path] = entry.linkname
                if is_under(self._target, path):
                    self._follow(path)
            if path == self._target:
                return entry
        raise missing(self._path)

    def _follow(self, here: str) -> None:
        """Continue the search behind a link on the way to the target."""
        target = self._through(self._target, follows=self._follows)
        if target == self._target:
            return
        if not target or target.split("/") <= here.split("/"):
            raise AlreadyPassedError(f"/{target}")
        self._target = target

    def _through(self, path: str, *, follows: bool) -> str:
        """Return the path with its known links resolved."""
        resolved: list[str] = []
        segments = path.split("/")[::-1]
        links = 0
        while segments:
            name = segments.pop()
            here = "/".join([*resolved, name])
            if name == "..":
                resolved = resolved[:-1]
            elif here in self._links and (segments or follows):
                if (links := links + 1) > MOST_LINKS:
                    raise CopyRefusedError(RefusalKind.FAILED, f"{self._path} cannot be read: too many links")
                target = self._links[here]
                resolved = [] if target.startswith("/") else resolved
                segments += target.split("/")[::-1]
            elif name not in {"", "."}:
                resolved.append(name)
        return "/".join(resolved)

    def _check_mounts(self, *, is_whole: bool) -> None:
        """Raise ``CopyRefusedError`` for a target under a mount, which an export lacks.

        ``is_whole`` includes mounts below the target.
        """
        for mount in self._mounts:
            above = is_whole and (not self._target or is_under(mount, self._target))
            if above or is_under(self._target, mount):
                raise covered(f"/{mount}", "read")

    def _stat(self, entry: tarfile.TarInfo) -> dict[str, Any]:
        target = ""
        if entry.issym():
            # Links that come later in the export may be on the way.
            rest = [each for each in self._entries() if each.issym()]
            self._links |= {each.name.strip("/"): each.linkname for each in rest}
            target = f"/{self._through(self._target, follows=True)}"
        return {
            "name": name_of(self._path),
            "size": len(entry.linkname) if entry.issym() else entry.size,
            "mode": go_mode(ENTRY_KINDS.get(entry.type, REGULAR) | entry.mode),
            "mtime": go_time(int(entry.mtime * NANOSECONDS)),
            "linkTarget": target,
        }

    def _copy(self, entry: tarfile.TarInfo, name: str, out: IO[bytes]) -> None:
        content = self._archive.extractfile(entry) if entry.isreg() else None
        entry.name, entry.pax_headers = name, {}
        out.write(_head(entry))
        while content is not None and (piece := content.read(BLOCK_BYTES)):
            out.write(piece)
        out.write(bytes(-entry.size % tarfile.BLOCKSIZE if entry.isreg() else 0))


def _root() -> tarfile.TarInfo:
    """Return an entry for the root, which an export does not have."""
    entry = tarfile.TarInfo("")
    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    return entry


def _renamed(path: str, top: str, name: str) -> str:
    """Return the path below the client's name for the top. Raises ``OSError`` for a path outside the top."""
    if top and not is_under(path, top):
        raise OSError(f"{path} has another name outside, which is not copied")
    return f"{name.rstrip('/')}/{path[len(top) :].lstrip('/')}" if path != top else name
