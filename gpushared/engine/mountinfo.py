"""Find the machine's files that a container sees, from two tables of mounts (proc(5), mountinfo). Pure.

The path that a mount was made from is written nowhere. But a mount has the number of its file system and the
place in that file system where it begins, and so has a path of the machine: one file system at one place is
one directory, by whatever links and mounts it was reached.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Sequence

from gpushared.mountinfo import Mount, is_under, parse_line
from gpushared.ports import Exposure

DEVICES = "devtmpfs"


def parse(text: str) -> list[Mount]:
    """Return the lines of a ``mountinfo``; lines in an unknown form are left out."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found.append(parse_line(line))
    return found


def exposures(container: str, machine: str, barred: Sequence[str]) -> tuple[Exposure, ...]:
    """Return the ``barred`` paths, or paths below them, that the container's mounts show.

    A path is given as the machine writes it. All devices of the machine are barred in any case.
    """
    inside, outside = parse(container), parse(machine)
    found = [Exposure(each.point, "/dev") for each in inside if each.kind == DEVICES]
    for path in barred:
        place = _place(path, outside)
        if place is None:
            continue
        device, root = place
        for each in inside:
            if each.device == device and is_under(root, each.root):
                found.append(Exposure(each.point, path))
            elif each.device == device and is_under(each.root, root):
                found.append(Exposure(each.point, posixpath.join(path, posixpath.relpath(each.root, root))))
    return tuple(dict.fromkeys(found))


def _place(path: str, machine: Sequence[Mount]) -> tuple[str, str] | None:
    """Return the file system of a path, and the place in it; of mounts on one place the last one counts."""
    around = [each for each in machine if is_under(path, each.point)]
    if not around:
        return None
    longest = max(len(each.point) for each in around)
    mount = [each for each in around if len(each.point) == longest][-1]
    return mount.device, posixpath.normpath(posixpath.join(mount.root, posixpath.relpath(path, mount.point)))
