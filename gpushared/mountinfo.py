"""Read a process's mounts as the kernel tells them (proc_pid_mountinfo(5)).

Standard library only: a helper that is started for each container with mounts reads them too.
"""

import re
from typing import NamedTuple

_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """Hold one line: the directory ``root`` of the file system ``device`` (``8:1``) at ``point``."""

    identity: int
    device: str
    root: str
    point: str
    kind: str
    options: frozenset[str]
    """The options of the file system itself."""
    flags: frozenset[str] = frozenset()
    """The options of this mount of the file system."""


def parse_line(line: str) -> Mount:
    """Read one line; raises ``ValueError`` for a line in an unknown form."""
    first, _, last = line.rstrip("\n").partition(" - ")
    identity, _, device, root, point, flags = first.split(" ")[:6]
    kind, _, options = last.split(" ")[:3]
    return Mount(
        *(int(identity), device, _plain(root), _plain(point), kind),
        options=frozenset(options.split(",")),
        flags=frozenset(flags.split(",")),
    )


def is_under(path: str, directory: str) -> bool:
    """Return True if the path is the directory, or lies in it; both paths are normal."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _plain(word: str) -> str:
    """Decode blanks, line ends and backslashes, which the kernel writes as octal numbers."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), word)
