"""Which of the machine's files a container sees, from two tables of mounts (proc(5), mountinfo). Pure.

The path that a mount was made from is written nowhere. But a mount has the number of its file system and
the place in that file system where it begins, and so has a path of the machine: one file system at one place
is one directory, by whatever links and mounts it was reached.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpushared.ports import Exposure

DEVICES = "devtmpfs"
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mounted:
    """One line: the directory ``root`` of the file system ``device`` (``8:1``) at ``target``."""

    device: str
    root: str
    target: str
    kind: str


def parse(text: str) -> list[Mounted]:
    """The lines of a ``mountinfo``; those in an unknown form are left out."""
    found = []
    for line in text.splitlines():
        own, _, rest = line.partition(" - ")
        fields = own.split(" ")
        if len(fields) > 4 and rest:  # noqa: PLR2004 - id, parent, device, root, target
            found.append(Mounted(fields[2], _plain(fields[3]), _plain(fields[4]), rest.split(" ")[0]))
    return found


def exposures(container: str, machine: str, barred: Sequence[str]) -> tuple[Exposure, ...]:
    """The ``barred`` paths, or what lies below them, that the container's mounts show.

    A path is given as the machine writes it. All devices of the machine are barred in any case.
    """
    inside, outside = parse(container), parse(machine)
    found = [Exposure(each.target, "/dev") for each in inside if each.kind == DEVICES]
    for path in barred:
        place = _place(path, outside)
        if place is None:
            continue
        device, root = place
        for each in inside:
            if each.device == device and _is_below(root, each.root):
                found.append(Exposure(each.target, path))
            elif each.device == device and _is_below(each.root, root):
                found.append(Exposure(each.target, posixpath.join(path, posixpath.relpath(each.root, root))))
    return tuple(dict.fromkeys(found))


def _place(path: str, machine: Sequence[Mounted]) -> tuple[str, str] | None:
    """The file system of a path, and where in it; of mounts on one place the last one counts."""
    around = [each for each in machine if _is_below(path, each.target)]
    if not around:
        return None
    longest = max(len(each.target) for each in around)
    mount = [each for each in around if len(each.target) == longest][-1]
    return mount.device, posixpath.normpath(posixpath.join(mount.root, posixpath.relpath(path, mount.target)))


def _is_below(path: str, around: str) -> bool:
    return path == around or path.startswith(around.rstrip("/") + "/")


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
