"""One tree picked out of the archive of a whole container, which the engine exports. Standard library only.

An export follows no link and mounts nothing, so nobody can lead the engine astray by it. It comes in the
order of names and is read once; where a link leads back to what is past, it has to come once more.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import IO, Any

from gpushared.gate.copies.order import (
    BLOCK_BYTES,
    NANOSECONDS,
    CopyRefusedError,
    Order,
    RefusalKind,
    cleaned,
    covered,
    go_mode,
    go_time,
    means_directory,
    missing,
    name_of,
)
from gpushared.mountinfo import is_under

MOST_LINKS = 40
"""On the way to one file, as the kernel has it."""
END_OF_ARCHIVE = bytes(2 * tarfile.BLOCKSIZE)
KINDS = {
    tarfile.DIRTYPE: 0o040000,
    tarfile.SYMTYPE: 0o120000,
    tarfile.FIFOTYPE: 0o010000,
    tarfile.CHRTYPE: 0o020000,
    tarfile.BLKTYPE: 0o060000,
}
REGULAR = 0o100000


class PastError(Exception):
    """The file is before what was read already: the export is wanted once more, for this path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Picking:
    """The file that the client asked for, in one export. Paths begin at the container's root."""

    def __init__(self, order: Order) -> None:
        self._asked: str = order["path"]
        self._follows = means_directory(self._asked)
        self._target = cleaned(order["now"] or self._asked).strip("/")
        self._mounts = [cleaned(each).strip("/") for each in order["mounts"]]
        self._links: dict[str, str] = {}
        self._archive: tarfile.TarFile

    def find(self, stream: io.BufferedReader[io.FileIO]) -> tuple[dict[str, Any], tarfile.TarInfo]:
        """Return the file's status as the engine would tell it, and its entry.

        Raise ``CopyRefusedError``, or ``PastError`` if this export is the wrong one.
        """
        self._archive = tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK_BYTES)  # noqa: SIM115 - lives on
        self._check_mounts(is_whole=False)
        entry = self._found()
        self._check_mounts(is_whole=entry.isdir())
        if self._follows and not entry.isdir():
            raise CopyRefusedError(RefusalKind.FAILED, f"{self._asked} cannot be read: not a directory")
        if entry.islnk():
            raise PastError(entry.linkname)
        return self._stat(entry), entry

    def write(self, entry: tarfile.TarInfo, out: IO[bytes]) -> None:
        """The archive that begins with what was found."""
        top, name = self._target, name_of(self._asked)
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
            # Kept for those who look back, be they millions; typeshed does not know of the list.
            self._archive.members.clear()  # type: ignore[attr-defined]
            yield entry

    def _found(self) -> tarfile.TarInfo:
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
        raise missing(self._asked)

    def _follow(self, here: str) -> None:
        """A link on the way is known now."""
        target = self._through(self._target, follows=self._follows)
        if target == self._target:
            return
        if not target or target.split("/") <= here.split("/"):
            raise PastError(f"/{target}")
        self._target = target

    def _through(self, path: str, *, follows: bool) -> str:
        """The path without those of its links that are known."""
        done: list[str] = []
        left = path.split("/")[::-1]
        links = 0
        while left:
            name = left.pop()
            here = "/".join([*done, name])
            if name == "..":
                done = done[:-1]
            elif here in self._links and (left or follows):
                if (links := links + 1) > MOST_LINKS:
                    raise CopyRefusedError(
                        RefusalKind.FAILED, f"{self._asked} cannot be read: too many links"
                    )
                target = self._links[here]
                done = [] if target.startswith("/") else done
                left += target.split("/")[::-1]
            elif name not in {"", "."}:
                done.append(name)
        return "/".join(done)

    def _check_mounts(self, *, is_whole: bool) -> None:
        """Raise ``CopyRefusedError`` for what an export does not have; ``is_whole``: with all that is below."""
        for mount in self._mounts:
            above = is_whole and (not self._target or is_under(mount, self._target))
            if above or is_under(self._target, mount):
                raise covered(f"/{mount}", "read")

    def _stat(self, entry: tarfile.TarInfo) -> dict[str, Any]:
        target = ""
        if entry.issym():
            # A link that is still to come may be on the way.
            rest = [each for each in self._entries() if each.issym()]
            self._links |= {each.name.strip("/"): each.linkname for each in rest}
            target = f"/{self._through(self._target, follows=True)}"
        return {
            "name": name_of(self._asked),
            "size": len(entry.linkname) if entry.issym() else entry.size,
            "mode": go_mode(KINDS.get(entry.type, REGULAR) | entry.mode),
            "mtime": go_time(int(entry.mtime * NANOSECONDS)),
            "linkTarget": target,
        }

    def _copy(self, entry: tarfile.TarInfo, name: str, out: IO[bytes]) -> None:
        content = self._archive.extractfile(entry) if entry.isreg() else None
        entry.name, entry.pax_headers = name, {}
        out.write(entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        while content is not None and (piece := content.read(BLOCK_BYTES)):
            out.write(piece)
        out.write(bytes(-entry.size % tarfile.BLOCKSIZE if entry.isreg() else 0))


def _root() -> tarfile.TarInfo:
    """An export has no entry for the root itself."""
    entry = tarfile.TarInfo("")
    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    return entry


def _renamed(path: str, top: str, name: str) -> str:
    """The path by the name under which the client knows the top. Raises ``OSError`` for one outside."""
    if top and not is_under(path, top):
        raise OSError(f"{path} has another name outside, which is not copied")
    return f"{name.rstrip('/')}/{path[len(top) :].lstrip('/')}" if path != top else name
