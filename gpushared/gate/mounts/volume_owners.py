"""Give volumes to their makers, as a part of the helper. Runs as root; standard library only.

A volume's files belong to its user, who may change them at any time and chose the image that they came from.
So every file is opened first, and the open file is judged and given. No file is reached by links or mounts.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpushared.gate.mounts import kernel

Order = dict[str, Any]
FILES = "_data"
"""The engine's local driver gives this name to the directory of a volume's files."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def empty(order: Order, engine: int | None) -> dict[str, Any]:
    """Return the names of the volumes that have no files."""
    _enter(engine)
    return {"empty": [each["name"] for each in order["volumes"] if _is_empty(**each)]}


def give(order: Order, engine: int | None) -> dict[str, Any]:
    """Make the volumes the caller's, with the directories and plain files in them.

    Device nodes stay root's: an image may bring any, and their owner could open them on the machine.
    """
    _enter(engine)
    for each in order["volumes"]:
        _give(_open(**each), order["uid"], order["gid"])
    return {}


def _enter(engine: int | None) -> None:
    if engine is not None:
        kernel.enter(engine)


def _is_empty(name: str, path: str) -> bool:
    folder = _open(name, path)
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    finally:
        os.close(folder)


def _open(name: str, path: str) -> int:
    """Open the directory of the volume's files. Only root can replace this directory."""
    files = Path(path)
    if files.parts[-2:] != (name, FILES):
        raise OSError(errno.EINVAL, f"{path} is not where volumes are")
    folder = os.open(files.parent, _FOLDER)
    try:
        return _open_folder(kernel.open_entry(folder, FILES))
    finally:
        os.close(folder)


def _open_folder(entry: int) -> int:
    try:
        return os.open(f"/proc/self/fd/{entry}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(entry)


def _give(top: int, uid: int, gid: int) -> None:
    # No recursion: directories can be nested deeper than Python's calls.
    way = [(top, _give_entries(top, uid, gid))]
    while way:
        folder, inner = way[-1]
        if (child := next(inner, None)) is not None:
            way.append((child, _give_entries(child, uid, gid)))
        else:
            os.close(folder)
            way.pop()


def _give_entries(folder: int, uid: int, gid: int) -> Iterator[int]:
    """Give the directory and its plain files; yield the open directories in it."""
    os.fchown(folder, uid, gid)
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError, _AcrossMounts):
            entry = _open_entry(folder, name)
            kind = os.fstat(entry).st_mode
            if stat.S_ISDIR(kind):
                yield _open_folder(entry)
                continue
            if stat.S_ISREG(kind):
                os.chown(f"/proc/self/fd/{entry}", uid, gid)
            os.close(entry)


class _AcrossMounts(Exception):
    """Report that the path leads across a mount."""


def _open_entry(folder: int, name: str) -> int:
    try:
        return kernel.open_entry(folder, name)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise _AcrossMounts from error
        raise
