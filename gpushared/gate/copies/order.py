"""Define the messages between the daemon and its helper program, and their paths. Standard library only.

The order is one line of JSON, and so is the answer; empty lines before the answer report progress. The bytes
of an archive follow the order, or the answer.

Each path is looked up as the container's user, so a path that somebody swaps during the copy leads only where
that user may go anyway.
"""

import os
import posixpath
import stat
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

from gpushared.mountinfo import is_under

Order = dict[str, Any]
STAT, AGAIN = "stat", "again"
"""An answer has one of these keys: the file that was found, or the path to search for again from the
beginning."""
BLOCK_BYTES = 256 * 1024
START_HINT = "start it first, or write to a volume or directory that it mounts"
GO_BITS = (
    (stat.S_ISDIR, 1 << 31),
    (stat.S_ISLNK, 1 << 27),
    (stat.S_ISBLK, 1 << 26),
    (stat.S_ISCHR, 1 << 26 | 1 << 21),
    (stat.S_ISFIFO, 1 << 25),
    (stat.S_ISSOCK, 1 << 24),
)
GO_FLAGS = ((stat.S_ISUID, 1 << 23), (stat.S_ISGID, 1 << 22), (stat.S_ISVTX, 1 << 20))
"""Go's ``FileMode`` describes a file with these bits, and the engine's clients read them."""
NANOSECONDS = 1_000_000_000
RIGHTS_HINT = "a copy has the rights of the container's user"
MOUNTED_HINT = "start the container and copy then, or mount it in another one"
ReportProgress = Callable[[], None]


class Deed(StrEnum):
    """Name the helper's tasks."""

    LOOK = "look"
    READ = "read"
    WRITE = "write"
    PICK = "pick"


class RefusalKind(StrEnum):
    """Name the reasons for which the helper refuses."""

    MISSING = "missing"
    FORBIDDEN = "forbidden"
    BROKEN = "broken"
    FAILED = "failed"


class CopyRefusedError(Exception):
    """Report that the helper refuses an order; the text states the reason, for the caller to read."""

    def __init__(self, kind: RefusalKind, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.hint = hint


def cleaned(path: str) -> str:
    """Return the path from the container's root, without dots and doubled slashes."""
    return "/" + posixpath.normpath("/" + path).lstrip("/")


def means_directory(path: str) -> bool:
    """Return True if a link at the end is to be followed, because a slash or a dot follows it."""
    return path.endswith(("/", "/.")) or path == "."


def name_of(path: str) -> str:
    """Return the engine's name for the file that the client asked for, in archives too."""
    if path == "." or path.endswith("/."):
        return "."
    return posixpath.basename(cleaned(path)) or "/"


def resolved(path: str) -> str:
    """Return the path without links in its directories.

    A link at the end of the path stays unless it is to be followed.
    """
    plain = cleaned(path)
    if means_directory(path):
        return os.path.realpath(plain)
    directory, name = os.path.split(plain)
    return posixpath.join(os.path.realpath(directory), name)


def stat_of(path: str, status: os.stat_result, target: str) -> dict[str, Any]:
    """Return the content of the header ``X-Docker-Container-Path-Stat``; the client asked for ``path``."""
    return {
        "name": name_of(path),
        "size": status.st_size,
        "mode": go_mode(status.st_mode),
        "mtime": go_time(status.st_mtime_ns),
        "linkTarget": target,
    }


def go_mode(mode: int) -> int:
    """Return a file's mode as Go's ``FileMode``."""
    kind = sum(bits for is_kind, bits in GO_BITS if is_kind(mode))
    return kind | sum(bits for flag, bits in GO_FLAGS if mode & flag) | (mode & 0o777)


def go_time(moment_ns: int) -> str:
    """Return a time as Go writes it in JSON."""
    seconds, rest = divmod(moment_ns, NANOSECONDS)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}{fraction}Z"


def refusal_of(error: OSError, doing: str, path: str) -> CopyRefusedError:
    """Return the kernel's refusal in words for the caller; ``doing`` is ``read`` or ``written``."""
    if isinstance(error, FileNotFoundError):
        return missing(path)
    text = f"{path} cannot be {doing}: {(error.strerror or str(error)).lower()}"
    if isinstance(error, PermissionError):
        return CopyRefusedError(RefusalKind.FORBIDDEN, text, RIGHTS_HINT)
    return CopyRefusedError(RefusalKind.FAILED, text)


def check_uncovered(path: str, mounts: Iterable[str], doing: str) -> None:
    """Raise ``CopyRefusedError`` for a path below a place that the running container mounts over."""
    for mount in mounts:
        if is_under(path, mount):
            raise covered(mount, doing)


def covered(mount: str, doing: str) -> CopyRefusedError:
    """Return the error for a path that does not show the container's own layers."""
    return CopyRefusedError(
        RefusalKind.FORBIDDEN,
        f"what is mounted at {mount} cannot be {doing} while it does not run",
        MOUNTED_HINT,
    )


def missing(path: str) -> CopyRefusedError:
    """Return the error for a missing path; the daemon turns it into the engine's own words."""
    return CopyRefusedError(RefusalKind.MISSING, path)


def first_of(error: OSError, otherwise: str) -> str:
    """Return the path that an error is about."""
    return str(error.filename) if error.filename else otherwise
