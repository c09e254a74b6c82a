"""The tables, and how an older journal becomes a newer one.

``PRAGMA user_version`` is the number of migrations a journal has seen. A released migration is never
changed; the next one is appended, and a journal of its time is checked in beside the tests.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from gpushared.domain.errors import ConfigError

APPLICATION_ID = 0x67707573
"""``gpus`` in ASCII: what tells our files from other SQLite files."""

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    # 1: leases, their stories, the counter
    (
        """CREATE TABLE lease (
            sequence INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            owner_uid INTEGER NOT NULL,
            state TEXT NOT NULL,
            ended_at REAL,
            body TEXT NOT NULL
        )""",
        "CREATE INDEX lease_open ON lease (sequence) WHERE ended_at IS NULL",
        "CREATE INDEX lease_ended ON lease (ended_at) WHERE ended_at IS NOT NULL",
        """CREATE TABLE story (
            number INTEGER PRIMARY KEY,
            lease INTEGER NOT NULL REFERENCES lease (sequence) ON DELETE CASCADE,
            at REAL NOT NULL,
            state TEXT NOT NULL,
            text TEXT NOT NULL
        )""",
        "CREATE INDEX story_lease ON story (lease)",
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO meta VALUES ('next_sequence', 1)",
    ),
    # 2: drained GPUs
    (
        """CREATE TABLE drained (
            gpu TEXT PRIMARY KEY,
            reason TEXT NOT NULL,
            since REAL NOT NULL,
            by TEXT NOT NULL,
            sick INTEGER NOT NULL
        ) WITHOUT ROWID""",
    ),
    # 3: what projects used, their turns, and those that were set at run time
    (
        """CREATE TABLE usage (
            project TEXT NOT NULL,
            bucket INTEGER NOT NULL,
            amount INTEGER NOT NULL,
            PRIMARY KEY (project, bucket)
        ) WITHOUT ROWID""",
        "CREATE TABLE turn (project TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID",
        "CREATE TABLE project (name TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
    ),
    # 4: attempts to run jobs, and the coordinators by whose orders
    (
        """CREATE TABLE attempt (
            coordinator TEXT NOT NULL,
            job TEXT NOT NULL,
            number INTEGER NOT NULL,
            final_at REAL,
            body TEXT NOT NULL,
            PRIMARY KEY (coordinator, job, number)
        )""",
        "CREATE INDEX attempt_final ON attempt (final_at) WHERE final_at IS NOT NULL",
        "CREATE TABLE contact (coordinator TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
    ),
)

VERSION = len(_MIGRATIONS)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the journal to ``VERSION`` in one transaction.

    Raises ConfigError for a journal of a newer version and for a database that is no journal.
    """
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        version = _checked_version(connection, path)
        for number, statements in enumerate(_MIGRATIONS[version:], start=version + 1):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        if version == 0:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _checked_version(connection: sqlite3.Connection, path: Path) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (tables or application or version):
        raise ConfigError(
            f"{path} is a database of another program", hint="give the daemon a state directory of its own"
        )
    if version > VERSION:
        raise ConfigError(
            f"the journal {path} has version {version}, this program knows up to {VERSION}",
            hint="install the newer gpushared again, or move the journal away to begin an empty one",
        )
    assert isinstance(version, int)
    return version
