"""Keep a mark beside the store of how far the store had come, to detect an old copy or a lost store.

The mark may lie behind the store, never before it: it is written now and then, after the store.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from gpushared.domain.model.errors import ConfigError, Unavailable


@dataclass(frozen=True, slots=True)
class HighWater:
    """The highest epoch and revision that are known to have been.

    ``doubted``: the store was found to be from before them, and does not say so itself yet.
    """

    epoch: int = 0
    revision: int = 0
    doubted: bool = False


def read_high_water(path: Path) -> HighWater:
    """Nothing where there is no file. Raises ConfigError."""
    try:
        told = json.loads(path.read_bytes())
        return HighWater(int(told["epoch"]), int(told["revision"]), bool(told.get("doubted", False)))
    except FileNotFoundError:
        return HighWater()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}",
            hint="put it back, or remove it: then only nodes tell whether the store is an old copy",
        ) from error


def write_high_water(path: Path, mark: HighWater) -> None:
    """Whole or not at all, and durably. Raises Unavailable."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w") as file:
            json.dump(asdict(mark), file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}") from error
