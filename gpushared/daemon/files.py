"""Write small files so that they are whole or not there, and mostly secret."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from gpushared.domain.model.errors import ConfigError, Unavailable

PRIVATE = 0o600
PRIVATE_FOLDER = 0o700


def make_private_folder(folder: Path) -> None:
    """Make a folder that only its owner may enter. Raises ConfigError."""
    with as_config_error(folder, "cannot be made"):
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        folder.chmod(PRIVATE_FOLDER)


def write_private(path: Path, data: bytes) -> None:
    """Replace the file at once and durably; only its owner may read it. Raises Unavailable."""
    try:
        write_durably(path, data)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}", hint="is the disk full?") from error


def write_durably(path: Path, data: bytes, mode: int = PRIVATE) -> None:
    """Replace the file at once; it is on disk when the call returns. Raises OSError."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's list of files durable (fsync(2))."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_private(path: Path) -> bytes:
    """Read a file. Raises ConfigError if it cannot be read, or if others may read it too."""
    with as_config_error(path, "cannot be read"):
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise ConfigError(f"{path} may be read by others (mode {mode:04o})", hint=f"chmod 600 {path}")
        return path.read_bytes()


@contextlib.contextmanager
def as_config_error(path: Path, problem: str) -> Iterator[None]:
    """Raise an OSError of the block as a ConfigError that names the file."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} {problem}: {error.strerror}", hint="who owns the folder?") from error
