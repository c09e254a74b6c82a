"""The ids that users have in user namespaces of their own: none of them is a user of its own here.

``adduser`` gives each user tens of thousands (subuid(5)). A process in a user namespace can be any of them to
the kernel, and so to whoever asks who connected: its owner would have every limit and quota so many times.
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
    """The ids from ``first`` to before ``end`` are ``owner``'s, a name or a uid as the file has it."""

    first: int
    end: int
    owner: str

    @property
    def owner_words(self) -> str:
        return f"uid {self.owner}" if self.owner.isdecimal() else self.owner


class SubordinateIds:
    """What the file says, kept in memory: whoever asks for an id never waits for a disk."""

    def __init__(self, path: Path | None = SUBUID) -> None:
        """Reads the file, if there is one. Another ``path``, or none, holds from the next look on."""
        self.path = path
        self._seen: tuple[object, ...] = ()
        self._firsts: list[int] = []
        self._ranges: list[IdRange] = []
        self.look()

    def range_of(self, uid: int) -> IdRange | None:
        """The range in which an id lies, None where it is nobody's subordinate."""
        place = bisect_right(self._firsts, uid) - 1
        if place < 0 or uid >= self._ranges[place].end:
            return None
        found = self._ranges[place]
        return None if found.owner == str(uid) else found

    def look(self) -> None:
        """Read the file where it is another than at the last look. What cannot be read changes nothing."""
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
    """What tells one state of the file from another; nothing where there is no file."""
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
    """Lines that are none of subuid(5) are passed over, as the system's own tools do."""
    for line in lines:
        owner, *numbers = line.strip().split(":")
        if not owner or owner.startswith("#") or len(numbers) != 2:  # noqa: PLR2004 - first, count
            continue
        if all(each.isascii() and each.isdecimal() and len(each) <= 10 for each in numbers):  # noqa: PLR2004 - 2^32
            first, count = map(int, numbers)
            yield IdRange(first, min(first + count, IDS_END), owner)


def _apart(ranges: Iterable[IdRange]) -> Iterator[IdRange]:
    """In order and without overlaps, so that one search finds the range of an id."""
    end = 0
    for each in sorted(ranges, key=lambda one: (one.first, one.end)):
        if each.end > (first := max(each.first, end)):
            yield IdRange(first, each.end, each.owner)
            end = each.end
