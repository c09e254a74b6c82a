"""Detect that an old copy of a store's file was put back, by a mark of how far the store was."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpushared.daemon.files import write_private
from gpushared.domain.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class HighWater:
    """Hold the highest epoch and revision that the store is known to have reached.

    The mark may lie behind the store, never before it: the store writes it now and then, after a commit.

    ``doubted`` means that the store was found to be older than the mark and does not record that itself yet.
    """

    epoch: int = 0
    revision: int = 0
    doubted: bool = False


class HighWaterMark:
    """Keep a mark in a file of its own, which is not restored together with the store."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark: HighWater | None = None
        self._written = HighWater()

    async def before_leading(self, epoch: int) -> int:
        """Return the epoch above which the store must lead; ``epoch`` is the store's own. Raises ConfigError.

        A store that was created again after a loss counts its revisions from 1, so that an older store may
        have more revisions. The epoch of the new store is lower all the same. This method stores the doubt
        before anything raises the epoch.
        """
        if self._mark is None:
            mark = await asyncio.to_thread(read_high_water, self._path)
            if epoch < mark.epoch and not mark.doubted:
                mark = replace(mark, doubted=True)
                await asyncio.to_thread(write_high_water, self._path, mark)
            self._mark = mark
        return self._mark.epoch

    def is_ahead_of(self, revision: int) -> bool | None:
        """Return True if the store once was further than this revision, None if there is no mark."""
        if self._mark is None or (not self._mark.revision and not self._mark.doubted):
            return None
        return self._mark.doubted or revision < self._mark.revision

    async def keep(self, epoch: int, revision: int) -> None:
        """Write how far the store is. Raises Unavailable."""
        mark = HighWater(epoch, revision)
        if mark != self._written:
            await asyncio.to_thread(write_high_water, self._path, mark)
            self._written = mark


def read_high_water(path: Path) -> HighWater:
    """Return the mark, or an empty one without a file. Raises ConfigError."""
    try:
        facts = json.loads(path.read_bytes())
        return HighWater(int(facts["epoch"]), int(facts["revision"]), bool(facts.get("doubted", False)))
    except FileNotFoundError:
        return HighWater()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}",
            hint="put it back, or remove it: then only nodes tell whether the store is an old copy",
        ) from error


def write_high_water(path: Path, mark: HighWater) -> None:
    """Write the mark whole or not at all, and durably. Raises Unavailable."""
    write_private(path, json.dumps(asdict(mark)).encode())
