"""Find the owners of subordinate ids, which users have in their own user namespaces: none is a user here.

``adduser`` gives each user tens of thousands of ids (subuid(5)). A process in a user namespace can have any
of them in the kernel's view, and so in the credentials of a connection: without this check its owner would
have every limit and quota so many times.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

SUBUID: Final = Path("/etc/subuid")
MAX_FILE_BYTES: Final = 4 << 20
"""A hundred thousand users' ranges; lines beyond are not read."""
LOOK_SECONDS: Final = 5.0
IDS_END: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class IdRange:
    """Give the ids from ``first`` to before ``end`` to ``owner``, a name or a uid as the file has it."""

    first: int
    end: int
    owner: str

    @property
    def owner_words(self) -> str:
        return f"uid {self.owner}" if self.owner.isdecimal() else self.owner


class SubordinateIds:
    """Keep the file's ranges in memory, so that a look-up of an id never waits for a disk."""

    def __init__(self, path: Path | None = SUBUID) -> None:
        """Read the file, if there is one. Another ``path``, or none, holds from the next look on."""
        self.path = path
        self._seen: tuple[object, ...] = ()
        self._firsts: list[int] = []
        self._ranges: list[IdRange] = []
        self.look()

    def range_of(self, uid: int) -> IdRange | None:
        """Return the range in which an id lies, None if the id is nobody's subordinate."""
        place = bisect_right(self._firsts, uid) - 1
        if place < 0 or uid >= self._ranges[place].end:
            return None
        found = self._ranges[place]
        return None if found.owner == str(uid) else found

    def look(self) -> None:
        """Read the file if it changed since the last look. A file that cannot be read changes nothing."""
        path = self.path
        try:
            seen = () if path is None else _marks(path)
            if seen == self._seen:
                return
            ranges = [] if path is None or not seen else list(_apart(_parsed(_read(path))))
        except OSError as error:
            log.warning("%s cannot be read: %s", path, error)
            return
        self._seen = seen
        self._firsts, self._ranges = [each.first for each in ranges], ranges

    async def keep(self) -> None:
        """Look again and again, off the event loop."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_SECONDS)


def _marks(path: Path) -> tuple[object, ...]:
    """Return marks that tell one state of the file from another; nothing if there is no file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return (path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _read(path: Path) -> list[str]:
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        log.warning("%s is longer than %d bytes: the rest is not read", path, MAX_FILE_BYTES)
        data = data[: data.rfind(b"\n", 0, MAX_FILE_BYTES) + 1]
    return data.decode(errors="replace").splitlines()


def _parsed(lines: Iterable[str]) -> Iterator[IdRange]:
    """Parse the file; lines that do not fit subuid(5) are skipped, as the system's own tools do."""
    for line in lines:
        owner, *numbers = line.strip().split(":")
        if not owner or owner.startswith("#") or len(numbers) != 2:  # noqa: PLR2004 - first, count
            continue
        if all(each.isascii() and each.isdecimal() and len(each) <= 10 for each in numbers):  # noqa: PLR2004 - 2^32
            first, count = map(int, numbers)
            yield IdRange(first, min(first + count, IDS_END), owner)


def _apart(ranges: Iterable[IdRange]) -> Iterator[IdRange]:
    """Yield the ranges in order and without overlaps, so that one search finds the range of an id."""
    end = 0
    for each in sorted(ranges, key=lambda one: (one.first, one.end)):
        if each.end > (first := max(each.first, end)):
            yield IdRange(first, each.end, each.owner)
            end = each.end
