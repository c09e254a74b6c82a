"""Define the audit's table. A file of each released version is checked in beside the tests."""

from __future__ import annotations

from gpushared.sqlite.migrations import Schema

APPLICATION_ID = 0x67706175
"""The number is ``gpau`` in ASCII."""

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    # 1: lines
    (
        """CREATE TABLE line (
            number INTEGER PRIMARY KEY,
            at REAL NOT NULL,
            uid INTEGER NOT NULL,
            user TEXT NOT NULL,
            pid INTEGER NOT NULL,
            executable TEXT NOT NULL,
            method TEXT NOT NULL,
            endpoint TEXT NOT NULL,
            container TEXT NOT NULL,
            name TEXT NOT NULL,
            digest TEXT NOT NULL,
            status INTEGER NOT NULL,
            code TEXT NOT NULL,
            text TEXT NOT NULL,
            more INTEGER NOT NULL
        )""",
        "CREATE INDEX line_uid ON line (uid, number)",
        "CREATE INDEX line_at ON line (at)",
        "CREATE INDEX line_container ON line (container) WHERE container != ''",
        "CREATE INDEX line_name ON line (name) WHERE name != ''",
    ),
)

SCHEMA = Schema(APPLICATION_ID, _MIGRATIONS)
VERSION = SCHEMA.version
