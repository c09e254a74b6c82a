"""Keep on disk the paths held for each container: after a reboot they are held before the engine starts."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpushared.domain.model.errors import Unavailable
from gpushared.domain.model.request import Caller
from gpushared.net.accounts import PathWish

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeldPaths:
    """List the paths that a pin holds, in the order of their numbers, and the caller who may use them."""

    uid: int
    gid: int
    user: str
    wishes: tuple[PathWish, ...]

    @property
    def caller(self) -> Caller:
        return Caller(self.uid, self.gid, self.user)


class HeldPathsLog:
    """Keep one file a pin, in a directory that only root can read. Without a directory keep nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    async def write(self, name: str, entry: HeldPaths) -> None:
        """Write an entry; it is on disk when the call returns. Raises ``Unavailable``."""
        try:
            await asyncio.to_thread(self._write, name, entry)
        except OSError as error:
            raise Unavailable(f"what is mounted cannot be noted: {error.strerror}") from error

    async def read(self) -> dict[str, HeldPaths]:
        """Return all entries by name; a file that cannot be read is left out, and named in the log."""
        return await asyncio.to_thread(self._read)

    async def forget(self, names: Sequence[str]) -> None:
        await asyncio.to_thread(self._forget, names)

    def _write(self, name: str, entry: HeldPaths) -> None:
        if self._directory is None:
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._directory / f".{name}"
        with new.open("w") as file:
            json.dump(asdict(entry), file)
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._directory / name)

    def _read(self) -> dict[str, HeldPaths]:
        entries = {}
        for path in self._directory.glob("[!.]*") if self._directory is not None else ():
            try:
                said = json.loads(path.read_text())
                wishes = tuple(PathWish(**wish) for wish in said.pop("wishes"))
                entries[path.name] = HeldPaths(**said, wishes=wishes)
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("pin not read name=%s error=%r", path.name, error)
        return entries

    def _forget(self, names: Sequence[str]) -> None:
        if self._directory is None:
            return
        for name in names:
            try:
                (self._directory / name).unlink(missing_ok=True)
            except OSError as error:
                log.warning("pin not forgotten name=%s error=%r", name, error)
