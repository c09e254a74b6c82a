"""Bring an older file to a newer schema.

``PRAGMA user_version`` is the number of migrations a file has seen. A released migration is never changed;
the next one is appended.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from gpushared.domain.model.errors import ConfigError
from gpushared.storage.sqlite.trouble import FileWords


@dataclass(frozen=True, slots=True)
class FileSchema:
    """Define the tables of one kind of file."""

    application_id: int
    """The number tells our files from other SQLite files: four letters in ASCII."""
    migrations: tuple[tuple[str, ...], ...]
    """The statements of each migration, oldest first."""

    @property
    def version(self) -> int:
        return len(self.migrations)


def migrate(connection: sqlite3.Connection, path: Path, schema: FileSchema, words: FileWords) -> None:
    """Bring the file to the schema's version in one transaction.

    Raises ConfigError for a file of a newer version and for a database of another program.
    """
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        version = checked_version(connection, path, schema, words)
        for number, statements in enumerate(schema.migrations[version:], start=version + 1):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        if version == 0:
            connection.execute(f"PRAGMA application_id = {schema.application_id}")


def checked_version(connection: sqlite3.Connection, path: Path, schema: FileSchema, words: FileWords) -> int:
    """Return how many migrations the file has seen. Raises ConfigError as ``migrate``."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != schema.application_id and (tables or application or version):
        raise ConfigError(
            f"{path} is a database of another program",
            hint=f"give {words.program} a state directory of its own",
        )
    if version > schema.version:
        raise ConfigError(
            f"{words.noun} {path} has version {version}, this program knows up to {schema.version}",
            hint=words.if_newer,
        )
    assert isinstance(version, int)
    return version
